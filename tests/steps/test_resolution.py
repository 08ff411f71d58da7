"""Resolution of experiments: identity, paths, invalid input."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tradewind.steps import (
    ExecutorStep,
    ExperimentError,
    InputName,
    MissingPrefixError,
    OutputPathConflictError,
    ParseTimeValues,
    RunValues,
    StepConfigError,
    UnknownRunValueError,
    lazy,
    night,
    output_path_of,
    resolve,
    run_param,
    this_output_path,
    versioned,
)
from tradewind.steps.run_values import RunPath


@dataclass(frozen=True)
class Config:
    a: Any = None
    b: Any = None


def step(name: str, a: Any = None, b: Any = None, **kwargs: Any) -> ExecutorStep:
    return ExecutorStep(name, None, Config(a, b), **kwargs)


def hash_of(wanted: ExecutorStep, binding: Any = None) -> str:
    return resolve([wanted], "/p", binding).of(wanted).hash


# ---- contents of a version


def test_lazy_object_hashes_as_the_real_dataclass() -> None:
    fields = {"a": versioned(64), "b": output_path_of(step("source", versioned(3)))}
    assert hash_of(step("s", Config(**fields))) == hash_of(step("s", lazy("some.module:Config", **fields)))


def test_steps_below_a_promoted_one_are_needed_too() -> None:
    grand = step("grand")
    parent = step("parent", grand)
    first, second = step("first", parent.nonblocking()), step("second", parent)
    experiment = resolve([first, second], "/p")
    assert [resolved.name for resolved in experiment.needed([first, second])] == ["grand", "parent", "first", "second"]
    assert [resolved.name for resolved in experiment.needed([first])] == ["first"]


# ---- values of a run


def test_run_value_counts_only_under_versioned() -> None:
    monday, tuesday = (RunValues(night=datetime.date(2026, 11, day)) for day in (16, 17))
    free, bound = step("s", night()), step("s", versioned(night()))
    assert hash_of(free, monday) == hash_of(free, tuesday)
    assert hash_of(bound, monday) != hash_of(bound, tuesday)
    assert resolve([bound], "/p", monday).of(bound).config.a == datetime.date(2026, 11, 16)


def test_run_value_inside_versioned_container_is_filled_in() -> None:
    wanted = step("s", versioned({"lr": [run_param("lr")]}))
    resolved = resolve([wanted], "/p", RunValues(params={"lr": 0.1})).of(wanted)
    assert resolved.config.a == {"lr": [0.1]}
    assert '"a": {"lr": [0.1]}' in resolved.version_json


@pytest.mark.parametrize(
    ("given", "path", "version"),
    [("a/b", "/p/a/b", '"a/b"'), ("gs://x/y", "gs://x/y", '"gs://x/y"'), (None, None, "null")],
)
def test_path_of_a_run_is_an_input_below_the_prefix(given: Any, path: Any, version: str) -> None:
    wanted = step("s", RunPath(run_param("model")))
    resolved = resolve([wanted], "/p", RunValues(params={"model": given})).of(wanted)
    assert resolved.config.a == path
    assert f'"a": {version}' in resolved.version_json
    assert resolved.run_paths == (() if path is None else (("a", path),))


@pytest.mark.parametrize("given", [7, "", ["a"]])
def test_path_of_a_run_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(StepConfigError, match=r"Step 's': config\.a: run_param\('model'\) is .*: give a path"):
        resolve([step("s", RunPath(run_param("model")))], "/p", RunValues(params={"model": given}))


@pytest.mark.parametrize("binding", [RunValues(params={"lr": 1}), ParseTimeValues(frozenset({"lr"}))])
def test_param_missing_from_dag_is_refused_with_step_and_field(binding: Any) -> None:
    expected = r"Step 's': config\.a: run_param\('rate'\) is not a param .* has lr"
    with pytest.raises(UnknownRunValueError, match=expected):
        resolve([step("s", versioned(run_param("rate")))], "/p", binding)
    with pytest.raises(UnknownRunValueError, match=r"Step 's': config\.b: night\(\) has no value in this run"):
        resolve([step("s", None, night())], "/p", RunValues())


def test_placeholder_of_no_text_is_refused_where_it_is_written() -> None:
    for make in (run_param, this_output_path, step("s").cd, InputName.hardcoded):
        with pytest.raises(ExperimentError, match=r"but (got|is) \['a'\]\."):
            make(["a"])  # type: ignore[arg-type, operator]


# ---- values without a stable identity


def function() -> None: ...


class Opaque:
    """An object whose only text is its address."""


Letters = enum.Enum("Letters", {"VOWELS": frozenset({"a", "e", "i"}), "NESTED": (1, {"b", "c"})})
OfDagFile = type("OfDagFile", (), {"__module__": "unusual_prefix_0123456789abcdef0123456789abcdef01234567_my_dag"})
OfScript = type("OfScript", (), {"__module__": "__main__"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (function, "config.a is the function function"),
        (lambda: None, "config.a is the function"),
        (len, "config.a is the function len"),
        ({1, 2}, "config.a is a set"),
        ([1, frozenset({1})], r"config.a.\[1\] is a set"),
        ({"k": [this_output_path()]}, r"config.a.k.\[0\] holds OutputName"),
        ([InputName.hardcoded("x")], r"config.a.\[0\] holds InputName"),
        (Config(b=step("other")), "config.a.b holds ExecutorStep"),
        (lazy("m:C"), "config.a holds Lazy"),
        (Opaque(), "config.a is a Opaque, whose only text is its address"),
        (Letters.VOWELS, "config.a.value is a set, whose order differs"),
        ([Letters.NESTED], r"config.a.\[0\].value.\[1\] is a set, whose order differs"),
        (
            OfDagFile,
            "config.a counts as its text \"<class 'unusual_prefix_.*, whose module has another name",
        ),
        ({"k": OfScript}, "config.a.k counts as its text \"<class '__main__.OfScript'>\""),
        (list[OfDagFile], r"config.a counts as its text 'list\[unusual_prefix_"),
    ],
)
def test_versioned_value_without_identity_is_refused_with_path(value: Any, message: str) -> None:
    with pytest.raises(StepConfigError, match=f"Step 's': {message}"):
        resolve([step("s", versioned(value))], "/p")


@pytest.mark.parametrize("value", [Opaque, b"__main__", pathlib.PurePath("/x/__main__.py"), "__main__"])
def test_importable_class_and_generated_like_name_hash_as_text(value: Any) -> None:
    assert str(value) in resolve([step("s", versioned(value))], "/p").steps[0].version_json


def test_unversioned_set_or_derived_field_is_refused() -> None:
    @dataclass(frozen=True)
    class Derived:
        a: int = dataclasses.field(default=1, init=False)

    with pytest.raises(StepConfigError, match=r"Step 's': config\.b is a set of 2 elements"):
        resolve([step("s", None, {"x", "y"})], "/p")
    with pytest.raises(StepConfigError, match=r"Step 's': config \(.*Derived\)"):
        resolve([ExecutorStep("s", None, Derived())], "/p")


# ---- paths across steps


def test_different_steps_with_one_output_path_are_refused() -> None:
    first = step("first", versioned(1), override_output_path="shared/place")
    second = step("second", versioned(2), override_output_path="shared/place/")
    with pytest.raises(OutputPathConflictError, match="Steps 'first' .* and 'second' .* write to /p/shared/place"):
        resolve([first, second], "/p")


@pytest.mark.parametrize("path", ["made/here", "made/here/part", "/p/made/here"])
def test_step_that_reads_its_own_output_is_refused(path: str) -> None:
    with pytest.raises(ExperimentError, match=r"Step 'loop' reads its own output: config\.a .* 'loop' → 'loop'"):
        resolve([step("loop", InputName.hardcoded(path), override_output_path="made/here")], "/p")


def test_cycle_through_other_steps_is_refused_with_its_members() -> None:
    first = step("first", InputName.hardcoded("made/last"), override_output_path="made/first")
    middle = step("middle", first)
    last = step("last", middle, override_output_path="made/last")
    with pytest.raises(ExperimentError, match=r"'first' reads its own output: config\.a is .* of 'last'") as caught:
        resolve([last], "/p")
    assert {"'first'", "'middle'", "'last'"} <= set(str(caught.value).replace(".", " ").split())


def test_hardcoded_path_of_other_step_without_cycle_is_accepted() -> None:
    made = step("made", override_output_path="made/here")
    resolve([made, step("reader", InputName.hardcoded("made/here/x"))], "/p")


@pytest.mark.parametrize("prefix", [None, ""])
def test_missing_prefix_is_refused_with_advice(prefix: str | None) -> None:
    with pytest.raises(MissingPrefixError, match="TRADEWIND_PREFIX"):
        resolve([step("s")], prefix)


@pytest.mark.parametrize("name", ["", "/abs", "a/../b", " padded", "a//b", "https://me:hunter2@host/x"])
def test_unusual_name_is_warned_about_without_password(name: str, caplog: pytest.LogCaptureFixture) -> None:
    resolve([step(name)], "/p")
    shown = name.replace("me:hunter2", "(not shown)")
    assert f"The step name {shown!r} makes an unusual output path" in caplog.text and "hunter2" not in caplog.text


# ---- cost


def chain(length: int) -> ExecutorStep:
    last = step("s0", versioned(0))
    for number in range(1, length):
        last = step(f"s{number}", output_path_of(last), versioned(number))
    return last


def lattice(layers: int) -> ExecutorStep:
    left, right = step("left", versioned(0)), step("right", versioned(0))
    for number in range(layers):
        left, right = (step(f"{side}{number}", left, right) for side in ("left", "right"))
    return step("end", left, right)


def fan(width: int) -> ExecutorStep:
    root = step("root")
    return step("end", [step(f"leaf{number}", root, versioned(number)) for number in range(width)])


@pytest.mark.slow
@pytest.mark.parametrize(("build", "size", "count"), [(chain, 3000, 3000), (lattice, 1000, 2003), (fan, 3000, 3002)])
def test_hashed_text_grows_with_steps_not_paths(build: Callable[[int], ExecutorStep], size: int, count: int) -> None:
    experiment = resolve([build(size)], "/p")
    assert len(experiment.steps) == count
    assert sum(len(resolved.version_json) for resolved in experiment.steps) < 600 * count


# ---- placeholders in texts


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (step("a"), r"step / 'part', or output_path_of\(step, 'part'\)"),
        (step("a") / "part", r"step / 'part', or output_path_of\(step, 'part'\)"),
        (this_output_path(), r"this_output_path\('part'\)"),
    ],
)
def test_output_path_cannot_be_part_of_a_text(value: Any, advice: str) -> None:
    with pytest.raises(ExperimentError, match=rf"so it cannot be part of a text: write {advice}\."):
        f"{value}/train"


@pytest.mark.parametrize("value", [night(), run_param("n")])
def test_run_value_cannot_be_part_of_a_text(value: Any) -> None:
    for put in (lambda: f"data-{value}", lambda: "data-{}".format(value), lambda: f"{value:>9}"):  # noqa: UP032
        with pytest.raises(ExperimentError, match=r"\) has no value yet, so it cannot be part of a text: give it to"):
            put()
    assert str(value) in ("night()", "run_param('n')")


# ---- even_if_failed


def test_even_if_failed_keeps_version_and_dependency() -> None:
    made = step("made", versioned(1))
    strict, lenient = (resolve([step("r", of)], "/p").steps[-1] for of in (made / "f", (made / "f").even_if_failed()))
    assert strict.version_json == lenient.version_json
    assert [each.name for each in lenient.dependencies] == ["made"]
    assert (strict.needed, lenient.needed) == (strict.dependencies, ())


def test_equal_steps_require_an_input_if_one_does() -> None:
    made = step("made", versioned(1))
    readers = [step("r", reference) for reference in (made.even_if_failed(), made)]
    for order in (readers, readers[::-1]):
        experiment = resolve(order, "/p")
        assert [each.name for each in experiment.of(order[0]).needed] == ["made"]


@pytest.mark.parametrize("steps", [[3], range(10**12), [None]])
def test_list_with_something_else_than_steps_is_refused(steps: Any) -> None:
    with pytest.raises(ExperimentError, match="An experiment is made of ExecutorSteps, but got (3|0|None)"):
        resolve(steps, "/p")
