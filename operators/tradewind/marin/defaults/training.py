"""Marin's defaults for training: from scratch, on simulated epochs, fine-tuning, annealing and DPO.

Steps have the names, versions and output paths of Marin's experiments of November 2025, so existing outputs are reused.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from tradewind.marin.defaults.configs import (
    AnnealConfig,
    SimpleDPOConfig,
    SimpleSFTConfig,
    SimpleTrainConfig,
    check_checkpoint,
    check_resources,
)
from tradewind.marin.defaults.data import training_data
from tradewind.marin.defaults.models import check_model, llama
from tradewind.marin.defaults.tasks import CORE_TASKS, MMLU_TASKS, harness
from tradewind.marin.legacy.classes import builder
from tradewind.marin.legacy.tokenizers import known_sizes
from tradewind.marin.names.steps import DPO, MarinStep, placement, unversioned
from tradewind.recipes.dpo.run import run_levanter_train_dpo
from tradewind.recipes.lm.config import LevanterTrainConfig, variables_of
from tradewind.recipes.lm.run import run_levanter_train_lm
from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.recipes.model_spec import context_of
from tradewind.recipes.steps import naming_step, training
from tradewind.recipes.train_config import LmTrainConfig
from tradewind.steps import ExecutorStep, InputName, Lazy, lazy, this_output_path
from tradewind.steps.fields import TEXTS
from tradewind.steps.run_values import RunValue
from tradewind.text import truncated_repr

__all__ = ["default_anneal", "default_sft", "default_train", "simulated_epoching_train"]
logger = logging.getLogger(__name__)

_MAX_NAME: Final = 64
"""Maximum length of a W&B run name, in characters."""
_OF_ADAM: Final = (
    "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm", "warmup", "rewarmup", "decay", "lr_schedule",
    "min_lr_ratio",
)  # fmt: skip
"""``SimpleTrainConfig`` fields that Adam has, with Adam's default for None."""
_STEP_OF: Final = re.compile(r"step-(\d+)/?$")
_COUNTED: Final = {name: getattr(LmTrainConfig, name) for name in ("weight_decay", "seed")}
"""Settings with a default that affects the weights."""

# ``default_train`` without a ``SimpleTrainConfig``: ``train`` with Marin's step names.
#
# Every value that affects the weights is versioned, given or default. Intervals of evaluation, checkpoints and logs are
# not, nor are the resources.


@naming_step
def short_form(
    name: str,
    tokenized: Any,
    model: Any,
    *,
    tokenizer: Any = None,
    tags: Sequence[str] = (),
    of_step: Mapping[str, Any],
    **options: Any,
) -> ExecutorStep:
    """Return the step ``checkpoints/{name}`` of ``train``.

    Args:
        name: The run's name.
        tokenized: The step that made the token cache, or the cache's path.
        model: As in ``tradewind.recipes.steps.train``.
        tokenizer: The tokenizer's step or path; by default the one of ``tokenized``.
        tags: For the run at W&B, if there is one.
        of_step: Fields of ``ExecutorStep``.
        options: Fields of ``LmTrainConfig``, and others of ``ExecutorStep``.

    Raises:
        ValueError: An option is a field of neither, has an invalid value, or no tokenizer is named.
    """
    TEXTS.check("tags", tags)
    wandb = options.get("wandb")
    if isinstance(wandb, WandbOptions) and tags:
        options["wandb"] = dataclasses.replace(wandb, tags=(*wandb.tags, *tags))
    given = {**_COUNTED, **options, **of_step}
    return training("default_train", f"checkpoints/{name}", tokenized, tokenizer, model, given)


@naming_step
def default_train(
    name: str,
    tokenized: Any,
    model_config: Any,
    train_config: SimpleTrainConfig | None = None,
    tags: Sequence[str] = (),
    use_default_validation: bool = True,
    eval_harness_tasks: Sequence[Any] = CORE_TASKS,
    override_output_path: str | None = None,
    *,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
    **settings: Any,
) -> ExecutorStep:
    """Return a step ``checkpoints/{name}`` that trains a language model with Levanter.

    Args:
        name: The run's name. A W&B name over 64 characters is cut before its last ``-``.
        tokenized: A step of ``default_tokenize``, or a mixture (``lm_mixture_data_config``).
        model_config: Levanter's, such as ``llama("llama_150m")``.
        train_config: Length, speed and resources. Without one this is ``tradewind.recipes.steps.train`` with Marin's
            name of the step: ``tokenized`` and ``model_config`` are as there, and ``settings`` are its options. It has
            no validation sets and no tasks.
        tags: For the run at W&B.
        use_default_validation: Whether to validate on Paloma and Uncheatable Eval, too.
        eval_harness_tasks: Tasks to evaluate during the training; ``()`` for none.
        override_output_path: As in ``ExecutorStep``.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``WANDB_API_KEY`` for W&B online.
        settings: Only without ``train_config``.

    Raises:
        ValueError: Two kinds of initial weights are given, or a relative path to some; ``model_config`` is no
            model, ``resources`` have no device, ``tokenized`` names no tokenizer, or a setting is unknown.
    """
    of_step: dict[str, Any] = {
        "override_output_path": override_output_path,
        "cluster": cluster,
        "secrets": dict(secrets or {}),
    }
    if train_config is None:
        return short_form(name, tokenized, model_config, tags=tags, of_step=of_step, **settings)
    if settings:
        raise ValueError(f"default_train({next(iter(settings))}=...) is given beside train_config: set it there.")
    check_model(model_config)
    check_resources(train_config.resources)
    data = training_data(tokenized, use_default_validation)
    config = builder().find("marin.training.training.TrainLmOnPodConfig")(
        train_config=_levanter_config(data, model_config, train_config, tags, eval_harness_tasks),
        resources=train_config.resources,
        output_path=this_output_path(),
    )
    return MarinStep(
        f"checkpoints/{wandb_run_name(name)}",
        run_levanter_train_lm,
        config,
        description=_about(data, model_config, train_config),
        **of_step,
    )


@naming_step
def simulated_epoching_train(
    name: str,
    tokenized: Any,
    model_config: Any,
    train_config: SimpleTrainConfig,
    target_budget: int,
    tags: Sequence[str] = (),
    use_default_validation: bool = True,
    eval_harness_tasks: Sequence[Any] = CORE_TASKS,
    *,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ExecutorStep:
    """Return a short training that sees each data set as often as one of ``target_budget`` tokens would.

    Each set is truncated by the ratio of both lengths. All else is as in ``default_train``.

    Raises:
        ValueError: As ``default_train``, or the model does not state its sequence length.
    """
    length = context_of(model_config)
    if length is None:
        raise ValueError(
            f"model_config is {truncated_repr(model_config)}, which has no max_seq_len, so its tokens cannot be "
            "counted: set it."
        )
    budget = unversioned(train_config.train_batch_size) * train_config.num_train_steps * length
    data = dataclasses.replace(
        training_data(tokenized, use_default_validation), target_budget=target_budget, experiment_budget=budget
    )
    return default_train(
        name, data, model_config, train_config, tags, False, eval_harness_tasks, cluster=cluster, secrets=secrets
    )


@naming_step
def default_sft(
    name: str,
    tokenized: Any,
    model_config: Any,
    sft_config: SimpleSFTConfig,
    tags: Sequence[str] = (),
    *,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ExecutorStep:
    """Return a step ``checkpoints/{name}`` that fine-tunes a model on one data set or on a mixture.

    ``cluster`` and ``secrets`` are as in ``ExecutorStep``: ``HF_TOKEN`` for weights with restricted access on the hub.

    Raises:
        ValueError: Initial weights are missing or requested in an unsupported way, or ``max_seq_len`` is set and
            differs from the model's, which decides.
    """
    of_hub = starts_from_hub_model(sft_config)
    if sft_config.reinit_tokens:
        raise ValueError("reinit_tokens is no option of a training with Levanter: leave it out.")
    _check_length(sft_config, model_config)
    train_config = _as_training(sft_config, sft_config.model_name_or_path if of_hub else None)
    tags = tags if "sft" in tags else [*tags, "sft"]
    step = default_train(name, tokenized, model_config, train_config, tags, False, (), cluster=cluster, secrets=secrets)
    # With this config the training loads the weights and starts at step 0, not at the checkpoint's step.
    config = LevanterTrainConfig(step.config.train_config, this_output_path(), env_vars=variables_of(step.config))
    others: dict[str, Any] = {name: getattr(step, name) for name in ("description", "resources", "cluster", "secrets")}
    return MarinStep(step.name, step.fn, config, **others)


@naming_step
def default_anneal(
    name: str,
    anneal_config: AnnealConfig,
    *,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ExecutorStep:
    """Return a step ``checkpoints/{name}`` that continues ``llama_8b`` from a checkpoint, annealing it.

    The learning rate falls linearly to 0 over the whole training. Its maximum at step 0 is set so that it equals
    ``learning_rate`` at the checkpoint.

    Raises:
        ValueError: The checkpoint's path does not end with its step.
    """
    begin = anneal_config.initialize_from_checkpoint_path
    first = _step_of(begin)
    tokens_of_step = anneal_config.train_batch_size * AnnealConfig.LLAMA_MAX_SEQ_LEN
    more = anneal_config.num_anneal_training_tokens / tokens_of_step
    train_config = SimpleTrainConfig(
        resources=anneal_config.resources,
        train_batch_size=anneal_config.train_batch_size,
        num_train_steps=math.ceil(first + more),
        learning_rate=(first + more) * (anneal_config.learning_rate / more),
        weight_decay=anneal_config.weight_decay,
        min_lr_ratio=anneal_config.min_lr_ratio,
        lr_schedule=anneal_config.lr_schedule,
        steps_per_export=anneal_config.steps_per_export,
        initialize_from_checkpoint_path=begin,
    )
    is_validated, data = anneal_config.use_default_validation, anneal_config.dataset_config
    return default_train(
        name, data, llama("llama_8b"), train_config, (), is_validated, MMLU_TASKS, cluster=cluster, secrets=secrets
    )


def _levanter_config(data: Any, model: Any, given: SimpleTrainConfig, tags: Sequence[str], tasks: Sequence[Any]) -> Any:
    begin, of_hub = given.initialize_from_checkpoint_path, given.initialize_from_hf
    if begin is not None and of_hub is not None:
        raise ValueError(
            "initialize_from_checkpoint_path and initialize_from_hf both name initial weights: give one of them."
        )
    check_checkpoint("initialize_from_checkpoint_path", begin)
    return builder().find("levanter.main.train_lm.TrainLmConfig")(
        data=data,
        trainer=trainer_of(given, tags),
        initialize_from_checkpoint_path=begin if given.reset_data_loader_on_init else None,
        initialize_from_hf=of_hub or False,
        z_loss_weight=given.z_loss_weight,
        model=model,
        optimizer=given.optimizer_config if given.optimizer_config is not None else adam_of(given),
        hf_save_steps=steps_of_exports(given),
        data_seed=given.data_seed,
        eval_harness_steps=given.steps_per_task_eval or 10000,
        eval_harness=harness(tasks or ()),
    )


def steps_of_exports(given: Any) -> int | None:
    """Return the steps between exports; None for no exports."""
    steps = given.steps_per_export if given.steps_per_hf_export is None else given.steps_per_hf_export
    return None if steps == -1 else steps


def trainer_of(given: SimpleTrainConfig, tags: Sequence[str]) -> Any:
    """Return Levanter's trainer config."""
    find = builder().find
    both = (find("haliax.partitioning.ResourceAxis").REPLICA, find("haliax.partitioning.ResourceAxis").DATA)
    averaging, quantized = None, None
    if given.ema_beta is not None:
        averaging = find("levanter.optim.model_averaging.EmaModelAveragingConfig")(beta=given.ema_beta)
    if given.int8:
        quantized = find("haliax.quantization.QuantizationConfig")(int8=True)
    return find("levanter.trainer.TrainerConfig")(
        tracker=find("levanter.tracker.wandb.WandbConfig")(project="marin", tags=[*tags]),
        mp=find("jmp.get_policy")("p=f32,c=bfloat16"),
        train_batch_size=given.train_batch_size,
        num_train_steps=given.num_train_steps,
        steps_per_eval=1000 if given.steps_per_eval is None else given.steps_per_eval,
        checkpointer=find("levanter.checkpoint.CheckpointerConfig")(
            save_interval=timedelta(minutes=10), keep=[{"every": given.steps_per_export}]
        ),
        model_averaging=averaging,
        replica_dcn_axis_size=-1,
        allow_partial_checkpoint=given.allow_partial_checkpoint,
        per_device_eval_parallelism=-1
        if given.per_device_eval_parallelism is None
        else given.per_device_eval_parallelism,
        max_eval_batches=given.max_eval_batches,
        allow_nondivisible_batch_size=True,
        quantization=quantized,
        initialize_from=None if given.reset_data_loader_on_init else given.initialize_from_checkpoint_path,
        watch=given.watch,
        axis_resources={"token": both, "token_repeat": both},
    )


def adam_of(given: SimpleTrainConfig) -> Any:
    """Return Levanter's Adam config."""
    values = {field: getattr(given, field) for field in _OF_ADAM if getattr(given, field) is not None}
    return builder().find("levanter.optim.config.AdamConfig")(
        learning_rate=given.learning_rate,
        cycle_length=given.cycle_length,
        skip_bad_steps=given.skip_bad_steps,
        **values,
    )


def _about(data: Any, model: Any, given: SimpleTrainConfig) -> str:
    model, steps, batch = (unversioned(each) for each in (model, given.num_train_steps, given.train_batch_size))
    if isinstance(model, Lazy) or isinstance(batch, RunValue) or not isinstance(steps, int):
        return f"Trains a {class_name(model)}{training_length(steps)}."
    length = model.max_seq_len if hasattr(model, "max_seq_len") else model.seq_len
    schedule = builder().find("levanter.schedule.BatchSchedule")(batch)
    tokens = schedule.global_data_offset_by_step(steps) * length
    sizes = known_sizes(str(unversioned(data.tokenizer)), None)
    size = f" of {model.total_trainable_params(sizes[0]):,} parameters" if sizes else ""
    return f"Trains a {class_name(model)}{size}{training_length(steps)}, {tokens:,} tokens."


def class_name(model: Any) -> str:
    """Return the class name of a model."""
    given = unversioned(model)
    return given.target.rpartition(":")[2] if isinstance(given, Lazy) else type(given).__name__


def training_length(num_train_steps: Any) -> str:
    """Return the training length for a description; empty if it is known only at run time."""
    steps = unversioned(num_train_steps)
    return f" for {steps:,} steps" if isinstance(steps, int) else ""


def wandb_run_name(name: str) -> str:
    """Return a name that W&B accepts; its end stays, because it distinguishes the runs of a sweep."""
    if len(name) <= _MAX_NAME:
        return name
    head, dash, tail = name.rpartition("-")
    if not dash:
        cut = name[:_MAX_NAME]
    elif len(tail) >= _MAX_NAME:
        cut = tail[:_MAX_NAME]
    else:
        cut = f"{head[: _MAX_NAME - 1 - len(tail)]}-{tail}"
    logger.warning("The run %s is called %s: W&B accepts %d characters.", name, cut, _MAX_NAME)
    return cut


def starts_from_hub_model(given: Any) -> bool:
    """Whether the initial weights are those of ``model_name_or_path``.

    Raises:
        ValueError: The config requests weights that it does not name.
    """
    name, checkpoint = given.model_name_or_path, given.initialize_from_checkpoint_path
    if given.initialize_from_hf is None and name is None and checkpoint is None:
        raise ValueError(
            "model_name_or_path and initialize_from_checkpoint_path are missing: give the initial weights."
        )
    if given.initialize_from_hf is None:
        return name is not None and checkpoint is None
    if given.initialize_from_hf and name is None:
        raise ValueError("initialize_from_hf is True and model_name_or_path is missing: give the initial weights.")
    if not given.initialize_from_hf and checkpoint is None:
        raise ValueError(
            "initialize_from_hf is False and initialize_from_checkpoint_path is missing: give the initial checkpoint."
        )
    return bool(given.initialize_from_hf)


def _check_length(given: SimpleSFTConfig, model: Any) -> None:
    """Check the sequence length: the model's context decides, as in Marin, not ``max_seq_len``."""
    length = context_of(model)
    if length is not None and given.max_seq_len not in (length, SimpleSFTConfig.max_seq_len):
        raise ValueError(
            f"max_seq_len={truncated_repr(given.max_seq_len)} is not used: the model's context of {length} decides. "
            "Give a model with the wanted context."
        )


def _step_of(checkpoint: Any) -> int:
    path = checkpoint.name if isinstance(checkpoint, InputName) else checkpoint
    found = _STEP_OF.search(path) if isinstance(path, str) else None
    if found is None:
        raise ValueError(
            f"initialize_from_checkpoint_path is {truncated_repr(checkpoint)}: give the path of a checkpoint that ends "
            "with its step, such as .../checkpoints/step-660000."
        )
    return int(found[1])


# Marin's default for direct preference optimization.
#
# It is newer than the experiments whose versions the other helpers reproduce, so it reuses no output of Marin's.


@naming_step
def default_dpo(
    name: str,
    tokenized: Any,
    model_config: Any,
    dpo_config: SimpleDPOConfig,
    tags: Sequence[str] = (),
    override_output_path: str | None = None,
    *,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ExecutorStep:
    """Return a step ``checkpoints/{name}`` that trains a model to prefer one of two conversations.

    Args:
        name: The run's name. A W&B name over 64 characters is cut before its last ``-``.
        tokenized: A step of ``default_tokenize`` with the format ``PreferenceChatLmDatasetFormat``, or its mixture.
        model_config: Levanter's, such as ``llama("llama_150m")``.
        dpo_config: Initial weights, reference, length, learning rate and resources.
        tags: For the run at W&B.
        override_output_path: As in ``ExecutorStep``.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``HF_TOKEN`` for weights with restricted access.

    Raises:
        ValueError: Initial weights or reference are missing, an unused field is set, or ``tokenized`` names no
            tokenizer.
    """
    of_hub = starts_from_hub_model(dpo_config)
    _check_unambiguous(dpo_config, of_hub)
    check_checkpoint("initialize_from_checkpoint_path", dpo_config.initialize_from_checkpoint_path)
    if not dpo_config.reference_is_hf:
        check_checkpoint("reference_model_path", dpo_config.reference_model_path)
    check_model(model_config)
    check_resources(dpo_config.resources)
    data = dataclasses.replace(training_data(tokenized, False), permutation_type="feistel")
    given = _as_training(dpo_config, None)
    trainer = trainer_of(given, tags if "dpo" in tags else [*tags, "dpo"])
    project = dpo_config.wandb_project or trainer.tracker.project
    others = {name: getattr(dpo_config, name) for name in ("adapter", "reference_eval_cache")}
    config = LevanterTrainConfig(
        lazy(
            "levanter.main.train_dpo:TrainDpoConfig",
            data=lazy("tradewind.recipes.dpo.pairs:preference_data", mixture=data),
            trainer=dataclasses.replace(trainer, tracker=dataclasses.replace(trainer.tracker, project=project)),
            model=model_config,
            train_seq_len=dpo_config.train_seq_len,
            optimizer=adam_of(given),
            reference=_reference(dpo_config),
            beta=dpo_config.beta,
            initialize_from_hf=dpo_config.model_name_or_path if of_hub else False,
            validation_split_fraction=dpo_config.validation_split_fraction,
            hf_save_steps=steps_of_exports(given),
            hf_save_dtype=dpo_config.hf_save_dtype,
            hf_generation_eos_token_ids=dpo_config.hf_generation_eos_token_ids,
            data_seed=dpo_config.seed,
            initialize_from_checkpoint_path=None if of_hub else dpo_config.initialize_from_checkpoint_path,
            **{name: value for name, value in others.items() if value is not None},
        ),
        this_output_path(),
        auto_build_caches=False,
    )
    return MarinStep(
        f"checkpoints/{wandb_run_name(name)}",
        run_levanter_train_dpo,
        config,
        description=f"Teaches a {class_name(model_config)} preferences{training_length(dpo_config.num_train_steps)}.",
        override_output_path=override_output_path,
        resources=placement(DPO, dpo_config),
        cluster=cluster,
        secrets=dict(secrets or {}),
    )


def _check_unambiguous(given: SimpleDPOConfig, of_hub: bool) -> None:
    """Refuse settings that Marin would silently interpret differently.

    With both kinds of weights, Marin starts from the checkpoint and compares with the hub's model.
    """
    if given.max_seq_len != SimpleDPOConfig.max_seq_len:
        raise ValueError(
            f"max_seq_len={truncated_repr(given.max_seq_len)} is not used, as in Marin: give train_seq_len, or a model "
            "with that context."
        )
    is_compared = given.reference is not None or given.reference_model_path is not None or given.adapter is not None
    if not of_hub and given.model_name_or_path is not None and not is_compared:
        raise ValueError(
            "model_name_or_path and initialize_from_checkpoint_path are both given, and the training starts from the "
            "checkpoint: name the reference with reference_model_path (and reference_is_hf)."
        )


def _as_training(given: SimpleSFTConfig | SimpleDPOConfig, initialize_from_hf: str | None) -> SimpleTrainConfig:
    """Convert the fields shared with other trainings."""
    names = (field.name for field in dataclasses.fields(SimpleTrainConfig))
    common: dict[str, Any] = {name: getattr(given, name) for name in names if hasattr(given, name)}
    own = {"decay": given.cooldown, "steps_per_export": given.steps_per_checkpoint, "data_seed": given.seed}
    return SimpleTrainConfig(**common | own | {"initialize_from_hf": initialize_from_hf})


def _reference(given: SimpleDPOConfig) -> Any:
    if given.reference is not None:
        return given.reference
    path, is_hf = given.reference_model_path or given.model_name_or_path, given.reference_is_hf
    if path is None:
        path, is_hf = given.initialize_from_checkpoint_path, False
    return lazy("levanter.main.train_dpo:SeparateReferenceConfig", model_path=path, is_hf=is_hf)
