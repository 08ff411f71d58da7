"""A plan reports each difference between versions once, at the field that caused it."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.steps import test_hash_property as any_graph
from tests.steps.second_hash import Described
from tradewind.plans.differences import FORM_ONLY, Change, Comparison, full_text, sentence
from tradewind.plans.version_records import Lookup, is_version, version_hash
from tradewind.steps import ExecutorStep, InputName, ResolvedStep, output_path_of, resolve, versioned


def make(*steps: ExecutorStep) -> list[ResolvedStep]:
    return list(resolve(steps, "/p").steps)


def lookup_in(*graphs: list[ResolvedStep]) -> Lookup:
    known = {(step.name, step.hash): step.version for graph in graphs for step in graph}
    return lambda name, hash_: known.get((name, hash_))


def changes_between(old: ExecutorStep, new: ExecutorStep) -> list[Change]:
    before, after = make(old), make(new)
    return Comparison(lookup_in(before, after)).changes(before[-1].version, after[-1].version)


def words(old: Any, new: Any) -> list[str]:
    return [change.what for change in changes_between(ExecutorStep("s", None, old), ExecutorStep("s", None, new))]


def named(name: str, value: Any = 0) -> ExecutorStep:
    return ExecutorStep(name, None, {"value": versioned(value)})


A, B, C = named("a"), named("b"), named("c")
SHARDS = [named("shard", number) for number in range(5)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"learning_rate": 0.003}, {"learning_rate": 0.001}, "config.learning_rate 0.003 → 0.001"),
        ({}, {"x": 5}, "config.x added (5)"),
        ({"x": 5}, {}, "config.x removed (was 5)"),
        ({"x": 1}, {"x": 1.0}, "config.x 1 → 1.0"),
        ({"x": True}, {"x": 1}, "config.x true → 1"),
        ({"x": None}, {"x": "é\n"}, 'config.x null → "é\\n"'),
        ({"x": float("nan")}, {"x": 0}, "config.x NaN → 0"),
        ({"model": {"dim": 64, "deep": [1, {"y": 2}]}}, {"model": {"dim": 64, "deep": [1, {"y": 3}]}},
         "config.model.deep.[1].y 2 → 3"),
        ({"x": {"k": 1}}, {"x": {}}, "config.x.k removed (was 1)"),
        ({"x": [1, 2]}, {"x": [1]}, "config.x [1, 2] → [1]"),
    ],
)  # fmt: skip
def test_changed_value_is_named_with_its_path(old: Any, new: Any, expected: str) -> None:
    assert words(*({key: versioned(value) for key, value in each.items()} for each in (old, new))) == [expected]


def test_long_value_is_cut_around_its_difference() -> None:
    text = "x" * 300
    (change,) = words(versioned(f"{text}one{text}"), versioned(f"{text}three{text}"))
    assert "one" in change and "three" in change
    assert len(change) < 100
    (change,) = words({}, {"x": versioned("begin" + "-" * 300 + "end")})
    assert change.startswith('config.x added ("begin--') and change.endswith('--end")') and len(change) < 80


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (versioned(1), versioned(2), ["config 1 → 2"]),
        (versioned([*range(100)]), versioned([*range(1, 101)]),
         ["config differs in 100 places, first config.[0] 0 → 1"]),
        (versioned("DEP[0]"), versioned("DEP[1]"), ['config "DEP[0]" → "DEP[1]"']),
        ([A, B], [A, B], []),
        ({"data": A}, {"data": B}, ["config.data reads `b` instead of `a`"]),
        ({"data": A}, {}, ["config.data removed (read `a`)"]),
        ({}, {"data": A / "train"}, ["config.data added (reads `a`/train)"]),
        ({"data": A / "train"}, {"data": A / "test"}, ["config.data reads `a`/test instead of `a`/train"]),
        ({"data": A}, {"data": A.nonblocking()}, ["config.data no longer waits for `a`"]),
        ({"data": A}, {"tokens": A}, ["reference to `a` moved from config.data to config.tokens"]),
        ({"data": InputName.hardcoded("raw")}, {"data": A}, ['config.data "raw" → `a`']),
        ({"data": A}, {"data": versioned(3)}, ["config.data `a` → 3"]),
        ([A, B], [B, A], ["its inputs are in another order: `b`, `a`"]),
        ([A, B], [C, A, B], ["config.[0] added (reads `c`)"]),
        ([A, B, C], [B, C], ["config.[0] removed (read `a`)"]),
        ({"b": B, "c": C}, {"a": A, "b": B, "c": C}, ["config.a added (reads `a`)"]),
        (SHARDS[1:], SHARDS, ["config.[0] added (reads `shard`)"]),
        ({"a": A, "b": B}, {"b": B, "a": A}, ["its inputs are in another order: `b`, `a`"]),
        ({"a": A, "b": B.nonblocking(), "c": C}, {"a": A, "b": B.nonblocking()}, ["input `c` removed"]),
        ({"a": A, "b": B.nonblocking()}, {"a": A, "b": B}, ["now waits for input `b`"]),
        ({"a": A, "b": B.nonblocking()}, {"a": C, "b": B.nonblocking()}, ["input `a` replaced by `c`"]),
        ({"a": A, "b": B.nonblocking()}, {"a": A, "c": B.nonblocking()},
         ["reference moved from config.b to config.c"]),
        ({"a": A, "b": B.nonblocking()}, {"a": A / "x", "b": B.nonblocking()},
         ["config.a reads x inside an input instead of all of an input"]),
    ],
)  # fmt: skip
def test_changed_reference_is_named_without_numbers(old: Any, new: Any, expected: list[str]) -> None:
    assert words(old, new) == expected


@pytest.mark.parametrize("more", [[], [A.nonblocking()]], ids=["all are waited for", "not all are"])
def test_input_at_same_position_is_compared_with_itself(more: list[Any]) -> None:
    old, new = ([first, named("shard", value), *more] for first, value in ((named("shard", 1), 2), (C, 3)))
    found = changes_between(ExecutorStep("s", None, old), ExecutorStep("s", None, new))
    assert [change.what for change in found if change.step == "shard"] == ["config.value 2 → 3"]
    assert len(found) == 2 and "`c`" in found[0].what


# ---- causes in dependencies


def chain(length: int, seed: int) -> ExecutorStep:
    step = ExecutorStep("step0", None, {"seed": versioned(seed)})
    for number in range(1, length):
        step = ExecutorStep(f"step{number}", None, {"input": output_path_of(step)})
    return step


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 5, 6, 7, 12, 3000])
def test_cause_is_found_at_any_depth(length: int) -> None:
    (change,) = changes_between(chain(length, 1), chain(length, 2))
    assert (change.step, change.what) == ("step0", "config.seed 1 → 2")
    assert change.way[0] == f"step{length - 2}" and change.way[-1] == "step0"
    assert sentence([change]) == "config.seed 1 → 2 in input `step0`"


def test_own_change_is_not_attributed_to_same_named_input() -> None:
    old, new = (ExecutorStep("a", None, {"value": versioned(value), "input": named("a", value)}) for value in (1, 2))
    assert sentence(changes_between(old, new)) == "config.value 1 → 2"


def test_deep_lattice_reports_each_cause_and_reads_versions_once() -> None:
    def lattice(seed: int) -> ExecutorStep:
        row = [named(f"s{i}", seed) for i in range(3)]
        for _ in range(40):
            row = [ExecutorStep(f"s{i}", None, list(row)) for i in range(3)]
        return ExecutorStep("end", None, row)

    before, after = make(lattice(1)), make(lattice(2))
    known, calls = lookup_in(before, after), []

    def lookup(name: str, hash_: str) -> Any:
        calls.append((name, hash_))
        return known(name, hash_)

    assert len(Comparison(lookup).changes(before[-1].version, after[-1].version)) == 3
    assert len(calls) == len(set(calls)) <= len(before) + len(after)


def test_change_of_depth_does_not_hide_the_cause() -> None:
    """The record contains a dependency of depth 4 and only the name of one of depth 5."""
    old = [chain(5, 1), chain(6, 1)]
    for number in range(5):
        old = [ExecutorStep(f"end{number}", None, {"input": step}) for step in old]
    found = [change.what for change in changes_between(*old)]
    assert found == ["name `step4` → `step5`"] or "reads `step5` instead of `step4`" in found[0]


def test_version_without_record_is_named() -> None:
    before, after = make(chain(8, 1)), make(chain(8, 2))
    found = Comparison(lookup_in(after)).changes(before[-1].version, after[-1].version)
    assert [change.step for change in found] == ["step6"]
    assert found[0].what == (
        f"version `{before[-2].hash}` → `{after[-2].hash}`, with no record of `{before[-2].hash}` at hand "
        "to compare further"
    )


def test_records_that_refer_to_themselves_end() -> None:
    def version(hash_: str) -> dict[str, Any]:
        return {"name": "a", "config": {"": "DEP[0]"}, "dependencies": [f"a-{hash_}"]}

    records = {hash_: version(hash_) for hash_ in ("000001", "000002")}
    assert Comparison(lambda name, hash_: records[hash_]).changes(records["000001"], records["000002"]) == []


def test_records_that_differ_only_in_form_say_so() -> None:
    """Marin's older executor nested dependencies at any depth."""
    steps = make(chain(8, 1))

    def nested(step: ResolvedStep) -> dict[str, Any]:
        return {**step.version, "dependencies": [nested(dependency) for dependency in step.dependencies]}

    found = Comparison(lookup_in(steps)).changes(nested(steps[-1]), steps[-1].version)
    assert found == [] and sentence(found) == FORM_ONLY and full_text(found) == [FORM_ONLY]


# ---- rendering


def test_sentence_is_short_and_full_text_complete() -> None:
    def train(seed: int, rate: float, extra: bool) -> ExecutorStep:
        raw = ExecutorStep("raw", None, {"seed": versioned(seed), "url": versioned(f"s{seed}")})
        tokenize = ExecutorStep("tokenize", None, {"input": raw})
        config = {"rate": versioned(rate), "data": tokenize} | ({"extra": versioned(5)} if extra else {})
        return ExecutorStep("train", None, config)

    found = changes_between(train(1, 0.003, False), train(2, 0.001, True))
    assert sentence(found) == (
        "config.extra added (5), config.rate 0.003 → 0.001; config.seed 1 → 2 in input `raw`; and 1 more"
    )
    assert full_text(found) == [
        "config.extra added (5)",
        "config.rate 0.003 → 0.001",
        "because input `raw` changed (through `tokenize`):",
        "  config.seed 1 → 2",
        '  config.url "s1" → "s2"',
    ]
    assert found[-1].to_json() == {
        "step": "raw",
        "where": "config.url",
        "what": 'config.url "s1" → "s2"',
        "way": ["tokenize", "raw"],
    }


def test_version_record_is_recognised_and_hashed_like_its_step() -> None:
    (step,) = make(named("ünï", [1.5, None, {"b": 1, "a": 2}]))
    version = json.loads(json.dumps(step.version))
    assert is_version(version) and version_hash(version) == step.hash
    wrong = {"dependencies": (None, ["nothing"], [{"name": "b"}]), "pseudo_dependencies": ([3],), "config": ([],)}
    changed = [version | {field: value} for field, values in wrong.items() for value in values]
    for invalid in (None, [], {}, *changed):
        assert not is_version(invalid)


# ---- property test: change one field of any graph, then find it


Values, References = dict[str, Any], dict[str, tuple[int, str, bool]]
Graph = list[tuple[str, Values, References]]
"""Steps with values and references: config path -> the step's number, the path inside it, and whether to wait."""


def build(graph: Graph) -> ExecutorStep:
    steps: list[ExecutorStep] = []
    for name, values, references in graph:
        config: dict[str, Any] = {path: versioned(value) for path, value in values.items()}
        for path, (target, inside, waits) in references.items():
            reference = output_path_of(steps[target], inside or None)
            config[path] = reference if waits else reference.nonblocking()
        steps.append(ExecutorStep(name, None, config))
    return steps[-1]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of up to 12 steps. A chain links at least 8, so records name some steps only by hash."""
    graph: Graph = []
    for number in range(draw(st.integers(2, 12))):
        targets = {number - 1} | draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        references = {
            f"input{target}": (target, draw(st.sampled_from(["", "train"])), draw(st.integers(0, 4)) > 0)
            for target in sorted(targets)
        }
        values = draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(0, 3), min_size=1))
        graph.append((draw(st.sampled_from([f"step{number}", "a", "b"])), values, references))
    return graph


@pytest.mark.slow
@given(graphs(), st.data())
def test_field_that_changed_is_the_only_cause(graph: Graph, data: st.DataObject) -> None:
    other = copy.deepcopy(graph)
    name, values, references = data.draw(st.sampled_from(other))
    field = data.draw(st.sampled_from([*values, *references, "new"]))
    if field in references:
        target, inside, waits = references[field]
        references[field] = (target, inside + "other", waits)
    elif field in values and data.draw(st.booleans()):
        del values[field]
    else:
        values[field] = 10
    before, after = make(build(graph)), make(build(other))
    comparison = Comparison(lookup_in(before, after))
    found = comparison.changes(before[-1].version, after[-1].version)
    assert [(cause.step, cause.where) for cause in found] == [(name, f"config.{field}")]
    assert comparison.changes(before[-1].version, before[-1].version) == []


@st.composite
def graphs_with_another_config(draw: st.DrawFn) -> tuple[list[Described], list[Described]]:
    """Draw a graph that users could write, and the same graph with a new config for one step."""
    graph = draw(any_graph.graphs())
    index = draw(st.integers(0, len(graph) - 1))
    config = any_graph.with_fewer_references(draw(any_graph.configs(index)), [any_graph.MAX_REFERENCES])
    other = dataclasses.replace(graph[index], config=config)
    return graph, [other if described is graph[index] else described for described in graph]


@pytest.mark.slow
@given(graphs_with_another_config())
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_differences_are_found_exactly_where_versions_differ(graphs: tuple[list[Described], list[Described]]) -> None:
    before, after = (make(*any_graph.make_steps(graph)) for graph in graphs)
    comparison = Comparison(lookup_in(before, after))
    for old, new in zip(before, after, strict=False):
        found = comparison.changes(old.version, new.version)
        assert bool(found) == (json.dumps(old.version) != json.dumps(new.version))
        assert sentence(found) and full_text(found)
