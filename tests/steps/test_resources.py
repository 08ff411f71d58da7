"""Resource values refuse requests that no machine can satisfy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tradewind import Cpu, ExecutorStep, Gpu, Hosts, TpuSlice, on_airflow_worker, on_head_node, versioned
from tradewind.serialization.spec import StepSpec, encode_resources
from tradewind.steps import Resources, resolve

EVERY_KIND: list[Resources] = [
    Cpu(0.5, 10**9),
    Gpu(2, "A100", 8, 10**9),
    TpuSlice("v4-16"),
    TpuSlice("v4-16", num_slices=(4, 2, 1), max_preemptions=7, max_failures=0, stall_limit_s=60.0),
    TpuSlice("v4-16", frozen_s=300.0),
    Hosts(3, num_cpus=2, frozen_s=90.0),
    Hosts(2, gpus=8, gpu_type="H100", max_preemptions=0),
    on_head_node(0.2, 10**6),
    on_airflow_worker(),
]


def spec_with(resources: dict[str, Any]) -> StepSpec:
    return StepSpec("s", "s-1", "/out", "module:function", None, None, resources, False)


@pytest.mark.parametrize("resources", EVERY_KIND)
def test_every_kind_is_read_as_written(resources: Resources) -> None:
    assert StepSpec.from_json(spec_with(encode_resources(resources)).to_json()).load_resources() == resources


def test_spec_of_earlier_version_loads_with_default_budgets() -> None:
    spec = spec_with({"kind": "tpu_slice", "slice_type": "v4-8"})
    assert spec.load_resources() == TpuSlice("v4-8", 1, 1_000_000, 10, 1200.0)


def test_resources_are_outside_the_version() -> None:
    steps = [ExecutorStep("s", print, {"n": versioned(1)}, resources=resources) for resources in [None, *EVERY_KIND]]
    assert len({resolve([step], "/prefix").of(step).hash for step in steps}) == 1


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, True, False, "2"])
@pytest.mark.parametrize("make", [Cpu, Gpu, lambda amount: Gpu(1, num_cpus=amount), on_head_node])
def test_amount_that_no_node_can_have_is_refused(make: Callable[..., Resources], amount: object) -> None:
    with pytest.raises(ValueError, match="needs a number above zero"):
        make(amount)


def test_only_the_head_node_accepts_zero_cpus() -> None:
    assert on_head_node().num_cpus == on_head_node(0).num_cpus == 0
    for make in (Cpu, Gpu, lambda amount: Gpu(1, num_cpus=amount)):
        with pytest.raises(ValueError, match="needs a number above zero"):
            make(0)


@pytest.mark.parametrize("memory", [0, -5, 1.5, True, "1G"])
@pytest.mark.parametrize("make", [Cpu, Gpu, on_head_node])
def test_memory_must_be_a_whole_number_of_bytes(make: Callable[..., Resources], memory: object) -> None:
    with pytest.raises(ValueError, match="give a whole number of bytes"):
        make(memory_bytes=memory)


def test_gpu_has_a_type_and_is_shared_or_whole() -> None:
    assert Gpu(0.5).count == 0.5
    with pytest.raises(ValueError, match=r"Gpu\(count=1.5\): above one, Ray gives only whole GPUs"):
        Gpu(1.5)
    for kind in ("", "A 100", "TPU-V4"):
        with pytest.raises(ValueError, match=r"Gpu\(type="):
            Gpu(type=kind)


def test_counts_of_slices_may_be_a_list_in_any_order() -> None:
    assert TpuSlice("v4-8", num_slices=[1, 4, 2]) == TpuSlice("v4-8", num_slices=(4, 2, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (TpuSlice, "num_slices", [0, -1, 1.5, True, "2", (), (2, 2), (4, 0), (4, "2"), {4}]),
        (TpuSlice, "max_preemptions", [-1, 1.5, True, "3", None]),
        (TpuSlice, "max_failures", [-1, 0.5, False, "3", None]),
        (TpuSlice, "stall_limit_s", [0, -1, math.inf, True, "60"]),
        (TpuSlice, "frozen_s", [0, 1e-9, 9.9, 3601, 1e12, math.nan, math.inf, -60.0, True, "60", None]),
        (TpuSlice, "spare", [0, 1, 2, "yes"]),
        (TpuSlice, "slice_type", ["", None, 4]),
        (Hosts, "count", [0, -1, 1.5, True, "2"]),
        (Hosts, "num_cpus", [0, "2"]),
        (Hosts, "gpus", [-1, 0.5, True]),
        (Hosts, "gpu_type", ["", "TPU-V4", "A100"]),
        (Hosts, "max_preemptions", [-1]),
        (Hosts, "max_failures", [-1]),
        (Hosts, "stall_limit_s", [0]),
        (Hosts, "frozen_s", [0, 1e-9, 1e12, math.nan]),
    ],
)
def test_invalid_value_is_refused_by_field(kind: Any, field: str, values: list[Any]) -> None:
    required = {"slice_type": "v4-8"} if kind is TpuSlice else {"count": 2}
    for value in values:
        with pytest.raises(ValueError, match=rf"{kind.__name__}\({field}="):
            kind(**required | {field: value})
