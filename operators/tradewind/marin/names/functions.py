"""Marin's own functions for which there is one of ours, and where a config's resources place the steps of some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.marin.era.behaviour.values import logical_cpu_core_count
from tradewind.marin.names.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig
from tradewind.steps import (
    Cpu,
    Gpu,
    Hosts,
    Named,
    OnCluster,
    RemoteFunction,
    Resources,
    TpuSlice,
    VersionedValue,
    way_to,
)

__all__ = ["DPO", "OURS", "OwnFunction", "own_function", "placement"]


@dataclass(frozen=True)
class OwnFunction:
    """One of our functions that takes the config of one of Marin's.

    Attributes:
        name: ``module:qualname``.
        is_placed: Marin's asks Ray for the devices in its config. The step runs on them instead.
        always: Why ours runs also where the checkout's can be imported, if it does.
        resumable: What a next attempt goes on from, if the step does not say.
    """

    name: str
    is_placed: bool = False
    resumable: tuple[str, ...] = ()
    always: str = ""


_OF_TRAINING: Final = ("checkpoints/**", "hf/**", "metrics.jsonl", "tensorboard/**", "wandb/**")
_DEVICES: Final = "the step has its devices already, which Marin's own would ask Ray for."
_TRAIN: Final = OwnFunction("tradewind.recipes.lm.run:run_levanter_train_lm", True, _OF_TRAINING, _DEVICES)
DPO: Final = OwnFunction("tradewind.recipes.dpo.run:run_levanter_train_dpo", True, _OF_TRAINING)
"""Marin's of this name is younger than the experiments that are read."""
_ALL: Final = ("**",)
_TOKENIZE: Final = OwnFunction("tradewind.datasets.tokenization:tokenize", resumable=_ALL)
_DOWNLOAD_HF: Final = OwnFunction("tradewind.datasets.downloads:download_hf", resumable=_ALL)
_DOWNLOAD: Final = OwnFunction("tradewind.datasets.downloads:download", resumable=_ALL)
_SPEEDRUN: Final = OwnFunction(
    "tradewind.recipes.speedruns.results:report_marins_speedrun",
    always="the training's own output says what Marin's would ask W&B for.",
)
OURS: Final[Mapping[str, OwnFunction]] = {
    "marin.training.training:run_levanter_train_lm": _TRAIN,
    "marin.training:run_levanter_train_lm": _TRAIN,
    "marin.processing.tokenize.tokenize:tokenize": _TOKENIZE,
    "marin.processing.tokenize:tokenize": _TOKENIZE,
    "marin.download.huggingface.download_hf:download_hf": _DOWNLOAD_HF,
    "marin.download.huggingface.download:download": _DOWNLOAD,
    "marin.speedrun.speedrun:speedrun_results": _SPEEDRUN,
}
"""Function of Marin's as a spec names it -> ours."""
_OURS_BY_NAME: Final = {ours.name: ours for ours in (*OURS.values(), DPO)}


def own_function(function: Any) -> OwnFunction | None:
    """Ours in place of a step's function, or if it is one; None if it is none of Marin's for which there is one."""
    name = _name_of(function)
    return OURS.get(name) or _OURS_BY_NAME.get(name)


def placement(ours: OwnFunction | None, config: Any) -> Resources | None:
    """Where the ``resources`` of a step's config place it; None where they do not.

    Functions other than ``ours`` ask Ray for devices themselves, as with Marin.
    """
    if ours is None or not ours.is_placed:
        return None
    match _plain(getattr(config, "resources", None)):
        case TpuPodConfig(tpu_type, slice_count):
            count = _plain(slice_count)
            return TpuSlice(_plain(tpu_type), tuple(count) if isinstance(count, list) else count)
        case GpuConfig(gpu_count, _, accelerator_type):
            return Gpu(_plain(gpu_count), _plain(accelerator_type))
        case CpuOnlyConfig(num_cpus):
            return Cpu() if num_cpus in (None, logical_cpu_core_count()) else Cpu(_plain(num_cpus))
        case Cpu() | Gpu() | Hosts() | TpuSlice() as own:
            return own
    return None


def _name_of(function: Any) -> str:
    if isinstance(function, RemoteFunction):
        function = function.function
    if isinstance(function, OnCluster):
        way = way_to(function)
        return f"{way.module}:{way.path}" if isinstance(way, Named) else ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, VersionedValue) else value
