"""What a training is: its config, the paths in its output, and what can be refused by looking at the config alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tradewind.datasets.files import basename, join
from tradewind.recipes.lm.overrides import check_names
from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.recipes.model_spec import MODEL_SIZES, check_context
from tradewind.steps import VersionedValue
from tradewind.steps.fields import FLAG, PATH, TEXT, check_fields, instance, integer, number, one_of

RESUMABLE = ("checkpoints/**", "metrics.jsonl", "tensorboard/**", "wandb/**")
"""For ``ExecutorStep(resumable=...)``: what an attempt after a preemption goes on from."""


@dataclass(frozen=True)
class LmTrainConfig:
    """What ``train_lm`` trains, on what, and for how long.

    Length, learning rate, batch and sequences have no defaults: none fits every model.
    """

    cache_path: str
    """Output of ``build_token_cache``."""
    tokenizer_path: str
    """Output of ``train_bpe_tokenizer``; goes into the export too."""
    output_path: str
    """Gets ``checkpoints/``, ``hf/``, ``metrics.jsonl`` and, last of all, ``result.json``."""
    model_size: str = ""
    """A name in ``tradewind.recipes.model_spec.MODEL_SIZES``; not read when there is a ``model``."""
    num_train_steps: int = field(kw_only=True)
    learning_rate: float = field(kw_only=True)
    """The highest one: a tenth of the steps warm up to it, the rest follows a cosine down to a tenth of it."""
    batch_size: int = field(kw_only=True)
    """Sequences per step, over all hosts; a multiple of the number of devices."""
    seq_len: int = field(kw_only=True)
    """Tokens per sequence, at least the two that one prediction needs; the context length of a model that is named by
    its size."""
    weight_decay: float = 0.1
    seed: int = 0
    """Of the initial weights and of the order of the data."""
    steps_per_eval: int = 1000
    """Steps between two validations; there is one at the end too."""
    max_eval_batches: int | None = 32
    """Validation batches in each of these; ``None`` means all. ``eval_loss`` of the result is of as many; it does not
    count in the version of ``train``, since nobody would train anew for it. ``evaluate`` always takes all."""
    steps_per_checkpoint: int | None = None
    """Steps between checkpoints that are kept for good; ``None`` keeps only the last one of the run."""
    checkpoint_seconds: float = 600.0
    """Seconds between temporary checkpoints, which serve to resume: what a preemption can cost."""
    steps_per_line: int = 10
    """Steps between two progress lines."""
    model: Any = None
    """A model config of Levanter's; in a DAG file ``lazy("levanter.models.llama:LlamaConfig", ...)``."""
    initialize_from: str | None = None
    """Begin with the weights of a checkpoint of the same model, at step 0: the output of a training, or one of its
    checkpoints."""
    temporary_checkpoint_path: str | None = None
    """Where temporary checkpoints go instead, such as a bucket that removes old files; each training has a folder of
    its own below it."""
    tensorboard: bool = False
    """Whether to write TensorBoard's event files under ``tensorboard/``."""
    wandb: WandbOptions | None = None
    """A run at Weights & Biases, offline unless told otherwise."""
    levanter: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of Levanter's by path; see ``tradewind.recipes.lm.overrides``."""

    def __post_init__(self) -> None:
        check_fields(self, **_RULES, model_size=one_of(MODEL_SIZES) if self.model is None else TEXT)
        check_context(self.model, self.seq_len)
        levanter = self.levanter.value if isinstance(self.levanter, VersionedValue) else self.levanter
        if isinstance(levanter, Mapping):
            check_names(levanter)


_RULES: Final = {
    **dict.fromkeys(("cache_path", "tokenizer_path", "output_path"), PATH),
    **dict.fromkeys(("initialize_from", "temporary_checkpoint_path"), PATH.or_none()),
    **dict.fromkeys(("num_train_steps", "batch_size", "steps_per_eval", "steps_per_line"), integer(1)),
    **dict.fromkeys(("steps_per_checkpoint", "max_eval_batches"), integer(1).or_none()),
    **dict.fromkeys(("learning_rate", "checkpoint_seconds"), number(above=0)),
    "weight_decay": number(least=0),
    "seq_len": integer(2),
    "seed": integer(),
    "tensorboard": FLAG,
    "wandb": instance("WandbOptions('project')", WandbOptions).or_none(),
    "levanter": instance("a mapping of settings, such as {'optimizer.beta2': 0.95}", Mapping),
}
"""What each field takes, but for the model."""


def checkpoint_roots(config: LmTrainConfig) -> list[str]:
    """The folders that hold this training's checkpoints: the permanent ones' first."""
    temporary = temporary_checkpoints_path(config)
    return [checkpoints_path(config.output_path), *([temporary] if temporary else [])]


def checkpoints_path(train_path: str) -> str:
    """Where the training with that output keeps its checkpoints."""
    return join(train_path, "checkpoints")


def temporary_checkpoints_path(config: LmTrainConfig) -> str | None:
    """Where the training keeps its temporary checkpoints, if that is another folder.

    Outputs under two prefixes can have the same name, and share a bucket for temporary files.
    """
    base = config.temporary_checkpoint_path
    return None if base is None else folder_of_training(base, config.output_path)


def folder_of_training(base: str, output_path: str) -> str:
    """A folder below ``base`` that is that training's alone."""
    digest = hashlib.sha256(output_path.encode()).hexdigest()[:8]
    return join(base, f"{basename(output_path)}-{digest}")


def export_path(train_path: str) -> str:
    """Where the training with that output puts its Hugging Face export."""
    return join(train_path, "hf")


def metrics_path(train_path: str) -> str:
    """Where the training with that output writes its metrics (see ``tradewind.recipes.metrics.file``)."""
    return join(train_path, "metrics.jsonl")


def result_path(train_path: str) -> str:
    """Where the training with that output writes its result: the last thing it does."""
    return join(train_path, "result.json")


def settings_of(config: LmTrainConfig) -> dict[str, Any]:
    """The config as JSON; what JSON does not know is told as text."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return settings
