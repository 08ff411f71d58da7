"""``marin.speedrun.speedrun``: author, configuration, cost and steps of a speedrun.

``experiments.*`` are the user's own files. They are imported late, under the import map of the experiment.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from tradewind.marin.legacy.classes import declare_marin_module
from tradewind.marin.legacy.tokenizers import SIZES
from tradewind.marin.legacy.training_methods import BatchSchedule

__all__ = ["Author", "SpeedrunConfig", "SpeedrunResultsConfig"]

logger = logging.getLogger(__name__)

_BACKWARD = 2
"""Cost of a backward pass in forward passes."""


@dataclass(frozen=True)
class Author:
    """The user who submits a speedrun."""

    name: str
    affiliation: str
    url: str | None = None


def _default_dataset() -> Any:
    try:
        return _users("experiments.speedrun.prebuilt_caches").fineweb_edu_subcache_10B
    except ModuleNotFoundError:
        raise ValueError(
            "tokenized_dataset is missing, and no experiments/speedrun/prebuilt_caches.py has the default: give a step "
            "that makes a token cache."
        ) from None


def _users(name: str) -> Any:
    return importlib.import_module(name)


@dataclass
class SpeedrunConfig:
    """A speedrun: model, training and data."""

    author: Author
    description: str
    model_config: Any
    train_config: Any
    tokenized_dataset: Any = field(default_factory=_default_dataset)

    @property
    def vocab_size(self) -> int:
        """Return the size of the Llama 3 vocabulary, from the user's files if available."""
        try:
            return int(_users("experiments.llama").llama3_tokenizer_vocab_size)
        except ModuleNotFoundError:  # no checkout
            return SIZES["meta-llama/Meta-Llama-3.1-8B"][1]

    @property
    def device_flops(self) -> float:
        """Return peak floating-point operations per second of one device."""
        return float(self.train_config.resources.device_flops())

    @property
    def num_devices(self) -> int:
        """Return the number of devices of all slices."""
        return int(self.train_config.resources.total_device_count())

    def compute_model_flops(self) -> float:
        """Return the floating-point operations of the whole training, forward and backward."""
        steps, batch = self.train_config.num_train_steps, self.train_config.train_batch_size
        if isinstance(batch, list) and batch:
            tokens = BatchSchedule(batch).global_data_offset_by_step(steps) * self.model_config.seq_len
        else:
            tokens = batch * self.model_config.seq_len * steps
        of_token = self.model_config.flops_per_token(self.vocab_size)
        return float(of_token * (1 + _BACKWARD) * tokens)

    def as_json_dict(self) -> dict[str, Any]:
        """Return the fields that JSON can represent."""
        return {
            "author": dataclasses.asdict(self.author),
            "description": self.description,
            "model_config": dataclasses.asdict(self.model_config),
            "train_config": _without(self.train_config, "resources", "runtime_env"),
            "tokenized_dataset": str(self.tokenized_dataset),
            "resources": _without(self.train_config.resources, "runtime_env"),
        }

    def print_run_info(self) -> None:
        """Log the configuration and its cost."""
        flops = self.compute_model_flops()
        params = self.model_config.total_trainable_params(self.vocab_size)
        logger.info("Speedrun: %s", json.dumps(self.as_json_dict(), indent=1, default=str))
        logger.info(
            "%d devices of %.2e FLOP/s; the model has %.2f million parameters and costs %.2e FLOP.",
            self.num_devices, self.device_flops, params / 1e6, flops,
        )  # fmt: skip


@dataclass
class SpeedrunResultsConfig:
    """Config of the results step of a speedrun."""

    wandb_run_id: Any
    wandb_entity: str
    wandb_project: str
    speedrun_config: SpeedrunConfig
    output_path: Any


def _without(config: Any, *excluded: str) -> dict[str, Any]:
    """Convert a dataclass to a dictionary, without some of its own fields."""
    bare = {spec.name: getattr(config, spec.name) for spec in dataclasses.fields(config) if spec.name not in excluded}
    return {name: _bare(value) for name, value in bare.items()}


def _bare(value: Any) -> Any:
    is_config = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return _without(value) if is_config else value


declare_marin_module("marin.speedrun.speedrun", Author, SpeedrunConfig, SpeedrunResultsConfig)
