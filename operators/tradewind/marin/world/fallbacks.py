"""The helpers of Marin's ``experiments`` package, for files that import them where no checkout has them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

MODULES = frozenset(
    {
        "experiments.anneal_config",
        "experiments.defaults",
        "experiments.evals.task_configs",
        "experiments.llama",
        "experiments.paloma",
        "experiments.simple_sft_config",
        "experiments.simple_train_config",
        "experiments.speedrun.prebuilt_caches",
        "marin.speedrun.speedrun",
    }
)
"""Modules of which we have the names that experiments use most."""


@functools.cache
def names_of(module: str) -> Mapping[str, Any]:
    """Name → ours, of one of ``MODULES``; loaded only where a checkout lacks it."""
    from tradewind.marin.defaults import configs, data, models, speedruns, tasks, training

    sources: Mapping[str, tuple[Any, ...]] = {
        "experiments.anneal_config": (configs,),
        "experiments.defaults": (configs, data, tasks, training),
        "experiments.evals.task_configs": (tasks,),
        "experiments.llama": (models,),
        "experiments.paloma": (data,),
        "experiments.simple_sft_config": (configs,),
        "experiments.simple_train_config": (configs,),
        "experiments.speedrun.prebuilt_caches": (),
        "marin.speedrun.speedrun": (speedruns,),
    }
    names = {name: getattr(source, name) for source in sources[module] for name in source.__all__}
    if models in sources[module]:
        names |= {name: models.llama(name) for name in models.LLAMAS}
    if training in sources[module]:  # other files of Marin's ask for these two
        names |= {"_get_tokenizer_for_train": data.tokenizer_of, "_prepare_data_config": data.training_data}
    if module == "experiments.speedrun.prebuilt_caches":
        return {f"fineweb_edu_subcache_{size}": speedruns.fineweb_edu_subcache(size) for size in ("10B", "10M")}
    return names
