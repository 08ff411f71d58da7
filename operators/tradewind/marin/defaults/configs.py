"""The short configs of Marin's experiments: the user sets some fields, Marin's defaults fill the rest.

Fields, their order and their defaults are those of the experiments of November 2025. DPO is newer: its fields are those
of spring 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.resources import ResourceConfig, TpuPodConfig
from tradewind.marin.names.steps import unversioned
from tradewind.steps import Cpu, Gpu, Hosts, InputName, TpuSlice
from tradewind.steps.paths import is_absolute
from tradewind.text import truncated_repr

__all__ = ["AnnealConfig", "SimpleDPOConfig", "SimpleSFTConfig", "SimpleTrainConfig"]

_OF_TOOTSIE: Final = "checkpoints/llama-8b-tootsie-0.001-19ad63/checkpoints/step-660000"


def check_resources(given: Any) -> None:
    """Raise ``ValueError`` for ``resources`` without a device: the training would run on one CPU."""
    if not isinstance(unversioned(given), (ResourceConfig, Cpu, Gpu, Hosts, TpuSlice)):
        raise ValueError(
            f"resources is {truncated_repr(given)}, which names no device: give TpuSlice, Hosts, Gpu or Cpu, or "
            "Marin's TpuPodConfig, GpuConfig or CpuOnlyConfig."
        )


def check_checkpoint(field: str, given: Any) -> None:
    """Raise ``ValueError`` for a relative checkpoint path: on a cluster it has no defined folder."""
    path = unversioned(given)
    if isinstance(path, str) and not is_absolute(path):
        raise ValueError(
            f"{field} is {truncated_repr(path)}, a relative path: give InputName.hardcoded({truncated_repr(path)}) for "
            "one below the prefix, or the absolute path."
        )


class _Placed:
    """Slice properties that older experiments read from a config."""

    resources: Any

    @property
    def tpu_type(self) -> str | None:
        """TPU type, such as ``v4-128``; None on other devices."""
        return self.resources.tpu_type if isinstance(self.resources, TpuPodConfig) else None

    @property
    def node_count(self) -> int:
        """Number of slices."""
        count = self.resources.slice_count if isinstance(self.resources, TpuPodConfig) else 1
        return count if isinstance(count, int) else max(count)


@dataclass(frozen=True)
class SimpleTrainConfig(_Placed):
    """A training from scratch or from another training's weights.

    For a field that is None, Levanter's default applies, or the default documented at the field.
    """

    resources: Any
    """``TpuPodConfig``, ``GpuConfig`` or ``CpuOnlyConfig``; or ``TpuSlice``, ``Hosts``, ``Gpu`` or ``Cpu``."""
    train_batch_size: Any
    """Sequences per step, or a schedule of ``ScheduleStep``."""
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
    """Decay of the averaged weights; None for no averaging."""
    skip_bad_steps: bool = False
    steps_per_eval: int | None = None
    """Default 1,000."""
    steps_per_export: int = 10000
    """Steps between permanent checkpoints."""
    steps_per_task_eval: int | None = None
    """Default 10,000."""
    steps_per_hf_export: int | None = None
    """Default ``steps_per_export``; -1 for no exports."""
    per_device_eval_parallelism: int | None = None
    max_eval_batches: int | None = None
    initialize_from_checkpoint_path: Any = None
    initialize_from_hf: str | None = None
    reset_data_loader_on_init: bool = True
    """Whether a resumed training reads its data from the start; its step count continues."""
    allow_partial_checkpoint: bool = False
    int8: bool = False
    optimizer_config: Any = None
    """Replaces Adam with the fields above."""
    watch: Any = field(default_factory=lambda: builder().find("levanter.callbacks.watch.WatchConfig")())


@dataclass(frozen=True)
class SimpleSFTConfig:
    """A fine-tuning on one data set or on a mixture."""

    resources: Any
    train_batch_size: Any = 128
    num_train_steps: int = 10000
    learning_rate: float = 5e-6
    tokenizer: str | None = None
    model_name_or_path: str | None = None
    """Initial weights in Hugging Face format: a name on the hub or a path."""
    initialize_from_checkpoint_path: Any = None
    """Initial weights from a Levanter training."""
    max_seq_len: int = 4096
    """Not used: a value that is set must equal the model's."""
    weight_decay: float = 0.0
    warmup: float = 0.03
    cooldown: float = 0.0
    """Fraction of the training during which the learning rate falls."""
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
    """Which of the two weights to start from; by default the one that is set."""
    node_count: int = 1
    int8: bool = False
    z_loss_weight: float = 0.0
    reinit_tokens: list[str] | bool = False


@dataclass(frozen=True)
class SimpleDPOConfig:
    """A training on preferences: direct preference optimization."""

    resources: Any
    train_batch_size: Any = 128
    """Pairs per step, or a schedule of ``ScheduleStep``."""
    num_train_steps: int = 10000
    learning_rate: float = 1e-6
    wandb_project: str | None = None
    """Default ``marin``."""
    tokenizer: str | None = None
    model_name_or_path: str | None = None
    """Initial weights in Hugging Face format: a name on the hub or a path."""
    initialize_from_checkpoint_path: Any = None
    """Initial weights from a Levanter training."""
    reference_model_path: Any = None
    """Reference model for the preferences; default: the initial weights."""
    reference_is_hf: bool = True
    """Whether the reference is in Hugging Face format instead of a Levanter checkpoint."""
    beta: float = 0.1
    """Reward per nat of log-probability: a higher value keeps the model closer to the reference."""
    validation_split_fraction: float | None = 0.1
    """Fraction of the pairs held out for validation; None to use the data's validation split."""
    train_seq_len: int | None = None
    """Maximum tokens of one conversation; default: the model's."""
    max_seq_len: int = 4096
    """Not used: any other value is refused."""
    weight_decay: float = 0.0
    warmup: float = 0.0
    cooldown: float | None = None
    """Fraction of the training during which the learning rate falls."""
    lr_schedule: str = "linear"
    min_lr_ratio: float = 0.0
    max_grad_norm: float | None = 1
    steps_per_eval: int = 1000
    steps_per_checkpoint: int = 1000
    steps_per_hf_export: int = 500
    hf_save_dtype: str | None = None
    hf_generation_eos_token_ids: list[int] | None = None
    """Tokens that end a generation, for the exports; a chat model's include its end-of-message token."""
    per_device_eval_parallelism: int = -1
    seed: int = 0
    initialize_from_hf: bool | None = None
    """Which of the two weights to start from; by default the one that is set."""
    allow_partial_checkpoint: bool = False
    int8: bool = False
    adapter: Any = None
    """``lazy("levanter.adaptor:LoraAdaptorConfig", ...)`` to train only the adapter."""
    reference: Any = None
    """Levanter's config of the reference; replaces the two fields above."""
    reference_eval_cache: Any = None
    """Levanter's ``ReferenceEvalCacheConfig``: whether one reference evaluation serves all validations."""


@dataclass(frozen=True)
class AnnealConfig(_Placed):
    """Repeat the end of a ``llama_8b`` training on other data, with a learning rate that falls to 0."""

    DEFAULT_CHECKPOINT_PATH: ClassVar[InputName] = InputName.hardcoded(_OF_TOOTSIE)
    LLAMA_MAX_SEQ_LEN: ClassVar[int] = 4096

    dataset_config: Any
    initialize_from_checkpoint_path: Any = DEFAULT_CHECKPOINT_PATH
    """Ends with ``step-N``; the steps count on from N."""
    learning_rate: float = 1e-3
    """Learning rate at the checkpoint."""
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.05
    lr_schedule: str = "linear"
    train_batch_size: int = 1024
    num_anneal_training_tokens: int = 50_000_000_000
    resources: Any = TpuPodConfig(tpu_type="v4-128", slice_count=2)
    steps_per_export: int = 10000
    use_default_validation: bool = True
