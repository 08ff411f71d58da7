"""Marin's default for direct preference optimization.

It is younger than the experiments whose versions the other helpers have, so no output of Marin's is found by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tradewind.marin.defaults.configs import SimpleDPOConfig, SimpleTrainConfig, check_checkpoint, check_resources
from tradewind.marin.defaults.data import training_data
from tradewind.marin.defaults.models import check_model
from tradewind.marin.defaults.training import (
    adam_of,
    begins_with_hub,
    class_name,
    during,
    fitting_name,
    steps_of_exports,
    trainer_of,
)
from tradewind.marin.names.functions import DPO, placement
from tradewind.marin.names.steps import MarinStep
from tradewind.recipes.dpo.run import run_levanter_train_dpo
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, lazy, this_output_path
from tradewind.steps.values.shortened import shortened

__all__ = ["default_dpo"]


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
    """A step ``checkpoints/{name}`` that teaches a model which of two conversations is preferred.

    Args:
        name: Of the run; what is longer than 64 characters is cut before its last ``-``.
        tokenized: A step of ``default_tokenize`` with the format ``PreferenceChatLmDatasetFormat``, or its mixture.
        model_config: Levanter's, such as ``llama("llama_150m")``.
        dpo_config: What to begin with, what to compare with, how long, how fast and where.
        tags: For the run at W&B.
        override_output_path: As in ``ExecutorStep``.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``HF_TOKEN`` for weights that the hub shows only some.

    Raises:
        ValueError: What to begin with or to compare with is not given, a field is set that nothing reads, or
            ``tokenized`` says no tokenizer.
    """
    of_hub = begins_with_hub(dpo_config)
    _check_said(dpo_config, of_hub)
    check_checkpoint("initialize_from_checkpoint_path", dpo_config.initialize_from_checkpoint_path)
    if not dpo_config.reference_is_hf:
        check_checkpoint("reference_model_path", dpo_config.reference_model_path)
    check_model(model_config)
    check_resources(dpo_config.resources)
    data = dataclasses.replace(training_data(tokenized, False), permutation_type="feistel")
    given = _as_training(dpo_config)
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
        f"checkpoints/{fitting_name(name)}",
        run_levanter_train_dpo,
        config,
        description=f"Teaches a {class_name(model_config)} preferences{during(dpo_config.num_train_steps)}.",
        override_output_path=override_output_path,
        resources=placement(DPO, dpo_config),
        cluster=cluster,
        secrets=dict(secrets or {}),
    )


def _check_said(given: SimpleDPOConfig, of_hub: bool) -> None:
    """Refuse what would silently mean something else than it says.

    With both kinds of weights Marin's begins with the checkpoint, and compares with the model of the hub.
    """
    if given.max_seq_len != SimpleDPOConfig.max_seq_len:
        raise ValueError(
            f"max_seq_len={shortened(given.max_seq_len)} is not read, as in Marin's: give train_seq_len, or a model "
            "with that context."
        )
    is_compared = given.reference is not None or given.reference_model_path is not None or given.adapter is not None
    if not of_hub and given.model_name_or_path is not None and not is_compared:
        raise ValueError(
            "model_name_or_path and initialize_from_checkpoint_path are both given, and the training begins with the "
            "checkpoint: say with reference_model_path (and reference_is_hf) what preferences are compared with."
        )


def _as_training(given: SimpleDPOConfig) -> SimpleTrainConfig:
    """What it has in common with other trainings."""
    common = {
        field.name: getattr(given, field.name)
        for field in dataclasses.fields(SimpleTrainConfig)
        if hasattr(given, field.name)
    }
    own = {"decay": given.cooldown, "steps_per_export": given.steps_per_checkpoint, "initialize_from_hf": None}
    return SimpleTrainConfig(**common | own)


def _reference(given: SimpleDPOConfig) -> Any:
    if given.reference is not None:
        return given.reference
    path, is_hf = given.reference_model_path or given.model_name_or_path, given.reference_is_hf
    if path is None:
        path, is_hf = given.initialize_from_checkpoint_path, False
    return lazy("levanter.main.train_dpo:SeparateReferenceConfig", model_path=path, is_hf=is_hf)
