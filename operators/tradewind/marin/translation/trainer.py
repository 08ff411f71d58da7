"""The trainer's config: its mesh and its profiler have configs of their own today."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tradewind.calls.references import Reference
from tradewind.marin.translation.given import Given

_REPLICAS: Final = ["replica_dcn", "replica"]
"""What ``replica`` was: copies of the model in a slice and across slices, which are two axes today."""
_PROFILER: Final = {
    "profiler": "enabled", "profiler_start_step": "start_step", "profiler_num_steps": "num_steps",
    "profiler_perfetto_link": "perfetto_link",
}  # fmt: skip


def as_profiler(given: Given, values: dict[str, Any], known: Collection[str]) -> None:
    """When a profile is taken."""
    if "profiler_start_step" not in known:
        profiler = Reference("levanter.callbacks.profiler", "ProfilerConfig").load()
        values["profiler"] = profiler(**{new: given.take(old) for old, new in _PROFILER.items()})


def as_mesh(given: Given, values: dict[str, Any], known: Collection[str]) -> None:
    """Which axes of arrays lie along which axes of devices."""
    if "mesh" not in known:
        return
    mesh = Reference("levanter.utils.mesh", "MeshConfig").load()
    batch = given.take("batch_axis")
    shared = {axis: _today(devices) for axis, devices in given.take("axis_resources").items() if axis != batch}
    parameters = {axis: _today(devices) for axis, devices in given.take("parameter_axis_resources").items()}
    slices = given.take("replica_dcn_axis_size")
    values["mesh"] = mesh(
        axes={"data": -1, "replica": given.take("replica_ici_axis_size"), "model": given.take("model_axis_size")},
        dcn_axes={"replica_dcn": slices if slices > 1 else -1},
        batch_axis_name=batch,
        shared_mapping={**shared, **dict.fromkeys(given.take("tensor_parallel_axes") or (), "model")},
        param_mapping={**parameters, **_sharded(given.take("fsdp_axis"))},
    )


def _sharded(axes: str | list[str] | None) -> Mapping[str, str]:
    """Axes of parameters that are split among the devices that have different data."""
    return dict.fromkeys([axes] if isinstance(axes, str) else axes or (), "data")


def _today(devices: Any) -> Any:
    """Axes of devices by their names today."""
    if isinstance(devices, str):
        return _REPLICAS if devices == "replica" else devices
    return [name for axis in devices for name in (_REPLICAS if axis == "replica" else [axis])]
