"""``marin.execution.executor.ExecutorStep`` with Marin's version and the resources of its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.evaluation.harnesses import LEVANTER_HARNESS
from tradewind.evaluation.marins import resources_of
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

__all__ = ["DPO", "REPLACEMENTS", "MarinStep", "ReplacementFunction", "placement", "replacement_for", "unversioned"]

# Marin's functions that Tradewind replaces, and the resources of their steps.


@dataclass(frozen=True)
class ReplacementFunction:
    """A Tradewind function that takes the config of one of Marin's.

    Attributes:
        name: ``module:qualname``.
        is_placed: Marin's function asks Ray for the devices in its config; the step runs on them instead.
        always: Why it also runs where the checkout's can be imported, if it does.
        resumable: What the next attempt resumes from, unless the step says otherwise.
        otherwise: Where Marin's function runs if its config has no such field.
    """

    name: str
    is_placed: bool = False
    resumable: tuple[str, ...] = ()
    always: str = ""
    otherwise: Resources | None = None


_OF_TRAINING: Final = ("checkpoints/**", "hf/**", "metrics.jsonl", "tensorboard/**", "wandb/**")
_DEVICES: Final = "the step already holds the devices that Marin's function would request from Ray."
_TRAIN: Final = ReplacementFunction("tradewind.recipes.lm.run:run_levanter_train_lm", True, _OF_TRAINING, _DEVICES)
DPO: Final = ReplacementFunction("tradewind.recipes.dpo.run:run_levanter_train_dpo", True, _OF_TRAINING)
"""Marin's function of this name is newer than the supported experiments."""
_ALL: Final = ("**",)
_TOKENIZE: Final = ReplacementFunction("tradewind.datasets.tokenization:tokenize", resumable=_ALL)
_DOWNLOAD_HF: Final = ReplacementFunction("tradewind.datasets.downloads:download_hf", resumable=_ALL)
_DOWNLOAD: Final = ReplacementFunction("tradewind.datasets.downloads:download", resumable=_ALL)
_EVALUATE: Final = ReplacementFunction(
    "tradewind.evaluation.marins:evaluate",
    True,
    (".answers/**", ".tasks/**"),
    "the step already holds the devices, and Marin's harnesses need libraries of their time.",
)
_LOG_PROBS: Final = ReplacementFunction(
    "tradewind.evaluation.log_probs:evaluate_lm_log_probs", True, ("sets/**",), _DEVICES
)
_VISUALIZE: Final = ReplacementFunction(
    "tradewind.evaluation.visualize:visualize_lm_log_probs", True, always=_DEVICES, otherwise=TpuSlice("v4-8")
)
_SPEEDRUN: Final = ReplacementFunction(
    "tradewind.recipes.speedruns.results:report_marins_speedrun",
    always="the training's output contains what Marin's function would request from W&B.",
)
REPLACEMENTS: Final[Mapping[str, ReplacementFunction]] = {
    "marin.training.training:run_levanter_train_lm": _TRAIN,
    "marin.training:run_levanter_train_lm": _TRAIN,
    "marin.processing.tokenize.tokenize:tokenize": _TOKENIZE,
    "marin.processing.tokenize:tokenize": _TOKENIZE,
    "marin.download.huggingface.download_hf:download_hf": _DOWNLOAD_HF,
    "marin.download.huggingface.download:download": _DOWNLOAD,
    "marin.speedrun.speedrun:speedrun_results": _SPEEDRUN,
    "marin.evaluation.log_probs:evaluate_lm_log_probs": _LOG_PROBS,
    "marin.evaluation.visualize:visualize_lm_log_probs": _VISUALIZE,
    "marin.evaluation.run:evaluate": _EVALUATE,
}
"""Marin's function, as in a spec -> Tradewind's."""
_REPLACEMENTS_BY_NAME: Final = {replacement.name: replacement for replacement in (*REPLACEMENTS.values(), DPO)}


def replacement_for(function: Any) -> ReplacementFunction | None:
    """Return the replacement of a step's function, or the function's own entry; None without one."""
    name = _name_of(function)
    return REPLACEMENTS.get(name) or _REPLACEMENTS_BY_NAME.get(name)


def placement(replacement: ReplacementFunction | None, config: Any) -> Resources | None:
    """Return the ``resources``, or ``resource_config``, of a step's config, if they decide where it runs; else None.

    Functions without a replacement ask Ray for devices themselves, as in Marin.
    """
    if replacement is None or not replacement.is_placed:
        return None
    if replacement is _EVALUATE and getattr(config, "evaluator", None) != LEVANTER_HARNESS:
        return None  # a pool serves the model
    field = "resource_config" if replacement in (_EVALUATE, _LOG_PROBS) else "resources"
    match unversioned(getattr(config, field, replacement.otherwise)):
        case TpuPodConfig(tpu_type, slice_count):
            count = unversioned(slice_count)
            return TpuSlice(unversioned(tpu_type), tuple(count) if isinstance(count, list) else count)
        case GpuConfig(gpu_count, _, accelerator_type):
            return Gpu(unversioned(gpu_count), unversioned(accelerator_type))
        case CpuOnlyConfig(num_cpus):
            return Cpu() if num_cpus in (None, logical_cpu_core_count()) else Cpu(unversioned(num_cpus))
        case Cpu() | Gpu() | Hosts() | TpuSlice() as own:
            return own
        case given if given is not None and field == "resource_config":
            return resources_of(given)
    return None


def _name_of(function: Any) -> str:
    if isinstance(function, RemoteFunction):
        function = function.function
    if isinstance(function, ClusterValue):
        found = cluster_reference(function)
        return f"{found.module}:{found.path}" if isinstance(found, ModuleReference) else ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def unversioned(value: Any) -> Any:
    """Return the value without its version wrapper, if it has one."""
    return value.value if isinstance(value, VersionedValue) else value


@dataclass(frozen=True, eq=False, repr=False)
class MarinStep(ExecutorStep):
    """A step with the version that Marin's executor gave it at the time of these experiments.

    Attributes:
        placed: Its resources, if taken from its config; a step derived from it has its own config.
    """

    recipe: Recipe = Recipe.NOVEMBER_2025
    placed: Resources | None = None

    def __post_init__(self) -> None:
        replacement = replacement_for(self.fn)
        if self.resources is None or self.resources is self.placed:
            object.__setattr__(self, "placed", placement(replacement, self.config))
            object.__setattr__(self, "resources", self.placed)
        if replacement is not None and not self.resumable:
            object.__setattr__(self, "resumable", replacement.resumable)
        super().__post_init__()
