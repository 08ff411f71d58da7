"""A mesh with axes over several slices, on devices that only stand for slices: in a rehearsal all of them are CPUs.

Levanter asks the devices which slice they are on, and CPUs do not say. Such a mesh has the axes over slices within one.
"""

from __future__ import annotations

import dataclasses
import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levanter.main.train_lm import TrainLmConfig

NUM_SLICES_VARIABLE = "TRADEWIND_NUM_SLICES"


def on_these_devices(made: TrainLmConfig) -> TrainLmConfig:
    """The same config, if need be with such a mesh."""
    import jax
    from levanter.utils.mesh import MeshConfig

    num_slices = int(os.environ.get(NUM_SLICES_VARIABLE) or 1)
    mesh = made.trainer.mesh
    if num_slices == 1 or mesh.dcn_axes == MeshConfig().dcn_axes or hasattr(jax.devices()[0], "slice_index"):
        return made
    fields = {field.name: getattr(mesh, field.name) for field in dataclasses.fields(mesh)}
    simulated = _mesh_class()(**fields, simulated_slices=num_slices)
    return dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, mesh=simulated))


@cache
def _mesh_class() -> Any:
    """Made on first use, since its base class needs Levanter."""
    from levanter.utils.mesh import MeshConfig

    @dataclasses.dataclass(frozen=True)
    class SimulatedSlices(MeshConfig):
        simulated_slices: int = 1

        def axis_shapes(self, num_devices: int, num_slices: int) -> tuple[dict[str, int], dict[str, int]]:
            ici, dcn = super().axis_shapes(num_devices, self.simulated_slices)
            return {**ici, **dcn}, {}

    return SimulatedSlices
