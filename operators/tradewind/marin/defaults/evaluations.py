"""Marin's steps of evaluations, ``experiments.evals.evals``, with their versions and paths of November 2025.

Only the tasks of Levanter's harness and the model count in a version, so another list of generation tasks for one model
is the same step. As with Marin, a step ``hf`` of a training is its exports, of which the newest is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.evaluation.marins import evaluate
from tradewind.marin.defaults.eval_resources import DEFAULT_LM_EVAL_MODEL_KWARGS, SINGLE_TPU_V4_8, SINGLE_TPU_V6E_8
from tradewind.marin.defaults.tasks import (
    BASE_GENERATION_TASKS,
    CORE_TASKS,
    CORE_TASKS_PLUS_LEADERBOARD,
    KEY_GENERATION_TASKS,
    KEY_MULTIPLE_CHOICE_TASKS,
    MMLU_0_SHOT,
    MMLU_5_SHOT,
    MMLU_PRO_5_SHOT,
    OPEN_LM_LEADERBOARD_GEN,
    OPEN_LM_LEADERBOARD_MCQ,
)
from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.steps import MarinStep
from tradewind.steps import ExecutorStep, InputName, output_path_of, this_output_path, versioned
from tradewind.text import truncated_repr

__all__ = [
    "default_base_eval",
    "default_eval",
    "default_key_evals",
    "default_sft_eval",
    "evaluate_alpaca_eval",
    "evaluate_helm",
    "evaluate_helm_on_step",
    "evaluate_levanter_lm_evaluation_harness",
    "evaluate_lm_evaluation_harness",
    "extract_model_name_and_path",
]

Model = ExecutorStep | InputName | str
_END_TOKENS: Final = {"llama3": 128009, "olmo": 100257}
"""Part of a model's name -> the token that ends its answers."""


def _step(name: str, evaluator: str, model_path: Any, **fields: Any) -> ExecutorStep:
    made = builder().find("marin.evaluation.evaluation_config.EvaluationConfig")
    fields.setdefault("model_name", None)
    config = made(evaluator=evaluator, model_path=model_path, evaluation_path=this_output_path(), **fields)
    return MarinStep(f"evaluation/{name}", evaluate, config, description=f"Evaluates a model with {evaluator}.")


def extract_model_name_and_path(step: Model) -> tuple[str, Any]:
    """Return the name of a model in an evaluation's, and the path of its exports.

    Args:
        step: A training, whose path is ``hf`` in its output; a downloaded model, whose name has ``gcsfuse``; a path in
            one of these; or any path.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(step, str) and step.strip("/"):
        return "_".join(step.removesuffix("/").split("/")[-2:]), step
    owner: Any = step.step if isinstance(step, InputName) else step
    if isinstance(step, InputName):
        if owner is None:
            raise ValueError(f"Hardcoded path {step.name} is not part of the pipeline: give it as text.")
        if step.name:
            return owner.name, step
    if not isinstance(owner, ExecutorStep):
        raise ValueError(f"step is {truncated_repr(step)}: give a training, a downloaded model, or a path.")
    return owner.name, output_path_of(owner, None if "gcsfuse" in owner.name else "hf")


def evaluate_levanter_lm_evaluation_harness(
    model_name: str,
    model_path: Any,
    evals: Sequence[Any],
    resource_config: Any,
    max_eval_instances: int | None = None,
    apply_chat_template: bool = False,
    discover_latest_checkpoint: bool = True,
) -> ExecutorStep:
    """Return a step that loads a model with Levanter on a slice, and measures it there: multiple choice only.

    Args:
        model_name: Of the step.
        model_path: Hugging Face export, folder of exports, or Levanter checkpoint.
        evals: The tasks; they count in the version.
        resource_config: Where it runs: Marin's, or ``TpuSlice``, ``Gpu`` or ``Cpu``.
        max_eval_instances: Documents of each task at most; counts in the version.
        apply_chat_template: Whether prompts are conversations in the model's chat template.
        discover_latest_checkpoint: Whether ``model_path`` may be a folder of exports, of which the newest is measured.
    """
    return _step(
        f"lm_evaluation_harness_levanter/lmeval_debug_{model_name}",
        "levanter_lm_evaluation_harness",
        model_path,
        evals=versioned(_tasks(evals)),
        discover_latest_checkpoint=discover_latest_checkpoint,
        max_eval_instances=versioned(max_eval_instances),
        resource_config=resource_config,
        apply_chat_template=apply_chat_template,
    )


def evaluate_lm_evaluation_harness(
    model_name: str,
    model_path: Any,
    evals: Sequence[Any],
    max_eval_instances: int | None = None,
    engine_kwargs: Mapping[str, Any] | None = None,
    resource_config: Any = None,
    apply_chat_template: bool = False,
    wandb_tags: Sequence[str] | None = None,
    discover_latest_checkpoint: bool = True,
) -> ExecutorStep:
    """Return a step that serves a model with vLLM and measures it with lm-eval. Only the model counts.

    Args:
        model_name: Of the step and in the results.
        model_path: Hugging Face export or folder of exports.
        evals: The tasks.
        max_eval_instances: Documents of each task at most.
        engine_kwargs: vLLM's options, and lm-eval's ``max_gen_toks``.
        resource_config: Where the model is served.
        apply_chat_template: Whether prompts are conversations in the model's chat template.
        wandb_tags: Tags of the run at W&B.
        discover_latest_checkpoint: No effect: of a folder of exports, the newest is always measured.
    """
    return _step(
        f"lm_evaluation_harness/{model_name}",
        "lm_evaluation_harness",
        model_path,
        model_name=model_name,
        evals=_tasks(evals),
        max_eval_instances=max_eval_instances,
        launch_with_ray=True,
        discover_latest_checkpoint=discover_latest_checkpoint,
        engine_kwargs=engine_kwargs,
        resource_config=resource_config,
        apply_chat_template=apply_chat_template,
        wandb_tags=wandb_tags,
    )


def evaluate_helm(model_name: str, model_path: Any, evals: Sequence[Any]) -> ExecutorStep:
    """Return a step that measures a model with HELM. Only the model counts in its version."""
    return _step(f"helm/{model_name}", "helm", model_path, model_name=model_name, evals=_tasks(evals))


def evaluate_helm_on_step(
    step: ExecutorStep | InputName, evals: Sequence[Any], max_eval_instances: int | None = None
) -> ExecutorStep:
    """Return a step that measures the newest export of a training with HELM. Only the model counts in its version."""
    owner = step.step if isinstance(step, InputName) else step
    if not isinstance(owner, ExecutorStep):
        raise ValueError(f"step is {truncated_repr(step)}: give a training.")
    return _step(
        f"helm/{owner.name}",
        "helm",
        output_path_of(owner),
        evals=_tasks(evals),
        discover_latest_checkpoint=True,
        max_eval_instances=max_eval_instances,
    )


def evaluate_alpaca_eval(
    model_name: str,
    model_path: Any,
    resource_config: Any,
    engine_kwargs: Mapping[str, Any] | None = None,
    max_eval_instances: int | None = None,
    temperature: float = 0.7,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    top_p: float = 1.0,
    top_k: int = -1,
    stop_token_ids: Sequence[int] | None = None,
) -> ExecutorStep:
    """Return Marin's step of AlpacaEval, for its version: only the model counts in it.

    Marin's config names no judge and no reference, so the step is refused where it runs. To measure, use
    ``tradewind.evaluation.steps.evaluate_alpaca_eval``.
    """
    sampling = {
        "temperature": temperature,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "repetition_penalty": repetition_penalty,
        "top_p": top_p,
        "top_k": top_k,
        "stop_token_ids": stop_token_ids,
    }
    return _step(
        f"alpaca_eval/{model_name}",
        "alpaca",
        model_path,
        model_name=model_name,
        max_eval_instances=max_eval_instances,
        resource_config=resource_config,
        engine_kwargs=engine_kwargs,
        generation_params=sampling,
    )


def default_eval(
    step: Model,
    resource_config: Any = SINGLE_TPU_V4_8,
    evals: Sequence[Any] | None = None,
    max_eval_instances: int | None = None,
    apply_chat_template: bool = False,
    discover_latest_checkpoint: bool = True,
) -> ExecutorStep:
    """Return a step that measures the newest export of a training, a downloaded model, or that at a path.

    Args:
        step: As in ``extract_model_name_and_path``.
        resource_config: As in ``evaluate_levanter_lm_evaluation_harness``, like the other arguments.
        evals: The tasks, by default ``CORE_TASKS``.
        max_eval_instances: Documents of each task at most.
        apply_chat_template: Whether prompts are conversations in the model's chat template.
        discover_latest_checkpoint: Whether the newest of several exports is measured.
    """
    name, path = extract_model_name_and_path(step)
    tasks = CORE_TASKS if evals is None else evals
    return evaluate_levanter_lm_evaluation_harness(
        name, path, tasks, resource_config, max_eval_instances, apply_chat_template, discover_latest_checkpoint
    )


def default_base_eval(
    step: Model,
    resource_config: Any = SINGLE_TPU_V6E_8,
    max_eval_instances: int | None = None,
    engine_kwargs: Mapping[str, Any] | None = DEFAULT_LM_EVAL_MODEL_KWARGS,
    run_generation_evals: bool = True,
    discover_latest_checkpoint: bool = True,
) -> list[ExecutorStep]:
    """Return steps that measure a base model: core tasks, MMLU in three ways, and generation.

    ``max_eval_instances`` is of the generation alone, as with Marin.
    """
    lists: tuple[Sequence[Any], ...] = (CORE_TASKS_PLUS_LEADERBOARD, (MMLU_0_SHOT,), (MMLU_5_SHOT,), (MMLU_PRO_5_SHOT,))
    steps = [
        default_eval(step, resource_config, evals, discover_latest_checkpoint=discover_latest_checkpoint)
        for evals in lists
    ]
    if run_generation_evals:
        name, path = extract_model_name_and_path(step)
        generation = evaluate_lm_evaluation_harness(
            name,
            path,
            BASE_GENERATION_TASKS,
            max_eval_instances,
            engine_kwargs,
            resource_config,
            discover_latest_checkpoint=discover_latest_checkpoint,
        )
        steps.append(generation)
    return steps


def default_sft_eval(
    step: Model,
    resource_config: Any = SINGLE_TPU_V6E_8,
    max_eval_instances: int | None = None,
    engine_kwargs: Mapping[str, Any] | None = DEFAULT_LM_EVAL_MODEL_KWARGS,
    run_generation_evals: bool = True,
    apply_chat_template: bool = True,
) -> list[ExecutorStep]:
    """Return steps that measure a chat model: the leaderboard, MMLU in two ways, and generation.

    Marin's two steps of generation have one path, so only the first of them ran: here one step has the tasks of both.
    """
    lists: tuple[Sequence[Any], ...] = (OPEN_LM_LEADERBOARD_MCQ, (MMLU_5_SHOT,), (MMLU_PRO_5_SHOT,))
    steps = [default_eval(step, resource_config, evals, apply_chat_template=apply_chat_template) for evals in lists]
    if run_generation_evals:
        name, path = extract_model_name_and_path(step)
        generation = evaluate_lm_evaluation_harness(
            name,
            path,
            (*KEY_GENERATION_TASKS, *OPEN_LM_LEADERBOARD_GEN),
            max_eval_instances,
            engine_kwargs,
            resource_config,
            apply_chat_template=apply_chat_template,
        )
        steps.append(generation)
    return steps


def default_key_evals(
    step: Model,
    resource_config: Any,
    model_name: str | None = None,
    max_eval_instances: int | None = None,
    engine_kwargs: Mapping[str, Any] | None = DEFAULT_LM_EVAL_MODEL_KWARGS,
) -> list[ExecutorStep]:
    """Return steps that measure a model on few tasks: generation, multiple choice, and AlpacaEval.

    The last is refused where it runs, see ``evaluate_alpaca_eval``: leave it out of the DAG.
    ``model_name`` replaces that of the steps, and tells the token that ends the answers of Llama 3 and OLMo.
    """
    inferred, path = extract_model_name_and_path(step)
    name = inferred if model_name is None else model_name
    ends = next(([token] for family, token in _END_TOKENS.items() if family in name), [])
    return [
        evaluate_lm_evaluation_harness(
            name, path, KEY_GENERATION_TASKS, max_eval_instances, engine_kwargs, resource_config
        ),
        evaluate_levanter_lm_evaluation_harness(
            name, path, KEY_MULTIPLE_CHOICE_TASKS, resource_config, max_eval_instances
        ),
        evaluate_alpaca_eval(name, path, resource_config, engine_kwargs, max_eval_instances, stop_token_ids=ends),
    ]


def _tasks(evals: Any) -> Any:
    """Return the tasks as they are; raises ``ValueError`` for none, or something else."""
    given = evals.value if hasattr(evals, "value") else evals
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError(f"evals is {truncated_repr(given)}: give a list of EvalTaskConfig.")
    for position, task in enumerate(given):
        if not hasattr(task, "num_fewshot"):
            raise ValueError(f"evals[{position}] is {truncated_repr(task)}: give an EvalTaskConfig.")
    return evals
