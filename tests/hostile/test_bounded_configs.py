"""Endless, oversized or cyclic configs, params, amounts and selections are refused with their field."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import Outcome, attack, attack_all, expect_refusal, named
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
from tradewind.steps import ExperimentError, RunValues, StepConfigError, mirrored, resolve, run_param

NAN, INF = math.nan, math.inf
HUGE = 10**5000


@dataclasses.dataclass
class Node:
    value: Any = None
    other: Any = None


class Level(enum.Enum):
    """An enumeration whose value is too long to write."""

    HUGE = HUGE


class Mute:
    """An object without a text form."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def cyclic(make: Callable[[], Any], put: Callable[[Any, Any], None], inner: Callable[[Any], Any] = lambda x: x) -> Any:
    value = make()
    put(value, inner(value))
    return value


def laughs(wrap: Callable[[list[Any]], Any] = list) -> Any:
    """Nest lists thirty levels deep, each with ten references to the next."""
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
    "a list in itself": lambda: cyclic(list, lambda at, inner: at.append(inner)),
    "a dictionary in itself": lambda: cyclic(dict, lambda at, inner: at.update(me=inner)),
    "a dataclass in itself": lambda: cyclic(Node, lambda at, inner: setattr(at, "value", inner)),
    "a list in a tuple in itself": lambda: cyclic(list, lambda at, inner: at.append(inner), lambda at: (at, at)),
    "a list in a versioned dictionary in itself": lambda: cyclic(
        dict, lambda at, inner: at.update(a=inner), lambda at: [versioned({"b": at})]
    ),
    "a lazy object in itself": lambda: cyclic(lambda: lazy("a:B", x=1), lambda at, inner: at.kwargs.update(x=inner)),
    "two that hold each other": lambda: cyclic(Node, lambda at, inner: setattr(at, "other", inner), Node),
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


def test_unbounded_config_is_refused_by_step_and_path(sandbox: Path) -> None:
    def judge(outcome: Outcome) -> None:
        is_cyclic = "itself" in outcome.name or "each other" in outcome.name
        mentions = ["Step 'train/x'", "config.model", *["contains itself"] * is_cyclic]
        outcome.must_be_refused(StepConfigError, mentions=mentions)

    cases = {name: partial(lambda make: resolved({"model": make()}), make) for name, make in UNBOUNDED.items()}
    attack_all(cases, sandbox, judge, seconds=10)


def test_unbounded_or_non_json_param_is_refused_by_name(sandbox: Path) -> None:
    def use(make: Callable[[], Any]) -> str:
        return resolved({"a": versioned(run_param("lr"))}, params={"lr": make()})

    unbounded = {name: make for name, make in UNBOUNDED.items() if "versioned" not in name and "mirrored" not in name}
    cases = {name: partial(use, make) for name, make in unbounded.items()}
    expect_refusal(cases, sandbox, StepConfigError, mentions=["param 'lr'"])
    non_json = [NAN, INF, -INF, [1.0, NAN], {"a": [INF]}, (NAN,)]
    cases = named(non_json, lambda value: resolved({}, params={"lr": value}))
    expect_refusal(cases, sandbox, StepConfigError, mentions=["param 'lr'", "JSON"])


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (NAN, "NaN"),
        (INF, "Infinity"),
        ([-INF, 1e308], "[-Infinity, 1e+308]"),
        (10**4000, f"{10**4000}"),
        ("\ud800", '"\\ud800"'),
        (nested(90, lambda inner: [inner]), f"{'[' * 90}1{']' * 90}"),
    ],
    ids=["nan", "infinity", "in a list", "4,001 digits", "half a character", "90 levels"],
)
def test_unusual_versioned_value_keeps_its_json_form(value: Any, version: str) -> None:
    step = ExecutorStep("s", print, {"x": versioned(value)})
    expected = f'{{"config": {{"x": {version}}}, "dependencies": [], "name": "s"}}'
    assert resolve([step], "/p").of(step).version_json == expected


def test_config_object_with_failing_str_is_refused_by_path(sandbox: Path) -> None:
    outcome = attack(lambda: resolved({"a": versioned(Mute())}), sandbox)
    outcome.must_be_refused(StepConfigError, mentions=["Step 'train/x'", "config.a"])


def ring(length: int, refer: Callable[[ExecutorStep], Any]) -> ExecutorStep:
    steps = [ExecutorStep(f"s{number}", print, {"inputs": {}}) for number in range(length)]
    for number, step in enumerate(steps):
        step.config["inputs"]["former"] = refer(steps[number - 1])
    return steps[0]


CYCLES: dict[str, Callable[[ExecutorStep], Any]] = {
    "step": lambda step: step,
    "path": lambda step: output_path_of(step, "model"),
    "nonblocking": lambda step: step.nonblocking(),
    "mirrored": lambda step: [mirrored(step / "x")],
}


@pytest.mark.parametrize("kind", CYCLES)
def test_cyclic_steps_are_refused_by_step_and_path(kind: str, sandbox: Path) -> None:
    cases = named([1, 2, 3, 50, 3000], lambda length: resolve([ring(length, CYCLES[kind])], "/prefix"))
    expect_refusal(cases, sandbox, ExperimentError, mentions=["config.inputs.former", "'s0'"])


def chain(length: int, copies: int) -> ExecutorStep:
    step = ExecutorStep("s", print, {})
    for number in range(length):
        step = ExecutorStep(f"s{number}", print, {"former": [step] * copies})
    return step


def test_long_chain_of_steps_is_accepted_and_many_copies_refused(sandbox: Path) -> None:
    attack(lambda: resolve([chain(3000, 1)], "/prefix"), sandbox).must_be_accepted()
    outcome = attack(lambda: resolve([chain(4, 100)], "/prefix"), sandbox)
    outcome.must_be_refused(ExperimentError, mentions=["Step 's2'", "MiB"])


def test_reference_to_a_value_that_is_no_step_is_refused(sandbox: Path) -> None:
    cases = named([7, "data", [1], {}, print, HUGE], lambda other: resolved({"a": output_path_of(other)}))
    expect_refusal(cases, sandbox, ExperimentError, mentions=["config.a"])
    resolved({"a": output_path_of(None)})  # type: ignore[arg-type]


AMOUNTS: dict[str, Callable[[Any], Any]] = {
    "cpus": Cpu,
    "gpus": Gpu,
    "head": on_head_node,
    "hosts": Hosts,
    "gpus of hosts": lambda amount: Hosts(2, gpus=amount),
    "frozen": lambda amount: Hosts(2, frozen_s=amount),
    "preemptions": lambda amount: TpuSlice("v4-8", max_preemptions=amount),
    "failures": lambda amount: TpuSlice("v4-8", max_failures=amount),
    "stall": lambda amount: TpuSlice("v4-8", stall_limit_s=amount),
    "slices": lambda amount: TpuSlice("v4-8", num_slices=(4, amount)),
}


@pytest.mark.parametrize("what", AMOUNTS)
def test_invalid_resource_amount_is_refused_in_one_sentence(what: str, sandbox: Path) -> None:
    values = [NAN, INF, -INF, HUGE, -HUGE, -1, "1" * 6000, [1] * 10_000, None, True, 2**63, b"1"]
    expect_refusal(named(values, AMOUNTS[what]), sandbox, ValueError, mentions=[":"])


@pytest.mark.parametrize("field", ["timeout", "queue_timeout", "connect_timeout", "budget_gb", "host_grace_s"])
def test_non_finite_or_invalid_number_is_refused_by_field_name(field: str, sandbox: Path) -> None:
    def make(amount: Any) -> Any:
        if field == "budget_gb":
            return mirrored("data", amount)
        if field == "host_grace_s":
            return RepairRequest("google", "us-central2-b", "ray", labels={"a": "b"}, settings={field: amount})
        return RayJobOperator(task_id="job", entrypoint="true", **{field: amount})

    cases = named([NAN, INF, -1, HUGE, "1", True, b"1"], make)
    expect_refusal(cases, sandbox, ValueError, mentions=[field, "finite number"])


SELECTIONS: list[Any] = [
    ["(?=x)"], ["(?!x)"], ["(?<=x)y"], [r"(a)\1"], ["(?P<n>a)(?P=n)"], ["(?(1)a|b)"], ["((a{1000}){1000}){1000}"],
    ["(" * 10_000], ["("], ["a{99999999999999999999}"], ["\ud800"], ["x"] * 5000, ["x" * 999] * 500, "x" * 100_000,
    [HUGE], {"a": 1}, [["x"]], None, [None], nested(10_000, lambda inner: [inner]),
]  # fmt: skip


@pytest.mark.parametrize("field", ["run_only", "force"])
def test_invalid_selection_is_refused_by_field_name(field: str, sandbox: Path) -> None:
    cases = named(SELECTIONS, lambda given: Selection(**{field: given}))
    expect_refusal(cases, sandbox, SelectionError, mentions=[field])
    nesting = ["(" * 450 + ")" * 450 + "*"]  # Python's limit depends on the caller
    attack(lambda: Selection(**{field: nesting}), sandbox).must_be_harmless()


assert build_dag  # load first: Airflow starts programs when Python imports it
INVALID: dict[str, Callable[[], Any]] = {
    "deep": UNBOUNDED["lists"],
    "in itself": UNBOUNDED["a list in itself"],
    "laughs": laughs,
    "a whole number": lambda: HUGE,
    "an object": Mute,
}


@pytest.mark.parametrize(
    "argument", ["dag_id", "timezone", "description", "pools", "run_only", "allow_outside", "params"]
)
def test_invalid_dag_argument_is_refused_by_name(argument: str, sandbox: Path) -> None:
    def make(invalid: Callable[[], Any]) -> None:
        value = invalid()
        wrapped = {"pools": {"cpu": value}, "params": {"lr": value}, "run_only": [value], "allow_outside": [value]}
        given: dict[str, Any] = {"dag_id": "d", argument: wrapped.get(argument, value)}
        experiment_dag(steps=[ExecutorStep("s", print, {})], **given)

    mentioned = "param 'lr'" if argument == "params" else argument
    cases = {name: partial(make, invalid) for name, invalid in INVALID.items()}
    expect_refusal(cases, sandbox, ExperimentError, mentions=[mentioned], seconds=8)


def test_invalid_default_or_time_zone_is_refused_by_name(sandbox: Path) -> None:
    def make(**given: Any) -> None:
        experiment_dag("d", [ExecutorStep("s", print, {})], **given)

    defaults: list[Any] = [b"x", {1, 2}, Path("x" * 1_000_000), 1j, NAN, [INF], print, range(10**12)]
    cases = named([*defaults, *map(Param, defaults)], lambda default: make(params={"lr": default}))
    expect_refusal(cases, sandbox, ExperimentError, mentions=["DAG 'd': param 'lr'", "JSON"])
    zones = ["", "Nowhere/At_All", "x" * 100_000, "../../etc/passwd", "a\0b", "\ud800"]
    cases = named(zones, lambda zone: make(timezone=zone))
    expect_refusal(cases, sandbox, ExperimentError, mentions=["time zone", "DAG 'd'"])


@pytest.mark.parametrize("field", ["name", "description"])
def test_invalid_name_or_description_of_step_is_refused(field: str, sandbox: Path) -> None:
    def make(invalid: Callable[[], Any]) -> None:
        ExecutorStep(**{"name": "s", "fn": print, "config": {}} | {field: invalid()})

    cases = {name: partial(make, invalid) for name, invalid in INVALID.items()}
    expect_refusal(cases, sandbox, ExperimentError, mentions=[field])
