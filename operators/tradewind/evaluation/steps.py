"""Make the steps of evaluations, with one function for each harness.

Each step is a small job on one CPU that sends requests to a pool, which it starts if none serves the model yet. So
evaluations of one model share one pool, and where it runs does not count in their versions. The functions refuse what
the harness would find only after the model is served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.evaluation import levanter_harness
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.harnesses import LEVANTER_HARNESS, harness_of
from tradewind.evaluation.lm_eval import check_options
from tradewind.evaluation.marins import resources_of
from tradewind.evaluation.run import ANSWERS, evaluate
from tradewind.evaluation.tasks import EvalTaskConfig, check_tasks
from tradewind.recipes.data.document_sets import path_input
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.serving.config import OWN_MODEL, ServingConfig
from tradewind.steps import ExecutorStep, Hosts, TpuSlice, this_output_path
from tradewind.text import did_you_mean, truncated_repr

COUNTED: Final = ("evals", "max_eval_instances", "apply_chat_template", "generation_params", "seed", "options")
"""Fields of ``EvaluationConfig`` that decide scores: they count in the version if given, as do paths."""
_PATHS: Final = ("model_path", "task_path", "tokenizer")
_STEP_OPTIONS: Final = (
    "description", "override_output_path", "pip_dependency_groups", "cluster", "secrets", "recipe",
)  # fmt: skip
RESUMABLE: Final = (f"{ANSWERS}/**",)


@naming_step
def evaluation_step(name: str, evaluator: str, options: Mapping[str, Any]) -> ExecutorStep:
    """Make the step of a harness.

    Args:
        name: Name of the step.
        evaluator: Name of the harness.
        options: Of ``ExecutorStep`` and ``EvaluationConfig``; ``resources`` are those of an engine.

    Raises:
        ValueError: An option is a field of neither, or a value is invalid.
    """
    given = {field: value for field, value in options.items() if field not in _STEP_OPTIONS}
    known = {each.name for each in dataclasses.fields(EvaluationConfig)} - {"evaluator", "evaluation_path"}
    for field in given:
        if field not in known:
            meant = did_you_mean(field, [*known, *_STEP_OPTIONS])
            raise ValueError(f"{truncated_repr(field)} is no option of an evaluation; {meant}")
    harness_of(evaluator)
    if isinstance(given.get("evals"), (str, list, tuple)):
        given["evals"] = list(_tasks(given["evals"]))
    if evaluator == "lm_evaluation_harness":
        check_options(given.get("options", {}))
    EvaluationConfig(evaluator, evaluation_path="checked here", **{"model_name": None} | given)
    fields = {field: versioned_value(value) if field in COUNTED else value for field, value in given.items()}
    paths = {field: path_input(field, given[field]) for field in _PATHS if given.get(field) is not None}
    _check_model(given.get("serving"), paths.get("model_path"))
    served = {field: _served(given.get(field), field) for field in ("serving", "judge")}
    config = EvaluationConfig(
        evaluator, evaluation_path=this_output_path(), **{"model_name": None} | fields | paths | served
    )
    about = {"description": f"Evaluates {given.get('model_name') or 'a model'} with {evaluator}."}
    placed = {field: options[field] for field in _STEP_OPTIONS if options.get(field) is not None}
    return ExecutorStep(name, evaluate, config, resumable=RESUMABLE, **about | placed)


def _tasks(evals: Any) -> Sequence[EvalTaskConfig]:
    try:
        return check_tasks(evals)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _check_model(serving: Any, model: Any) -> None:
    own = isinstance(serving, ServingConfig) and serving.model != OWN_MODEL
    if own and path_input("serving.model", serving.model) != model:
        raise ValueError(
            f"serving has the model {truncated_repr(serving.model)}, which is not that of model_path: leave it out."
        )


def _served(given: Any, field: str) -> Any:
    """Leave a pool's place out of the version, but not which model answers."""
    if isinstance(given, ServedAddress):
        return dataclasses.replace(given, model=versioned_value(given.model))
    if isinstance(given, ServingConfig):
        if field == "judge" and given.model == OWN_MODEL:
            raise ValueError("judge=ServingConfig(...) has no model: give the one that judges.")
        return dataclasses.replace(given, model=OWN_MODEL if field == "serving" else path_input(field, given.model))
    return None


def evaluate_lm_evaluation_harness(
    model_name: str | None,
    model_path: Any,
    evals: Sequence[EvalTaskConfig | str],
    max_eval_instances: int | None = None,
    engine_kwargs: Mapping[str, Any] | None = None,
    resource_config: Any = None,
    apply_chat_template: bool = False,
    wandb_tags: Sequence[str] | None = None,
    discover_latest_checkpoint: bool = True,
    *,
    name: str | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that measures a model with lm-eval, which sends its requests to a pool that serves it.

    Args:
        model_name: The model's name in results; None for the last part of its path.
        model_path: An export, a training, a checkpoint, or ``hub:ORGANISATION/NAME@COMMIT``.
        evals: Tasks of lm-eval, or of the folder ``task_path``.
        max_eval_instances: Documents of each task at most; None for all.
        engine_kwargs: Options of the engine, if ``serving`` is not given.
        resource_config: Resources of the engine, if ``serving`` is not given.
        apply_chat_template: Whether prompts are conversations in the model's chat template.
        wandb_tags: Tags of the run at W&B, which ``wandb`` asks for.
        discover_latest_checkpoint: No effect: of a training or a folder of exports, the newest is always measured.
        name: Name of the step, by default that of Marin's.
        options: Of ``ExecutorStep`` and ``EvaluationConfig``, such as ``serving``, ``task_path`` and ``seed``.

    Raises:
        ValueError: With the step's name and the field.
    """
    given: dict[str, Any] = {
        "model_name": model_name,
        "model_path": model_path,
        "evals": evals,
        "max_eval_instances": max_eval_instances,
        "engine_kwargs": engine_kwargs,
        "resource_config": resource_config,
        "apply_chat_template": apply_chat_template or None,
        "wandb_tags": wandb_tags,
        "discover_latest_checkpoint": discover_latest_checkpoint,
    }
    fields = {field: value for field, value in given.items() if value is not None}
    step = f"evaluation/lm_evaluation_harness/{model_name}" if name is None else name
    return evaluation_step(step, "lm_evaluation_harness", fields | options)


@naming_step
def _levanter_step(name: str, resources: Any, given: Mapping[str, Any]) -> ExecutorStep:
    placed = resources if isinstance(resources, Hosts) else resources_of(resources)
    if isinstance(placed, TpuSlice) and placed.num_slices != 1:
        raise ValueError(f"resource_config is {truncated_repr(placed)}: a model is measured on one slice, so give one.")
    step = evaluation_step(name, LEVANTER_HARNESS, given)
    return dataclasses.replace(
        step, fn=levanter_harness.evaluate, resources=placed, resumable=levanter_harness.RESUMABLE
    )


def evaluate_levanter_lm_evaluation_harness(
    model_name: str,
    model_path: Any,
    evals: Sequence[EvalTaskConfig],
    resource_config: Any,
    max_eval_instances: int | None = None,
    apply_chat_template: bool = False,
    discover_latest_checkpoint: bool = True,
    *,
    name: str | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that loads a model with Levanter on all hosts of a slice, and measures it there.

    It measures probabilities of given answers, such as multiple choice, without a server.

    Args:
        model_name: The model's name in results.
        model_path: An export, a training, a checkpoint, or ``hub:ORGANISATION/NAME@COMMIT``.
        evals: Tasks of lm-eval, or of the folder ``task_path``.
        resource_config: Where it runs: ``TpuSlice``, ``Hosts``, ``Gpu`` or ``Cpu``; does not count in the version.
        max_eval_instances: Documents of each task at most; None for all.
        apply_chat_template: Whether prompts are conversations in the model's chat template.
        discover_latest_checkpoint: Whether the newest of several exports in a folder is measured.
        name: Name of the step, by default that of Marin's.
        options: Of ``ExecutorStep`` and ``EvaluationConfig``, such as ``task_path``, ``max_context`` and ``seed``. A
            checkpoint without an export needs ``options={"model": lazy("levanter...", ...)}`` and ``tokenizer``.

    Raises:
        ValueError: With the step's name and the field.
    """
    given: dict[str, Any] = {
        "model_name": model_name,
        "model_path": model_path,
        "evals": evals,
        "max_eval_instances": max_eval_instances,
        "apply_chat_template": apply_chat_template or None,
        "discover_latest_checkpoint": discover_latest_checkpoint,
    }
    fields = {field: value for field, value in given.items() if value is not None}
    step = f"evaluation/lm_evaluation_harness_levanter/{model_name}" if name is None else name
    return _levanter_step(step, resource_config, fields | options)


def evaluate_helm(
    model_name: str,
    model_path: Any,
    evals: Sequence[EvalTaskConfig],
    *,
    name: str | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that measures a model with HELM, which runs in an environment of its own.

    Args:
        model_name: The model's name in results.
        model_path: As in ``evaluate_lm_evaluation_harness``.
        evals: HELM's run entries without the model, such as ``EvalTaskConfig("mmlu:subject=anatomy", 5)``.
        name: Name of the step, by default that of Marin's.
        options: Of ``ExecutorStep`` and ``EvaluationConfig``, such as ``serving``, ``network`` and ``task_path``, a
            folder of modules that define tasks of HELM.

    Raises:
        ValueError: With the step's name and the field.
    """
    given = {"model_name": model_name, "model_path": model_path, "evals": evals, "discover_latest_checkpoint": True}
    return evaluation_step(f"evaluation/helm/{model_name}" if name is None else name, "helm", given | options)


def evaluate_alpaca_eval(
    model_name: str,
    model_path: Any,
    resource_config: Any = None,
    engine_kwargs: Mapping[str, Any] | None = None,
    max_eval_instances: int | None = None,
    temperature: float = 0.7,
    *,
    judge: ServedAddress | ServingConfig,
    task_path: Any,
    annotators_config: str | None = None,
    generation_params: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step in which a model answers instructions, and a judge compares its answers with a reference's.

    Args:
        model_name: The model's name in results.
        model_path: As in ``evaluate_lm_evaluation_harness``; its tokenizer needs a chat template.
        resource_config: Resources of the engine, if ``serving`` is not given.
        engine_kwargs: Options of the engine, if ``serving`` is not given.
        max_eval_instances: Number of instructions at most, drawn with ``seed``; None for all.
        temperature: Of the model's answers.
        judge: Any OpenAI-compatible server, with the name of the variable that has its key, or a model to serve.
        task_path: Folder with ``reference_outputs.json``, and ``df_gamed.csv`` if there is one.
        annotators_config: A name of AlpacaEval's, or a folder with ``configs.yaml``.
        generation_params: Further settings of the model's answers, such as ``{"top_p": 0.9, "max_tokens": 512}``.
        name: Name of the step, by default that of Marin's.
        options: Of ``ExecutorStep`` and ``EvaluationConfig``, such as ``serving`` and ``secrets``.

    Raises:
        ValueError: With the step's name and the field.
    """
    given: dict[str, Any] = {
        "model_name": model_name,
        "model_path": model_path,
        "resource_config": resource_config,
        "engine_kwargs": engine_kwargs,
        "max_eval_instances": max_eval_instances,
        "generation_params": {"temperature": temperature, **(generation_params or {})},
        "judge": judge,
        "task_path": task_path,
        "options": None if annotators_config is None else {"annotators_config": annotators_config},
        "discover_latest_checkpoint": True,
    }
    fields = {field: value for field, value in given.items() if value is not None}
    step = f"evaluation/alpaca_eval/{model_name}" if name is None else name
    return evaluation_step(step, "alpaca", fields | options)
