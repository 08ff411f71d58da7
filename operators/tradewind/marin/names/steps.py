"""``marin.execution.executor.ExecutorStep``, with the version that Marin gave it, and placed as its config says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.marin.legacy.value_methods import logical_cpu_core_count
from tradewind.marin.names.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig
from tradewind.steps import (
    ClusterValue,
    Cpu,
    ExecutorStep,
    Gpu,
    Hosts,
    ModuleReference,
    Recipe,
    RemoteFunction,
    Resources,
    TpuSlice,
    VersionedValue,
    cluster_reference,
)

__all__ = [
    "DPO",
    "REPLACEMENTS",
    "MarinStep",
    "ReplacementFunction",
    "placement",
    "replacement_for",
]

# Marin's own functions for which there is one of ours, and where a config's resources place the steps of some.


@dataclass(frozen=True)
class ReplacementFunction:
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
_TRAIN: Final = ReplacementFunction("tradewind.recipes.lm.run:run_levanter_train_lm", True, _OF_TRAINING, _DEVICES)
DPO: Final = ReplacementFunction("tradewind.recipes.dpo.run:run_levanter_train_dpo", True, _OF_TRAINING)
"""Marin's of this name is younger than the experiments that are read."""
_ALL: Final = ("**",)
_TOKENIZE: Final = ReplacementFunction("tradewind.datasets.tokenization:tokenize", resumable=_ALL)
_DOWNLOAD_HF: Final = ReplacementFunction("tradewind.datasets.downloads:download_hf", resumable=_ALL)
_DOWNLOAD: Final = ReplacementFunction("tradewind.datasets.downloads:download", resumable=_ALL)
_SPEEDRUN: Final = ReplacementFunction(
    "tradewind.recipes.speedruns.results:report_marins_speedrun",
    always="the training's own output says what Marin's would ask W&B for.",
)
REPLACEMENTS: Final[Mapping[str, ReplacementFunction]] = {
    "marin.training.training:run_levanter_train_lm": _TRAIN,
    "marin.training:run_levanter_train_lm": _TRAIN,
    "marin.processing.tokenize.tokenize:tokenize": _TOKENIZE,
    "marin.processing.tokenize:tokenize": _TOKENIZE,
    "marin.download.huggingface.download_hf:download_hf": _DOWNLOAD_HF,
    "marin.download.huggingface.download:download": _DOWNLOAD,
    "marin.speedrun.speedrun:speedrun_results": _SPEEDRUN,
}
"""Function of Marin's as a spec names it -> ours."""
_OURS_BY_NAME: Final = {ours.name: ours for ours in (*REPLACEMENTS.values(), DPO)}


def replacement_for(function: Any) -> ReplacementFunction | None:
    """Ours in place of a step's function, or if it is one; None if it is none of Marin's for which there is one."""
    name = _name_of(function)
    return REPLACEMENTS.get(name) or _OURS_BY_NAME.get(name)


def placement(ours: ReplacementFunction | None, config: Any) -> Resources | None:
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
    if isinstance(function, ClusterValue):
        way = cluster_reference(function)
        return f"{way.module}:{way.path}" if isinstance(way, ModuleReference) else ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, VersionedValue) else value


@dataclass(frozen=True, eq=False, repr=False)
class MarinStep(ExecutorStep):
    """A step whose version is as Marin's executor wrote it when these experiments were.

    Attributes:
        placed: The resources that it has because its config says so; a step that is made from it has its own config.
    """

    recipe: Recipe = Recipe.NOVEMBER_2025
    placed: Resources | None = None

    def __post_init__(self) -> None:
        ours = replacement_for(self.fn)
        if self.resources is None or self.resources is self.placed:
            object.__setattr__(self, "placed", placement(ours, self.config))
            object.__setattr__(self, "resources", self.placed)
        if ours is not None and not self.resumable:
            object.__setattr__(self, "resumable", ours.resumable)
        super().__post_init__()
