"""Versions, hashes and output paths equal those of a second implementation, for any graph."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import pathlib
import posixpath
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.steps import second_hash
from tests.steps.second_hash import Counted, Described, Graph, Group, Mirrored, Node, Noise, OwnOutput, Reference
from tradewind.steps import (
    ExecutorStep,
    InputName,
    lazy,
    mirrored,
    output_path_of,
    resolve,
    this_output_path,
    versioned,
)

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

PREFIX = "gs://bucket/prefix"
MAX_STEPS, MAX_REFERENCES = 9, 3

Point = dataclasses.make_dataclass("Point", ["x", "y"], frozen=True)
Pair = collections.namedtuple("Pair", ["first", "second"])
Color = enum.Enum("Color", {"RED": "red", "GREEN": 2, "LONG": datetime.timedelta(days=2), "BOTH": ("a", 1)})
Word = enum.StrEnum("Word", {"ONE": "one"})
Number = enum.IntEnum("Number", {"ONE": 1})


# ---- build steps from descriptions, and the configs that their functions should receive


def build(node: Node, leaf: Callable[[Any], Any], inside_set: Callable[[Any], Any] | None = None) -> Any:
    """Build the value of ``node``: ``leaf`` builds its leaves, ``inside_set`` those in sets, if they differ."""
    if not isinstance(node, Group):
        return node.value if isinstance(node, Noise) else leaf(node)
    if node.kind == "set":
        return {build(item, inside_set or leaf) for _, item in node.items}
    values = {key: build(item, leaf, inside_set) for key, item in node.items}
    if node.kind == "dict":
        return values
    if node.kind == "dataclass":
        return dataclasses.make_dataclass("Config", list(values), frozen=True)(**values)
    if node.kind == "lazy":
        return lazy("package.module:Config", **values)
    items = [build(item, leaf, inside_set) for _, item in node.items]
    if node.kind == "namedtuple":
        return Pair(*items)
    return items if node.kind == "list" else tuple(items)


def as_written(node: Any, steps: list[ExecutorStep]) -> Any:
    """Return a leaf as users write it."""
    if isinstance(node, Counted):
        return versioned(node.value)
    if isinstance(node, OwnOutput):
        return this_output_path(node.name)
    if isinstance(node, Mirrored):
        return mirrored(as_written(node.inner, steps))
    written: Any
    if node.step is None:
        written = InputName.hardcoded(node.parts[0])
    else:
        step = steps[node.step]
        if node.parts:
            first = node.parts[0]
            written = (step / first, step.cd(first), output_path_of(step, first))[node.style]
        else:
            written = (step, step.as_input_name(), output_path_of(step))[node.style]
    for part in node.parts[1:]:
        written = written / part
    return written if node.blocking else written.nonblocking()


def as_filled(node: Any, graph: Graph, index: int) -> Any:
    """Return a leaf as the step's function receives it."""
    if isinstance(node, Counted):
        return node.value
    if isinstance(node, OwnOutput):
        return inside(second_hash.output_path(graph, index, PREFIX), node.name)
    if isinstance(node, Mirrored):
        return f"mirror://{as_filled(node.inner, graph, index)}"
    name = second_hash.joined(node.parts)
    if node.step is not None:
        return inside(second_hash.output_path(graph, node.step, PREFIX), name)
    return name if name.startswith(("/", "gs://")) else posixpath.join(PREFIX, name)


def inside(path: str, name: str | None) -> str:
    return posixpath.join(path, name) if name else path


def make_steps(graph: Graph) -> list[ExecutorStep]:
    steps: list[ExecutorStep] = []
    for described in graph:
        config = build(described.config, lambda node: as_written(node, steps))
        steps.append(ExecutorStep(described.name, None, config, override_output_path=described.override))
    return steps


# ---- strategies for graphs

names = st.sampled_from(["a", "b", "tok/one", "документы/日本", "x y", 'quo"te', "back\\slash"])
keys = st.sampled_from(["a", "b", "a.b", "b.[0]", "[0]", "é", "", "value"])
fields = st.sampled_from(["a", "b", "c", "value", "naïve"])
parts = st.lists(st.sampled_from(["sub", "ckpt.pt", "a/b", "/abs", "", "é"]), max_size=3).map(tuple)
hardcoded = st.sampled_from(["raw/x", "gs://other/y", "/abs/z", "ünï", "raw/"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([1e20, 1e-5, -0.0, 10**30, *Color, *Word, *Number, int, b"bytes", 1j]),
    st.timedeltas(),
    st.dates(),
    st.datetimes(),
    st.sampled_from([pathlib.Path("p/q"), pathlib.Path("/"), pathlib.Path("é")]),
)


def grown(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw containers of ``values`` that ``versioned`` accepts."""
    lists = st.lists(values, max_size=3)
    kinds_of_keys = [st.text(max_size=3), st.integers(-20, 20), st.floats(allow_nan=False), st.booleans(), st.none()]
    dicts = [st.dictionaries(kind, values, max_size=3) for kind in kinds_of_keys]
    return st.one_of(lists, lists.map(tuple), *dicts, st.builds(Point, values, values), st.builds(Pair, values, values))


contents = st.recursive(scalars, grown, max_leaves=6)


def groups(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def group(kind: str, of_keys: st.SearchStrategy[str], low: int = 0, high: int = 4) -> st.SearchStrategy[Node]:
        pairs = st.lists(st.tuples(of_keys, nodes), min_size=low, max_size=high, unique_by=lambda pair: pair[0])
        return pairs.map(lambda items: Group(kind, tuple(items)))

    def clash(first: Node, second: Node, is_swapped: bool) -> Node:
        """Return two values under one config path; the version uses the last."""
        items = (("a.b", first), ("a", Group("dict", (("b", second),))))
        return Group("dict", items[::-1] if is_swapped else items)

    # The version ignores the keys of sequences, but they must differ.
    numbered = st.integers(0, 99).map(str)
    return st.one_of(
        group("dataclass", fields, 1),
        group("lazy", fields),
        group("dict", keys, 2),
        group("dict", keys),
        st.builds(clash, nodes, nodes, st.booleans()),
        group("list", numbered),
        group("tuple", numbered),
        group("namedtuple", numbered, 2, 2),
        scalars.filter(lambda value: value is not None).map(lambda v: Group("set", (("0", Counted(v)),))),
    )


@functools.cache
def configs(before: int) -> st.SearchStrategy[Node]:
    """Draw a config of a step that follows ``before`` others."""
    hard = st.builds(lambda first, rest: Reference(None, (first, *rest)), hardcoded, parts)
    reference = hard
    if before:
        newest_first = st.integers(0, before - 1).map(lambda back: before - 1 - back)
        reference = st.builds(Reference, newest_first, parts, st.booleans(), st.integers(0, 2))
    mirrors = st.builds(Mirrored, st.one_of(hard, st.sampled_from(["docs/x", "mirrored"]).map(Counted)))
    own = st.sampled_from([None, "", "sub/x"]).map(OwnOutput)
    leaves = st.one_of(contents.map(Counted), reference, reference, hard, mirrors, own, scalars.map(Noise))
    return st.recursive(leaves, groups, max_leaves=8)


def with_fewer_references(node: Node, budget: list[int]) -> Node:
    """Return ``node`` with only its first references, which bounds the length of the recipe's text."""
    if isinstance(node, Group):
        return Group(node.kind, tuple((key, with_fewer_references(item, budget)) for key, item in node.items))
    if not isinstance(node, Reference) or node.step is None:
        return node
    budget[0] -= 1
    return node if budget[0] >= 0 else Noise(None)


rarely = st.sampled_from([False] * 7 + [True])


@st.composite
def graphs(draw: st.DrawFn) -> list[Described]:
    graph: list[Described] = []
    is_chain = draw(st.sampled_from([True, True, False]))
    for index in range(draw(st.integers(6 if is_chain else 1, MAX_STEPS))):
        override = draw(st.sampled_from([None, None, None, f"o/{index}", f"gs://elsewhere/{index}"]))
        if graph and draw(rarely):  # a second definition of the newest or an older step
            again = draw(st.sampled_from([graph[-1], *graph]))
            graph.append(dataclasses.replace(again, override=override))
            continue
        config = draw(configs(index))
        if is_chain and graph:
            link = Reference(index - 1, draw(parts), not draw(rarely), draw(st.integers(0, 2)))
            config = Group("dataclass", (("link", link), ("more", config)))
        graph.append(Described(draw(names), with_fewer_references(config, [MAX_REFERENCES]), override))
    return graph


@pytest.mark.slow
@given(graphs(), st.data())
def test_any_graph_has_the_versions_of_the_second_implementation(graph: list[Described], data: st.DataObject) -> None:
    steps = make_steps(graph)
    roots = [*data.draw(st.lists(st.integers(0, len(graph) - 1), max_size=2)), len(graph) - 1]
    experiment = resolve([steps[root] for root in roots], PREFIX)

    assert [step.version_json for step in experiment.steps] == second_hash.order(graph, roots)
    needed = experiment.needed([steps[root] for root in roots])
    assert {step.version_json for step in needed} == second_hash.needed(graph, roots)
    for step, resolved in experiment.by_object.items():
        index = next(i for i, own in enumerate(steps) if own is step)
        first = next(i for i, own in enumerate(steps) if own is resolved.step)
        assert resolved.version_json == second_hash.version_text(graph, index)
        assert resolved.hash == second_hash.short_hash(graph, index)
        assert resolved.depth == second_hash.depth(graph, index)
        assert resolved.output_path == second_hash.output_path(graph, first, PREFIX)
        filled = functools.partial(as_filled, graph=graph, index=first)
        config = build(graph[first].config, filled, lambda node: as_written(node, steps))
        assert repr(resolved.config) == repr(config)
