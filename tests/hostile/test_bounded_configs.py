"""Configs, params, amounts and selections without end, beyond measure or within themselves: refused, soon, by place."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import attack
from tradewind import (
    Cpu,
    ExecutorStep,
    Gpu,
    Hosts,
    Param,
    TpuSlice,
    experiment_dag,
    lazy,
    on_head_node,
    output_path_of,
    versioned,
)
from tradewind.deployment.slice_repair import RepairRequest
from tradewind.operators.experiment import build_dag
from tradewind.operators.ray_job import RayJobOperator
from tradewind.plans.selection import Selection, SelectionError
from tradewind.steps import ExperimentError, RunValues, StepConfigError, mirrored, resolve, run_param, truncated_repr

NAN, INF = math.nan, math.inf
HUGE = 10**5000


@dataclasses.dataclass
class Node:
    """A config of a step."""

    value: Any = None
    other: Any = None


class Level(enum.Enum):
    """A value of an enumeration that is too long to write."""

    HUGE = HUGE


class Mute:
    """An object that does not tell what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def looped(make: Callable[[], Any], put: Callable[[Any, Any], None], inner: Callable[[Any], Any] = lambda x: x) -> Any:
    value = make()
    put(value, inner(value))
    return value


def laughs(wrap: Callable[[list[Any]], Any] = list) -> Any:
    """Ten references to what holds ten references, thirty times over."""
    value: Any = ["ha"]
    for _ in range(30):
        value = wrap([value] * 10)
    return value


def resolved(config: Any, **values: Any) -> str:
    step = ExecutorStep("train/x", print, config)
    return resolve([step], "/prefix", RunValues(**values)).of(step).hash


UNBOUNDED = {
    "lists": lambda: nested(10_000, lambda inner: [inner]),
    "tuples": lambda: nested(10_000, lambda inner: (inner,)),
    "dictionaries": lambda: nested(10_000, lambda inner: {"k": inner}),
    "dataclasses": lambda: nested(10_000, Node),
    "lazy objects": lambda: nested(10_000, lambda inner: lazy("a:B", x=inner)),
    "mixed levels": lambda: nested(5_000, lambda inner: [{"k": Node(inner)}]),
    "versioned lists": lambda: versioned(nested(10_000, lambda inner: [inner])),
    "versioned dictionaries": lambda: {"a": versioned(nested(10_000, lambda inner: {"k": inner}))},
    "mirrored lists": lambda: {"a": mirrored(nested(10_000, lambda inner: [inner]))},
    "frozen sets": lambda: nested(10_000, lambda inner: frozenset([inner])),
    "101 levels": lambda: nested(101, lambda inner: [inner]),
    "a list in itself": lambda: looped(list, lambda at, inner: at.append(inner)),
    "a dictionary in itself": lambda: looped(dict, lambda at, inner: at.update(me=inner)),
    "a dataclass in itself": lambda: looped(Node, lambda at, inner: setattr(at, "value", inner)),
    "a list in a tuple in itself": lambda: looped(list, lambda at, inner: at.append(inner), lambda at: (at, at)),
    "a list in a versioned dictionary in itself": lambda: looped(
        dict, lambda at, inner: at.update(a=inner), lambda at: [versioned({"b": at})]
    ),
    "a lazy object in itself": lambda: looped(lambda: lazy("a:B", x=1), lambda at, inner: at.kwargs.update(x=inner)),
    "two that hold each other": lambda: looped(Node, lambda at, inner: setattr(at, "other", inner), Node),
    "laughs": laughs,
    "versioned laughs": lambda: {"a": versioned(laughs())},
    "laughs of tuples": lambda: laughs(tuple),
    "laughs of dictionaries": lambda: laughs(lambda inner: {str(i): one for i, one in enumerate(inner)}),
    "a whole number": lambda: HUGE,
    "a negative whole number": lambda: {"n": -HUGE},
    "a versioned whole number": lambda: {"n": versioned(HUGE)},
    "a whole number as a key": lambda: {"n": {HUGE: 1}},
    "a whole number in an enumeration": lambda: {"n": versioned(Level.HUGE)},
    "a whole number in a lazy object": lambda: lazy("a:B", x=versioned([HUGE])),
    "a text": lambda: "x" * (65 << 20),
    "a versioned text": lambda: {"t": versioned("x" * (65 << 20))},
    "bytes": lambda: {"t": versioned(b"x" * (65 << 20))},
    "a text many times": lambda: {"t": ["x" * (1 << 20)] * 100},
    "a long key above many values": lambda: {"k" * (1 << 20): [1] * 1000},
    "two million values": lambda: {"t": [0] * 2_000_000},
}


def _what_is_said_of(name: str) -> list[str]:
    return ["holds itself"] if "itself" in name or "each other" in name else []


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_config_without_bounds_is_refused_by_step_and_place(name: str, sandbox: Path) -> None:
    config = UNBOUNDED[name]()
    attack(lambda: resolved({"model": config}), sandbox, seconds=10).must_be_refused(
        StepConfigError, mentions=["Step 'train/x'", "config.model", *_what_is_said_of(name)]
    )


@pytest.mark.parametrize("name", [name for name in UNBOUNDED if "versioned" not in name and "mirrored" not in name])
def test_a_param_without_bounds_is_refused_by_name(name: str, sandbox: Path) -> None:
    value = UNBOUNDED[name]()
    attack(lambda: resolved({"a": versioned(run_param("lr"))}, params={"lr": value}), sandbox).must_be_refused(
        StepConfigError, mentions=["param 'lr'"]
    )


@pytest.mark.parametrize("value", [NAN, INF, -INF, [1.0, NAN], {"a": [INF]}, (NAN,)])
def test_a_param_that_json_has_no_form_for_is_refused(value: Any, sandbox: Path) -> None:
    attack(lambda: resolved({}, params={"lr": value}), sandbox).must_be_refused(
        StepConfigError, mentions=["param 'lr'", "JSON"]
    )


@pytest.mark.parametrize(
    ("config", "version"),
    [
        ({"x": versioned(NAN)}, '{"x": NaN}'),
        ({"x": versioned(INF)}, '{"x": Infinity}'),
        ({"x": versioned([-INF, 1e308])}, '{"x": [-Infinity, 1e+308]}'),
        ({"x": versioned(10**4000)}, f'{{"x": {10**4000}}}'),
        ({"x": versioned("\ud800")}, '{"x": "\\ud800"}'),
        ({"x": versioned(nested(90, lambda inner: [inner]))}, f'{{"x": {"[" * 90}1{"]" * 90}}}'),
    ],
    ids=["nan", "infinity", "in a list", "4,001 digits", "half a character", "90 levels"],
)
def test_what_can_be_written_hashes_as_ever(config: Any, version: str) -> None:
    step = ExecutorStep("s", print, config)
    assert resolve([step], "/p").of(step).version_json == f'{{"config": {version}, "dependencies": [], "name": "s"}}'


def test_an_object_that_does_not_tell_what_it_is_is_refused_by_place(sandbox: Path) -> None:
    attack(lambda: resolved({"a": versioned(Mute())}), sandbox).must_be_refused(
        StepConfigError, mentions=["Step 'train/x'", "config.a"]
    )


# ---- cycles of steps


def ring(length: int, refer: Callable[[ExecutorStep], Any]) -> ExecutorStep:
    steps = [ExecutorStep(f"s{number}", print, {"inputs": {}}) for number in range(length)]
    for number, step in enumerate(steps):
        step.config["inputs"]["former"] = refer(steps[number - 1])
    return steps[0]


@pytest.mark.parametrize("length", [1, 2, 3, 50, 3000])
@pytest.mark.parametrize(
    "refer",
    [
        pytest.param(lambda step: step, id="step"),
        pytest.param(lambda step: output_path_of(step, "model"), id="path"),
        pytest.param(lambda step: step.nonblocking(), id="nonblocking"),
        pytest.param(lambda step: [mirrored(step / "x")], id="mirrored"),
    ],
)
def test_steps_in_a_circle_are_refused_by_step_and_place(
    length: int, refer: Callable[[ExecutorStep], Any], sandbox: Path
) -> None:
    first = ring(length, refer)
    attack(lambda: resolve([first], "/prefix"), sandbox).must_be_refused(
        ExperimentError, mentions=["config.inputs.former", "'s0'"]
    )


def test_a_chain_of_steps_may_be_long(sandbox: Path) -> None:
    step = ExecutorStep("s", print, {})
    for number in range(3000):
        step = ExecutorStep(f"s{number}", print, {"former": step})
    attack(lambda: resolve([step], "/prefix"), sandbox).must_be_accepted()


def test_steps_that_refer_to_many_that_refer_to_many_are_refused(sandbox: Path) -> None:
    step = ExecutorStep("s", print, {})
    for number in range(4):
        step = ExecutorStep(f"s{number}", print, {"former": [step] * 100})
    attack(lambda: resolve([step], "/prefix"), sandbox).must_be_refused(ExperimentError, mentions=["Step 's2'", "MiB"])


@pytest.mark.parametrize("other", [7, "data", None, [1], {}, print, HUGE], ids=truncated_repr)
def test_a_reference_to_what_is_no_step_is_refused(other: Any, sandbox: Path) -> None:
    if other is None:
        attack(lambda: resolved({"a": output_path_of(None)}), sandbox).must_be_accepted()  # type: ignore[arg-type]
        return
    attack(lambda: resolved({"a": output_path_of(other)}), sandbox).must_be_refused(
        ExperimentError, mentions=["config.a"]
    )


# ---- amounts


@pytest.mark.parametrize(
    "amount",
    [NAN, INF, -INF, HUGE, -HUGE, -1, "1" * 6000, [1] * 10_000, None, True, 2**63, b"1"],
    ids=truncated_repr,
)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda amount: Cpu(amount), id="cpus"),
        pytest.param(lambda amount: Gpu(amount), id="gpus"),
        pytest.param(lambda amount: on_head_node(amount), id="head"),
        pytest.param(lambda amount: Hosts(amount), id="hosts"),
        pytest.param(lambda amount: Hosts(2, gpus=amount), id="gpus of hosts"),
        pytest.param(lambda amount: Hosts(2, frozen_s=amount), id="frozen"),
        pytest.param(lambda amount: TpuSlice("v4-8", max_preemptions=amount), id="preemptions"),
        pytest.param(lambda amount: TpuSlice("v4-8", max_failures=amount), id="failures"),
        pytest.param(lambda amount: TpuSlice("v4-8", stall_limit_s=amount), id="stall"),
        pytest.param(lambda amount: TpuSlice("v4-8", num_slices=(4, amount)), id="slices"),
    ],
)
def test_an_amount_that_is_none_is_refused_in_a_sentence(
    make: Callable[[Any], Any], amount: Any, sandbox: Path
) -> None:
    attack(lambda: make(amount), sandbox).must_be_refused(ValueError, mentions=[":"])


@pytest.mark.parametrize("amount", [NAN, INF, -1, HUGE, "1", True, b"1"], ids=truncated_repr)
@pytest.mark.parametrize("field", ["timeout", "queue_timeout", "connect_timeout", "budget_gb", "host_grace_s"])
def test_what_cannot_be_waited_for_or_counted_to_is_refused_by_name(field: str, amount: Any, sandbox: Path) -> None:
    def make() -> Any:
        if field == "budget_gb":
            return mirrored("data", amount)
        if field == "host_grace_s":
            return RepairRequest("google", "us-central2-b", "ray", labels={"a": "b"}, settings={field: amount})
        return RayJobOperator(task_id="job", entrypoint="true", **{field: amount})

    attack(make, sandbox).must_be_refused(ValueError, mentions=[field, "finite number"])


# ---- what a run selects


@pytest.mark.parametrize("field", ["run_only", "force"])
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(["(?=x)"], id="lookahead"),
        pytest.param(["(?!x)"], id="negative lookahead"),
        pytest.param(["(?<=x)y"], id="lookbehind"),
        pytest.param([r"(a)\1"], id="reference back"),
        pytest.param(["(?P<n>a)(?P=n)"], id="named reference back"),
        pytest.param(["(?(1)a|b)"], id="condition"),
        pytest.param(["((a{1000}){1000}){1000}"], id="large repetition"),
        pytest.param(["(" * 10_000], id="long"),
        pytest.param(["(" * 450 + ")" * 450 + "*"], id="nested"),
        pytest.param(["("], id="open"),
        pytest.param(["a{99999999999999999999}"], id="overflow"),
        pytest.param(["\ud800"], id="half a character"),
        pytest.param(["x"] * 5000, id="many"),
        pytest.param(["x" * 999] * 500, id="many and long"),
        pytest.param("x" * 100_000, id="a text"),
        pytest.param([HUGE], id="a number"),
        pytest.param({"a": 1}, id="a mapping"),
        pytest.param([["x"]], id="a list in it"),
        pytest.param(None, id="nothing"),
        pytest.param([None], id="nothing in it"),
        pytest.param(nested(10_000, lambda inner: [inner]), id="deep"),
    ],
)
def test_a_selection_that_is_none_is_refused_by_name(field: str, given: Any, sandbox: Path) -> None:
    deed = lambda: Selection(**{field: given})  # noqa: E731
    if given == ["(" * 450 + ")" * 450 + "*"]:
        attack(deed, sandbox).must_be_harmless()  # how deep Python reads depends on who calls
        return
    attack(deed, sandbox).must_be_refused(SelectionError, mentions=[field])


# ---- arguments of a DAG and of a step

assert build_dag  # loaded before anything is tried, since Airflow starts programs when it is imported
ENDLESS: dict[str, Callable[[], Any]] = {
    "deep": UNBOUNDED["lists"],
    "in itself": UNBOUNDED["a list in itself"],
    "laughs": laughs,
    "a whole number": lambda: HUGE,
    "an object": Mute,
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize(
    "argument", ["dag_id", "timezone", "description", "pools", "run_only", "allow_outside", "params"]
)
def test_an_argument_of_a_dag_without_bounds_is_refused_by_name(argument: str, name: str, sandbox: Path) -> None:
    value = ENDLESS[name]()
    given: dict[str, Any] = {"dag_id": "d"}
    given[argument] = {"cpu": value} if argument == "pools" else {"lr": value} if argument == "params" else value
    if argument in ("run_only", "allow_outside"):
        given[argument] = [value]
    steps = [ExecutorStep("s", print, {})]
    mentioned = "param 'lr'" if argument == "params" else argument
    attack(lambda: experiment_dag(steps=steps, **given), sandbox, seconds=8).must_be_refused(
        ExperimentError, mentions=[mentioned]
    )


@pytest.mark.parametrize(
    "default", [b"x", {1, 2}, Path("x" * 1_000_000), 1j, NAN, [INF], print, range(10**12)], ids=truncated_repr
)
@pytest.mark.parametrize("make", [lambda default: default, Param], ids=["plain", "Param"])
def test_a_default_that_json_has_no_form_for_is_refused_by_name(
    default: Any, make: Callable[[Any], Any], sandbox: Path
) -> None:
    steps = [ExecutorStep("s", print, {})]
    attack(lambda: experiment_dag("d", steps, params={"lr": make(default)}), sandbox).must_be_refused(
        ExperimentError, mentions=["DAG 'd': param 'lr'", "JSON"]
    )


@pytest.mark.parametrize(
    "zone", ["", "Nowhere/At_All", "x" * 100_000, "../../etc/passwd", "a\0b", "\ud800"], ids=truncated_repr
)
def test_a_time_zone_that_there_is_not_is_refused_in_a_sentence(zone: str, sandbox: Path) -> None:
    steps = [ExecutorStep("s", print, {})]
    attack(lambda: experiment_dag("d", steps, timezone=zone), sandbox).must_be_refused(
        ExperimentError, mentions=["time zone", "DAG 'd'"]
    )


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("field", ["name", "description"])
def test_a_step_that_is_called_nothing_readable_is_refused(field: str, name: str, sandbox: Path) -> None:
    given = {"name": "s", "fn": print, "config": {}} | {field: ENDLESS[name]()}
    attack(lambda: ExecutorStep(**given), sandbox).must_be_refused(ExperimentError, mentions=[field])
