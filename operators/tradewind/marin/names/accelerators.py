"""``marin.resources_utils``: speed of an accelerator's device, and number of chips of a slice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from tradewind.marin.legacy.flops import DEVICE_AVAILABLE_FLOPS

__all__ = [
    "AcceleratorType",
    "FlopDtype",
    "flop_count_per_device_from_accel_type",
    "gcloud_tpu_descriptor_to_jax_name",
    "get_per_device_tpu_flops",
    "get_tpu_type_and_chips",
    "ray_device_name_to_jax_name_map",
]

logger = logging.getLogger(__name__)

AcceleratorType = str
FlopDtype = Literal["bf16", "fp16", "fp32", "int8", "int4", "fp8"]

_SAME_NAMES: Final = ("T4", "A6000", "TRN1", "P100", "P4", "K80", "L4", "L40S", "H20", "A40", "A100")
ray_device_name_to_jax_name_map: Final[Mapping[str, str]] = {
    **{name: name.lower() for name in _SAME_NAMES},
    "H100": "h100-sxm", "H200": "h200-sxm", "H100-PCIE": "h100-pcie", "A100-40G": "a100", "A100-80G": "a100",
    "A10G": "a10", "V100": "v100-pcie", "V100-SXM": "v100-sxm", "V100S-PCIE": "v100s-pcie", "TPU-V3": "tpu v3",
    "TPU-V4": "tpu v4", "TPU-V5LITEPOD": "tpu v5 lite", "TPU-V5P": "tpu v5", "TPU-V6E": "tpu v6 lite",
}  # fmt: skip
"""Ray's accelerator name -> name in the table of speeds."""
gcloud_tpu_descriptor_to_jax_name: Final[Mapping[str, str]] = {
    "v3": "tpu v3", "v4": "tpu v4", "v5litepod": "tpu v5 lite", "v5": "tpu v5", "v5p": "tpu v5",
    "v6lite": "tpu v6 lite",
}  # fmt: skip
"""Google Cloud's TPU generation -> name in the table of speeds. Like Marin's, it lacks ``v6e``."""
_TWO_CORES_A_CHIP: Final = ("v4", "v5")


def flop_count_per_device_from_accel_type(accel_type: Any, dtype: str = "bf16") -> float | None:
    """Return peak floating-point operations per second of a GPU by Ray's name; None if unknown."""
    known = DEVICE_AVAILABLE_FLOPS.get(ray_device_name_to_jax_name_map.get(accel_type, ""), {}).get(dtype)
    if known is None:
        logger.warning("The speed of the accelerator %s in %s is unknown.", accel_type, dtype)
    return known


def get_tpu_type_and_chips(tpu_slice: str) -> tuple[str, int]:
    """Return generation and number of chips of a slice such as ``v4-128``.

    Raises:
        ValueError: The name is not ``<type>-<size>``.
    """
    generation, _, size = tpu_slice.lower().partition("-")
    if not size.isdecimal():
        raise ValueError(f"Invalid TPU name format: {tpu_slice}. Expected format: <type>-<size> (e.g. v4-128)")
    return generation, int(size) // 2 if generation in _TWO_CORES_A_CHIP else int(size)


def get_per_device_tpu_flops(tpu_generation: str, dtype: str = "bf16") -> float:
    """Return peak floating-point operations per second of a TPU device, by generation or slice name.

    Raises:
        ValueError: The speed is unknown.
    """
    generation = tpu_generation.split("-")[0].lower()
    if generation not in gcloud_tpu_descriptor_to_jax_name:
        raise ValueError(f"Unknown TPU type: {generation}. No FLOPS data available.")
    known = DEVICE_AVAILABLE_FLOPS[gcloud_tpu_descriptor_to_jax_name[generation]].get(dtype)
    if known is None:
        raise ValueError(f"Unknown dtype: {dtype} for TPU type: {generation}. No FLOPS data available.")
    return known
