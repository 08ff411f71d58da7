"""Function of Marin's steps of evaluations: the same measurements by Tradewind's harnesses and pools.

Marin's function asks Ray for devices and installs its harnesses for each job. Here, Levanter's harness runs on the
slice that the step holds, and the others send requests to a pool that serves the model.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, Final

from tradewind.evaluation.config import EvaluationConfig
from tradewind.evaluation.harnesses import LEVANTER_HARNESS
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.serving.config import ServingConfig
from tradewind.steps import Cpu, Gpu, TpuSlice
from tradewind.text import truncated_repr

_PROJECT: Final = "marin"
_SEEDS: Final = {False: 0, True: 1234}
"""Seeds of Levanter's harness and of lm-eval, with which Marin's few-shot examples were chosen."""
_OF_HARNESS: Final = ("max_gen_toks",)
"""Marin's ``engine_kwargs`` that are lm-eval's."""
_OF_LEVANTER: Final = {"max_model_len": "max_seq_len"}
"""vLLM's option → that of Levanter's engine."""
_AS_MARIN: Final = {"truncate": True, "confirm_run_unsafe_code": True}
"""Prompts that are too long lose their begin, and HumanEval runs the code that the model writes."""
_AS_IS: Final = (
    "evaluator", "model_name", "evaluation_path", "model_path", "discover_latest_checkpoint", "max_eval_instances",
    "apply_chat_template", "wandb_tags",
)  # fmt: skip


def evaluate(config: Any) -> dict[str, Any]:
    """Measure the model of Marin's ``EvaluationConfig``, and return its status and scores.

    Raises:
        ValueError: As ``tradewind.evaluation.run.evaluate``.
    """
    from tradewind.evaluation import run  # a DAG file needs only the name of this function

    return run.evaluate(config_of(config))


def preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Check, before a slice is reserved, what Levanter's harness will measure; raises ``ValueError``."""
    from tradewind.evaluation import levanter_harness

    levanter_harness.preflight(config_of(config), devices, num_slices)


evaluate.preflight = preflight  # type: ignore[attr-defined]


def config_of(given: Any) -> EvaluationConfig:
    """Return Tradewind's config of the same evaluation.

    Raises:
        ValueError: A value is invalid.
    """
    tasks = tuple(EvalTaskConfig(each.name, each.num_fewshot, each.task_alias) for each in given.evals)
    sampling = {name: value for name, value in (given.generation_params or {}).items() if value not in (None, [])}
    is_served = given.evaluator != LEVANTER_HARNESS
    options = _AS_MARIN if given.evaluator == "lm_evaluation_harness" else {}
    return EvaluationConfig(
        **{name: getattr(given, name) for name in _AS_IS},
        evals=tasks,
        generation_params=sampling or None,
        serving=_serving(given) if is_served else None,
        seed=_SEEDS[is_served],
        network=True,  # Marin's tasks are of the hub
        options=options,
        wandb=_wandb(),
    )


def _wandb() -> WandbOptions | None:
    """Return Marin's project at W&B if the step has a key for it, as its trainings do."""
    if not os.environ.get("WANDB_API_KEY"):
        return None
    return WandbOptions(project=_PROJECT, mode="online")


def _serving(given: Any) -> ServingConfig:
    """Return the pool of Marin's evaluation: vLLM's engine where it is installed, else Levanter's."""
    options = {name: value for name, value in (given.engine_kwargs or {}).items() if name not in _OF_HARNESS}
    if importlib.util.find_spec("vllm") is not None:
        return ServingConfig(engine="vllm", engine_options=options, resources=resources_of(given.resource_config))
    unknown = next((name for name in options if name not in _OF_LEVANTER), None)
    if unknown is not None:
        raise ValueError(
            f"engine_kwargs[{truncated_repr(unknown)}] is an option of vLLM, which is not installed on this cluster: "
            "use its image with vLLM, or leave the option out."
        )
    renamed = {_OF_LEVANTER[name]: value for name, value in options.items()}
    return ServingConfig(engine_options=renamed, resources=resources_of(given.resource_config))


def resources_of(given: Any) -> Cpu | Gpu | TpuSlice:
    """Return the resources of Marin's ``resource_config``: the slice of its ``tpu_type``, or one CPU without any.

    Raises:
        ValueError: It is something else.
    """
    if given is None:
        return Cpu()
    if isinstance(given, (Cpu, Gpu, TpuSlice)):
        return given
    kind = given.get("tpu_type") if isinstance(given, Mapping) else getattr(given, "tpu_type", None)
    if not isinstance(kind, str):
        raise ValueError(
            f"resource_config is {truncated_repr(given)}: give one of Marin's, such as SINGLE_TPU_V4_8, or TpuSlice, "
            "Gpu or Cpu."
        )
    return TpuSlice(kind.removeprefix("TPU-"))
