"""Slices and engine settings of Marin's evaluations (``experiments.evals.resource_configs``, ``engine_configs``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "DEFAULT_LM_EVAL_MODEL_KWARGS",
    "DEFAULT_VLLM_ENGINE_KWARGS",
    "SINGLE_TPU_V4_8",
    "SINGLE_TPU_V4_16",
    "SINGLE_TPU_V5p_8",
    "SINGLE_TPU_V5p_8_FULL",
    "SINGLE_TPU_V6E_8",
    "TPU_V4_8",
    "TPU_V4_16_STRICT_PACK",
    "TPU_V6E_8_STRICT_PACK",
    "ResourceConfig",
]


@dataclass
class ResourceConfig:
    """Chips that an evaluation of Marin's asked Ray for. Here, its ``tpu_type`` is the slice, and all of it is used."""

    num_tpu: int
    tpu_type: str
    """Ray's name of the type, such as ``TPU-v4-8``."""
    strategy: str
    include_head_in_scheduling_strategy: bool = False


TPU_V4_8: Final = ResourceConfig(4, "TPU-v4-8", "STRICT_PACK")
SINGLE_TPU_V4_8: Final = ResourceConfig(1, "TPU-v4-8", "STRICT_PACK")
SINGLE_TPU_V4_16: Final = ResourceConfig(2, "TPU-v4-16", "STRICT_PACK")
SINGLE_TPU_V5p_8: Final = ResourceConfig(1, "TPU-v5p-8", "STRICT_PACK")
SINGLE_TPU_V5p_8_FULL: Final = ResourceConfig(4, "TPU-v5p-8", "STRICT_PACK", include_head_in_scheduling_strategy=True)
SINGLE_TPU_V6E_8: Final = ResourceConfig(1, "TPU-v6e-8", "STRICT_PACK")
TPU_V6E_8_STRICT_PACK: Final = ResourceConfig(8, "TPU-v6e-8", "STRICT_PACK")
TPU_V4_16_STRICT_PACK: Final = ResourceConfig(8, "TPU-v4-16", "PACK")

DEFAULT_VLLM_ENGINE_KWARGS: Final[dict[str, Any]] = {"max_model_len": 4096}
DEFAULT_LM_EVAL_MODEL_KWARGS: Final[dict[str, Any]] = {**DEFAULT_VLLM_ENGINE_KWARGS, "max_gen_toks": 4096}
