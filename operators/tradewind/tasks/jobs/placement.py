"""Translate resources of a step or job to Ray's terms, and refuse those that cannot run there.

A step on a slice is a driver without CPUs that reserves the whole slice. A plain job has no driver, so it can use only
a slice of one host. It takes the slice's head resource, which is free only when the slice is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import (
    ACCELERATOR_TYPE_LABEL,
    POD_TYPE_LABEL,
    TPU_LABELS,
    UnknownSliceTypeError,
    head_resource,
    slice_type,
)
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.steps import (
    Cpu,
    ExecutorStep,
    ExperimentError,
    Gpu,
    HeadNode,
    Hosts,
    Resources,
    TpuSlice,
    requested_slice,
    task_options,
)

DRIVER_CPUS_OF_POD: Final = 0.0
"""CPUs of the driver of a step on slices or several hosts: it only monitors, the hosts do the work."""

_HEAD_RESOURCE: Final = "node:__internal_head__"
_TOUCH: Final = 0.001
"""Amount of a resource to request when only its location matters."""


@dataclass(frozen=True)
class Placement:
    """Where an entrypoint runs: the placement fields of a ``JobRequest``."""

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None

    def fields(self) -> dict[str, Any]:
        """Keyword arguments of ``JobRequest``."""
        return dict(vars(self))


def place_driver(resources: Resources | None) -> Placement:
    """Return where a step's driver runs; one CPU if the step names no resources.

    Raises:
        BadRequestError: It runs in the Airflow worker, so there is no job.
    """
    match resources:
        case None:
            return place_driver(Cpu())
        case Cpu(num_cpus, memory):
            return Placement(num_cpus, memory_bytes=memory)
        case Gpu(count, kind, num_cpus, memory):
            wanted = {f"accelerator_type:{kind}": _TOUCH} if kind else None
            return Placement(num_cpus, float(count), memory, wanted)
        case HeadNode(num_cpus, memory):
            return Placement(num_cpus, memory_bytes=memory, resources={_HEAD_RESOURCE: _TOUCH})
        case TpuSlice() | Hosts():
            return Placement(DRIVER_CPUS_OF_POD)
    raise BadRequestError(
        f"{resources!r} is not a place on a Ray cluster. Use Cpu, Gpu, TpuSlice, Hosts or on_head_node()."
    )


def place_entrypoint(resources: Resources | None) -> Placement:
    """Return where the entrypoint of a plain job runs, which does its work itself.

    Raises:
        BadRequestError: It requests several hosts or slices, or nothing on a cluster.
        UnknownSliceTypeError: There is no such slice type.
    """
    if isinstance(resources, Hosts):
        raise BadRequestError(
            f"A plain job runs on one node, but {resources!r} is a group of nodes. Make it a step with these "
            "resources, which runs on every host, or use Cpu or Gpu."
        )
    if not isinstance(resources, TpuSlice):
        return place_driver(resources)
    shape = slice_type(resources.slice_type)
    if resources.num_slices not in (1, (1,)):
        raise BadRequestError(
            f"A plain job runs on one node, but this one requests num_slices={resources.num_slices!r}. Make it a step, "
            "which runs on every host of every slice."
        )
    if shape.is_multi_host:
        one_host = {"v4": "v4-8", "v5p": "v5p-8"}.get(shape.generation, f"{shape.generation}-8")
        raise BadRequestError(
            f"A {shape.name} slice has {shape.hosts} hosts, but a plain job uses only one. Make it a step with "
            f"resources=TpuSlice({shape.name!r}), which runs on every host, or use a slice of one host such as "
            f"{one_host}."
        )
    return Placement(
        resources={head_resource(shape.name): 1.0, "TPU": float(shape.chips)},
        label_selector={POD_TYPE_LABEL: shape.name},
    )


def check_slice_types(steps: Iterable[ExecutorStep]) -> None:
    """Refuse steps on slices of an unknown type, before any of them runs.

    Raises:
        ExperimentError: A type is unknown; the message names the step and the nearest types.
    """
    for step in steps:
        if isinstance(step.resources, TpuSlice):
            try:
                slice_type(step.resources.slice_type)
            except UnknownSliceTypeError as error:
                raise ExperimentError(f"Step {step.name!r}: resources.slice_type: {error}") from error


def check_function_place(step: ExecutorStep) -> None:
    """Refuse a step whose function requests resources that Ray cannot provide where the step runs.

    Ray would place such a task on any free chips, also on one host of a slice that another step is reserving. That
    slice's work would then wait forever. A function that requests GPUs is valid on ``Cpu``: the step only waits, and
    Ray places the task on a node with GPUs, which can be shared.

    On slices and groups of hosts the function is not a Ray task: it runs in the process on each host. So the amounts
    that it requests have no effect there, and an environment of its own is refused.

    Raises:
        BadRequestError: It requests TPU while the step has none, or the first host alone of a slice with several, or an
            environment on hosts that cannot provide it.
    """
    options = task_options(step.fn)
    if isinstance(step.resources, (TpuSlice, Hosts)) and options.get("runtime_env"):
        raise BadRequestError(
            f"Step {step.name!r}: @remote(runtime_env=...) has no effect on {step.resources!r}, where the function is "
            "a process on each host. Name packages in the step's pip_dependency_groups, and variables in its config."
        )
    option = _tpu_option(options)
    if isinstance(step.resources, TpuSlice):
        head = requested_slice(options)
        is_given = head is not None and head.slice_type == step.resources.slice_type
        if head is not None and is_given and slice_type(head.slice_type).is_multi_host:
            raise BadRequestError(
                f"Step {step.name!r}: its function requests the head of a {head.slice_type} slice (@remote({option})). "
                "Ray calls such a function on the first host only, and a step on every host. Remove the TPU from "
                f"@remote, and give the step resources=TpuSlice({head.slice_type!r}) if every host is meant."
            )
    elif option is not None:
        place = repr(step.resources) if step.resources is not None else "Cpu(), since it names no resources"
        raise BadRequestError(
            f"Step {step.name!r}: its function requests TPU (@remote({option})), but the step runs on {place}. Give "
            "the step resources=TpuSlice('v4-8') or another slice type, and remove the TPU from @remote."
        )


def _tpu_option(options: Mapping[str, Any]) -> str | None:
    """Return the option that requests TPU, as written, or None."""
    for name, amount in (options.get("resources") or {}).items():
        if name == "TPU" or name.upper().startswith(("TPU-", "ACCELERATOR_TYPE:TPU")):
            return f"resources={{{name!r}: {amount}}}"
    if options.get("num_tpus"):
        return f"num_tpus={options['num_tpus']}"
    if str(options.get("accelerator_type") or "").upper().startswith("TPU"):
        return f"accelerator_type={options['accelerator_type']!r}"
    for label, value in (options.get("label_selector") or {}).items():
        if label.startswith(TPU_LABELS) or (label == ACCELERATOR_TYPE_LABEL and str(value).upper().startswith("TPU")):
            return f"label_selector={{{label!r}: {value!r}}}"
    return None
