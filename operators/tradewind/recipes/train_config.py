"""Config of a training, with its checks, and the paths in its output."""

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
"""For ``ExecutorStep(resumable=...)``: files that an attempt after a preemption continues from."""


@dataclass(frozen=True)
class LmTrainConfig:
    """Model, data and length of a training by ``train_lm``.

    Length, learning rate, batch and sequences have no defaults, since none fits every model.
    """

    cache_path: str
    """Output of ``build_token_cache``."""
    tokenizer_path: str
    """Output of ``train_bpe_tokenizer``; goes into the export too."""
    output_path: str
    """Gets ``checkpoints/``, ``hf/``, ``metrics.jsonl`` and, last of all, ``result.json``."""
    model_size: str = ""
    """A name in ``tradewind.recipes.model_spec.MODEL_SIZES``; not read if ``model`` is given."""
    num_train_steps: int = field(kw_only=True)
    learning_rate: float = field(kw_only=True)
    """Maximum: a tenth of the steps warm up to it, and the rest follows a cosine to a tenth of it."""
    batch_size: int = field(kw_only=True)
    """Sequences per step, over all hosts; a multiple of the number of devices."""
    seq_len: int = field(kw_only=True)
    """Tokens per sequence, at least two; the context length of a model named by its size."""
    weight_decay: float = 0.1
    seed: int = 0
    """Seed of the initial weights and of the order of the data."""
    steps_per_eval: int = 1000
    """Steps between two validations; another one follows the last step."""
    max_eval_batches: int | None = 32
    """Validation batches of each, also for the result's ``eval_loss``; ``None`` means all. It does not count in the
    version of ``train``, since no user would train again for it. ``evaluate`` always takes all."""
    steps_per_checkpoint: int | None = None
    """Steps between permanent checkpoints; ``None`` keeps only the last one of the run."""
    checkpoint_seconds: float = 600.0
    """Seconds between temporary checkpoints: what a preemption can cost."""
    steps_per_line: int = 10
    """Steps between two progress lines."""
    model: Any = None
    """A model config of Levanter's; in a DAG file ``lazy("levanter.models.llama:LlamaConfig", ...)``."""
    initialize_from: str | None = None
    """Begin with the weights of a checkpoint of the same model, at step 0: the output of a training, or one of its
    checkpoints."""
    temporary_checkpoint_path: str | None = None
    """Other path of temporary checkpoints, such as a bucket that removes old files; each training has its own folder
    below it."""
    tensorboard: bool = False
    """Whether to write TensorBoard's event files under ``tensorboard/``."""
    wandb: WandbOptions | None = None
    """A run at Weights & Biases, offline by default."""
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
    "weight_decay": number(minimum=0),
    "seq_len": integer(2),
    "seed": integer(),
    "tensorboard": FLAG,
    "wandb": instance("WandbOptions('project')", WandbOptions).or_none(),
    "levanter": instance("a mapping of settings, such as {'optimizer.beta2': 0.95}", Mapping),
}
"""Valid values of each field but the model."""


def checkpoint_roots(config: LmTrainConfig) -> list[str]:
    """Return the folders of this training's checkpoints, that of permanent ones first."""
    temporary = temporary_checkpoints_path(config)
    return [checkpoints_path(config.output_path), *([temporary] if temporary else [])]


def checkpoints_path(train_path: str) -> str:
    """Return the folder of the permanent checkpoints of the training with that output."""
    return join(train_path, "checkpoints")


def temporary_checkpoints_path(config: LmTrainConfig) -> str | None:
    """Return the folder of temporary checkpoints, if it is another one.

    Outputs under two prefixes can have the same name and share a bucket for temporary files.
    """
    base = config.temporary_checkpoint_path
    return None if base is None else folder_of_training(base, config.output_path)


def folder_of_training(base: str, output_path: str) -> str:
    """Return the folder below ``base`` of that training alone."""
    digest = hashlib.sha256(output_path.encode()).hexdigest()[:8]
    return join(base, f"{basename(output_path)}-{digest}")


def export_path(train_path: str) -> str:
    """Return the path of the training's Hugging Face export."""
    return join(train_path, "hf")


def metrics_path(train_path: str) -> str:
    """Return the path of the training's metrics (see ``tradewind.recipes.metrics.file``)."""
    return join(train_path, "metrics.jsonl")


def result_path(train_path: str) -> str:
    """Return the path of the training's result, which it writes last."""
    return join(train_path, "result.json")


def settings_of(config: LmTrainConfig) -> dict[str, Any]:
    """Return the config as JSON; other types become text."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return settings
