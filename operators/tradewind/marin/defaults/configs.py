"""The short configs of Marin's experiments: what a person says of a training, all else being Marin's default.

Fields, their order and their defaults are those of the experiments of November 2025; for DPO, which is younger, they
are those of spring 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.resources import ResourceConfig, TpuPodConfig
from tradewind.steps import Cpu, Gpu, Hosts, InputName, TpuSlice, VersionedValue
from tradewind.steps.paths import is_absolute
from tradewind.text import truncated_repr

__all__ = ["AnnealConfig", "SimpleDPOConfig", "SimpleSFTConfig", "SimpleTrainConfig"]

_OF_TOOTSIE: Final = "checkpoints/llama-8b-tootsie-0.001-19ad63/checkpoints/step-660000"


def check_resources(given: Any) -> None:
    """Raise ``ValueError`` for ``resources`` that place nothing: the training would run on one CPU."""
    resources = given.value if isinstance(given, VersionedValue) else given
    if not isinstance(resources, (ResourceConfig, Cpu, Gpu, Hosts, TpuSlice)):
        raise ValueError(
            f"resources is {truncated_repr(given)}, which is no place for a training: give TpuSlice, Hosts, Gpu or "
            "Cpu, or Marin's TpuPodConfig, GpuConfig or CpuOnlyConfig."
        )


def check_checkpoint(field: str, given: Any) -> None:
    """Raise ``ValueError`` for a relative path to a checkpoint: on a cluster it is of no folder in particular."""
    path = given.value if isinstance(given, VersionedValue) else given
    if isinstance(path, str) and not is_absolute(path):
        raise ValueError(
            f"{field} is {truncated_repr(path)}, a relative path: give InputName.hardcoded({truncated_repr(path)}) for "
            "one below the prefix, or where it lies in full."
        )


class _Placed:
    """What older experiments ask of a config about its slices."""

    resources: Any

    @property
    def tpu_type(self) -> str | None:
        """Such as ``v4-128``; None on other devices."""
        return self.resources.tpu_type if isinstance(self.resources, TpuPodConfig) else None

    @property
    def node_count(self) -> int:
        """Slices."""
        count = self.resources.slice_count if isinstance(self.resources, TpuPodConfig) else 1
        return count if isinstance(count, int) else max(count)


@dataclass(frozen=True)
class SimpleTrainConfig(_Placed):
    """A training from the beginning, or one that goes on from another's weights.

    Where a field is None, Levanter's own default stands, or the one that is named here.
    """

    resources: Any
    """``TpuPodConfig``, ``GpuConfig`` or ``CpuOnlyConfig``; or ``TpuSlice``, ``Hosts``, ``Gpu`` or ``Cpu``."""
    train_batch_size: Any
    """Sequences of a step, or a schedule of ``ScheduleStep``."""
    num_train_steps: int
    learning_rate: float
    data_seed: int | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    max_grad_norm: float | None = None
    warmup: float | None = None
    decay: float | None = None
    rewarmup: float | None = None
    lr_schedule: str | None = None
    min_lr_ratio: float | None = None
    cycle_length: int | list[int] | None = None
    z_loss_weight: float | None = None
    ema_beta: float | None = None
    """Of the averaged weights, if there are to be some."""
    skip_bad_steps: bool = False
    steps_per_eval: int | None = None
    """Default 1,000."""
    steps_per_export: int = 10000
    """Between checkpoints that stay."""
    steps_per_task_eval: int | None = None
    """Default 10,000."""
    steps_per_hf_export: int | None = None
    """Default ``steps_per_export``; -1 for no exports."""
    per_device_eval_parallelism: int | None = None
    max_eval_batches: int | None = None
    initialize_from_checkpoint_path: Any = None
    initialize_from_hf: str | None = None
    reset_data_loader_on_init: bool = True
    """Whether a training that goes on from a checkpoint reads its data from their beginning; its steps go on."""
    allow_partial_checkpoint: bool = False
    int8: bool = False
    optimizer_config: Any = None
    """Instead of Adam with the fields above."""
    watch: Any = field(default_factory=lambda: builder().find("levanter.callbacks.watch.WatchConfig")())


@dataclass(frozen=True)
class SimpleSFTConfig:
    """A fine-tuning, on one data set or on a mixture."""

    resources: Any
    train_batch_size: Any = 128
    num_train_steps: int = 10000
    learning_rate: float = 5e-6
    tokenizer: str | None = None
    model_name_or_path: str | None = None
    """Weights to begin with, in the form of Hugging Face: a name on the hub or a path."""
    initialize_from_checkpoint_path: Any = None
    """Weights to begin with, of a training with Levanter."""
    max_seq_len: int = 4096
    """Nothing reads it, so one that is set has to be the model's."""
    weight_decay: float = 0.0
    warmup: float = 0.03
    cooldown: float = 0.0
    """Part of the training in which the learning rate falls."""
    lr_schedule: str = "linear"
    min_lr_ratio: float = 0.0
    max_grad_norm: float | None = None
    steps_per_eval: int = 1000
    steps_per_checkpoint: int = 1000
    steps_per_hf_export: int = 500
    mixture_block_size: int = 2048
    stop_strategy: str = "restart"
    seed: int = 0
    initialize_from_hf: bool | None = None
    """Which of the two to begin with; by default the one that is given."""
    node_count: int = 1
    int8: bool = False
    z_loss_weight: float = 0.0
    reinit_tokens: list[str] | bool = False


@dataclass(frozen=True)
class SimpleDPOConfig:
    """A training by preferences: direct preference optimization."""

    resources: Any
    train_batch_size: Any = 128
    """Pairs of a step, or a schedule of ``ScheduleStep``."""
    num_train_steps: int = 10000
    learning_rate: float = 1e-6
    wandb_project: str | None = None
    """Default ``marin``."""
    tokenizer: str | None = None
    model_name_or_path: str | None = None
    """Weights to begin with, in the form of Hugging Face: a name on the hub or a path."""
    initialize_from_checkpoint_path: Any = None
    """Weights to begin with, of a training with Levanter."""
    reference_model_path: Any = None
    """What preferences are compared with; default what the training begins with."""
    reference_is_hf: bool = True
    """Whether the reference is in the form of Hugging Face, and no checkpoint of Levanter's."""
    beta: float = 0.1
    """How much a reward is for a log-probability in nats: the higher, the nearer the model stays to the reference."""
    validation_split_fraction: float | None = 0.1
    """Part of the pairs that is cut off for validation; None for a validation split of the data."""
    train_seq_len: int | None = None
    """Tokens of one conversation at most; default the model's."""
    max_seq_len: int = 4096
    """Nothing reads it, so another value is refused."""
    weight_decay: float = 0.0
    warmup: float = 0.0
    cooldown: float | None = None
    """Part of the training in which the learning rate falls."""
    lr_schedule: str = "linear"
    min_lr_ratio: float = 0.0
    max_grad_norm: float | None = 1
    steps_per_eval: int = 1000
    steps_per_checkpoint: int = 1000
    steps_per_hf_export: int = 500
    hf_save_dtype: str | None = None
    hf_generation_eos_token_ids: list[int] | None = None
    """Tokens that end a generation, for the exports; of a chat model also the one that ends a turn."""
    per_device_eval_parallelism: int = -1
    seed: int = 0
    initialize_from_hf: bool | None = None
    """Which of the two to begin with; by default the one that is given."""
    allow_partial_checkpoint: bool = False
    int8: bool = False
    adapter: Any = None
    """``lazy("levanter.adaptor:LoraAdaptorConfig", ...)`` to train only that."""
    reference: Any = None
    """Levanter's config of the reference, instead of the two fields above."""
    reference_eval_cache: Any = None
    """Levanter's ``ReferenceEvalCacheConfig``: whether the reference is asked once for all validations."""


@dataclass(frozen=True)
class AnnealConfig(_Placed):
    """The end of a training of ``llama_8b`` once more, on other data and with a learning rate that falls to 0."""

    DEFAULT_CHECKPOINT_PATH: ClassVar[InputName] = InputName.hardcoded(_OF_TOOTSIE)
    LLAMA_MAX_SEQ_LEN: ClassVar[int] = 4096

    dataset_config: Any
    initialize_from_checkpoint_path: Any = DEFAULT_CHECKPOINT_PATH
    """Ends with ``step-N``, from which the steps count on."""
    learning_rate: float = 1e-3
    """At the checkpoint."""
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.05
    lr_schedule: str = "linear"
    train_batch_size: int = 1024
    num_anneal_training_tokens: int = 50_000_000_000
    resources: Any = TpuPodConfig(tpu_type="v4-128", slice_count=2)
    steps_per_export: int = 10000
    use_default_validation: bool = True
