"""Marin's evaluations without a checkout: their recorded versions and paths, and where they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import names, put, run
from tests.marin.legacy.rebuilding import Rebuilt
from tradewind.evaluation.marins import config_of
from tradewind.marin.defaults import evaluations
from tradewind.marin.defaults import tasks as lists
from tradewind.marin.defaults.data import make_uncheatable_eval_step
from tradewind.marin.defaults.eval_resources import SINGLE_TPU_V6E_8, ResourceConfig
from tradewind.marin.defaults.evaluations import (
    default_base_eval,
    default_eval,
    default_key_evals,
    default_sft_eval,
    evaluate_helm,
    evaluate_levanter_lm_evaluation_harness,
    evaluate_lm_evaluation_harness,
)
from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import Cpu, ExecutorStep, InputName, Recipe, TpuSlice, resolve, versioned
from tradewind.tasks.step_job import modules_needed

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "legacy/oracle_versions.json").read_text())
REBUILT = Rebuilt(RECORDED)
SMALL_MODEL = "gs://bucket/gcsfuse_mount/perplexity-models/small_model"


def paths(*steps: ExecutorStep) -> list[str]:
    resolved = resolve(list(steps), "gs://marin")
    return [resolved.of(step).output_path.removeprefix("gs://marin/evaluation/") for step in steps]


def downloaded(name: str, revision: str) -> ExecutorStep:
    config = {"revision": versioned(revision)}
    return ExecutorStep(f"gcsfuse_mount/models/{name}--{revision}", None, config, recipe=Recipe.NOVEMBER_2025)


@pytest.mark.parametrize("key", [key for key, version in RECORDED.items() if "lmeval_debug" in version["name"]])
def test_default_eval_has_the_recorded_path(key: str) -> None:
    version = RECORDED[key]
    by_text = {repr(task): task for name in lists.__all__ if name.endswith("_TASKS") for task in getattr(lists, name)}
    by_text[repr(lists.MMLU_PRO_5_SHOT)] = lists.MMLU_PRO_5_SHOT
    evals = tuple(by_text[text] for text in version["config"]["evals"])
    model = REBUILT.step(version["dependencies"][0]) if version["dependencies"] else "gs://b/run/hf/step-210388/"
    given = None if evals == lists.CORE_TASKS else evals
    assert paths(default_eval(model, evals=given)) == [f"{version['name'].removeprefix('evaluation/')}-{key[:6]}"]


def test_groups_of_evaluations_have_the_recorded_paths() -> None:
    qwen = downloaded("Qwen--Qwen3-32B", "9216db5781bf21249d130ec9da846c4624c16137")
    assert [path[-6:] for path in paths(*default_base_eval(qwen, run_generation_evals=False))] == [
        "43a517", "80eeba", "462108", "5d485c",
    ]  # fmt: skip
    llama = downloaded("meta-llama--Llama-3-1-8B-Instruct", "0e9e39f")
    assert [path[-6:] for path in paths(*default_sft_eval(llama))] == ["81754b", "74748f", "00c1ac", "d1d923"]
    assert paths(*default_key_evals(SMALL_MODEL, SINGLE_TPU_V6E_8, "small_model")) == [
        "lm_evaluation_harness/small_model-3f44f3",
        "lm_evaluation_harness_levanter/lmeval_debug_small_model-780b70",
        "alpaca_eval/small_model-0e9024",
    ]
    assert paths(evaluate_helm("pf5pe4ut/step-600", "gs://x", lists.MMLU_TASKS)) == ["helm/pf5pe4ut/step-600-212536"]


def test_only_levanters_harness_runs_on_the_slice() -> None:
    steps = default_base_eval(SMALL_MODEL, ResourceConfig(4, "TPU-v4-8", "STRICT_PACK"))
    assert [step.resources for step in steps] == [*[TpuSlice("v4-8")] * 4, None]
    assert ".tasks/**" in steps[0].resumable
    (here,) = [default_eval(SMALL_MODEL, Cpu(2))]
    assert here.resources == Cpu(2)


def test_cluster_reads_the_config_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the step's job gets: the config of the cluster, with Tradewind's function and the pool of the engine."""
    generation = default_key_evals(SMALL_MODEL, SINGLE_TPU_V6E_8, "olmo-7b", max_eval_instances=5)
    specs = [step_spec(resolve([step], "gs://b").of(step), CodeFolder(tmp_path)) for step in generation]
    assert {spec.function for spec in specs} == {"tradewind.evaluation.marins:evaluate"}
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    served, local, alpaca = (config_of(spec.load_config()) for spec in specs)
    assert (served.serving.engine, served.serving.resources) == ("levanter", TpuSlice("v6e-8"))
    assert served.serving.engine_options == {"max_seq_len": 4096} and served.options["truncate"]
    assert [task.name for task in served.evals][:2] == ["ifeval", "gsm8k_cot"] and served.max_eval_instances == 5
    assert (local.serving, local.model_path, local.discover_latest_checkpoint) == (None, SMALL_MODEL, True)
    assert local.evaluation_path == resolve([generation[1]], "gs://b").of(generation[1]).output_path
    assert served.wandb is None and (served.seed, local.seed) == (1234, 0)
    monkeypatch.setenv("WANDB_API_KEY", "of this test")
    assert config_of(specs[0].load_config()).wandb == WandbOptions("marin", mode="online")
    assert alpaca.generation_params["stop_token_ids"] == [100257] and alpaca.generation_params["temperature"] == 0.7


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: default_eval(InputName.hardcoded("a/b")), "Hardcoded path a/b is not part of the pipeline"),
        (lambda: default_eval(None), "step is None: give a training"),
        (lambda: default_eval("/"), "step is '/': give a training"),
        (lambda: default_eval("gs://b/m", evals=()), r"evals is \(\): give a list"),
        (lambda: default_eval("gs://b/m", evals="mmlu"), "evals is 'mmlu': give a list"),
        (lambda: default_eval("gs://b/m", evals=["mmlu"]), r"evals\[0\] is 'mmlu': give an EvalTaskConfig"),
        (lambda: default_eval("gs://b/m", "v4-8"), "resource_config is 'v4-8': give one of Marin's"),
        (lambda: evaluations.evaluate_helm_on_step("gs://b", lists.MMLU_TASKS), "step is 'gs://b': give a training"),
        (lambda: make_uncheatable_eval_step(github_token="x"), r"github_token \(not shown\) would be stored"),
        (lambda: lists.convert_to_task_metrics((), "acc"), "tasks is empty"),
        (lambda: lists.convert_to_task_metrics(["mmlu"], "acc"), "tasks has 'mmlu': give an EvalTaskConfig"),
    ],
)
def test_evaluation_is_refused_at_parse(made: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        made()


def test_served_evaluations_need_no_levanter_on_their_cluster(tmp_path: Path) -> None:
    step = evaluate_helm("m", "gs://b/m", lists.MMLU_TASKS)
    spec = step_spec(resolve([step], "/store").of(step), CodeFolder(tmp_path))
    assert modules_needed(spec) == {"fsspec": "fsspec"}


def test_vllm_option_is_refused_without_vllm() -> None:
    step = evaluate_lm_evaluation_harness("m", "gs://b/m", lists.MMLU_TASKS, engine_kwargs={"swap_space": 4})
    with pytest.raises(ValueError, match=r"engine_kwargs\['swap_space'\] is an option of vLLM, which is not installed"):
        config_of(resolve([step], "gs://b").of(step).config)


EXPERIMENT = """
from experiments.evals.evals import default_eval, evaluate_levanter_lm_evaluation_harness
from experiments.evals.resource_configs import SINGLE_TPU_V5p_8, ResourceConfig
from experiments.evals.task_configs import CORE_TASKS_PLUS_MMLU, convert_to_task_metrics
from experiments.evals.exp1600_uncheatable_evals import uncheatable_eval_tokenized
from marin.download.huggingface.download_hf import download_hf
from marin.download.uncheatable_eval.download import make_uncheatable_eval_step
from marin.evaluation.evaluation_config import EvalTaskConfig, EvaluationConfig
from marin.evaluation.run import evaluate
from marin.execution.executor import ExecutorStep, executor_main, this_output_path, versioned

model = "gs://bucket/run/hf/step-100"
tasks = (EvalTaskConfig("quiz", 0, task_alias="quiz_0shot"),)
own = EvaluationConfig("levanter_lm_evaluation_harness", None, this_output_path(), versioned(tasks), model,
                       resource_config=ResourceConfig(4, "TPU-v4-8", "PACK"))
if __name__ == "__main__":
    executor_main([
        default_eval(model, evals=CORE_TASKS_PLUS_MMLU, resource_config=SINGLE_TPU_V5p_8),
        evaluate_levanter_lm_evaluation_harness("m", model, tasks, SINGLE_TPU_V5p_8, max_eval_instances=3),
        ExecutorStep(convert_to_task_metrics(tasks, "acc")[0], evaluate, own),
    ], description="Evaluate.")
"""
"""A file in the form of Marin's."""


def test_marin_file_with_evaluations_loads_without_checkout(tmp_path: Path) -> None:
    put(tmp_path / "experiments/a.py", EXPERIMENT)
    found = run(tmp_path, "a")
    assert names(found) == [
        [
            "evaluation/lm_evaluation_harness_levanter/lmeval_debug_hf_step-100",
            "evaluation/lm_evaluation_harness_levanter/lmeval_debug_m",
            "lm_eval/quiz_0shot/acc",
        ]
    ]
    steps = [step for step in found.calls[0].steps if isinstance(step, ExecutorStep)]
    assert [step.resources for step in steps] == [TpuSlice("v5p-8"), TpuSlice("v5p-8"), TpuSlice("v4-8")]
    (_, limited, direct), resolved = steps, resolve(steps, "gs://b")
    assert resolved.of(limited).version["config"] == {
        "evals": ["EvalTaskConfig(name='quiz', num_fewshot=0, task_alias='quiz_0shot')"],
        "max_eval_instances": 3,
    }
    spec = step_spec(resolved.of(direct), CodeFolder(tmp_path))
    assert spec.load_function().__module__ == "tradewind.evaluation.marins", "the checkout has none"
    assert config_of(spec.load_config()).evals[0].name == "quiz"


def test_functions_of_a_checkout_are_placed_and_replaced(tmp_path: Path) -> None:
    """Its own helpers make the steps, with its own classes of resources and its own function."""
    put(tmp_path / "src/marin/evaluation/run.py", "import ray\n\ndef evaluate(config): ray.get(config)\n")
    put(
        tmp_path / "experiments/evals/resource_configs.py",
        """
        from dataclasses import dataclass

        @dataclass
        class ResourceConfig:
            num_tpu: int
            tpu_type: str
            strategy: str

        OWN = ResourceConfig(num_tpu=4, tpu_type="TPU-v5p-8", strategy="PACK")
        """,
    )
    own = EXPERIMENT.replace("SINGLE_TPU_V5p_8", "OWN")
    put(tmp_path / "experiments/a.py", own)
    steps = [step for step in run(tmp_path, "a").calls[0].steps if isinstance(step, ExecutorStep)]
    assert [step.resources for step in steps] == [TpuSlice("v5p-8"), TpuSlice("v5p-8"), TpuSlice("v4-8")]
    spec = step_spec(resolve(steps, "gs://b").of(steps[2]), CodeFolder(tmp_path))
    messages: list[str] = []
    assert spec.function == "marin.evaluation.run:evaluate"
    assert spec.load_function(messages.append).__module__ == "tradewind.evaluation.marins"
    assert "is replaced by tradewind.evaluation.marins:evaluate: the step already holds the devices" in messages[0]


def test_levanter_evaluation_takes_resources_of_steps() -> None:
    step = evaluate_levanter_lm_evaluation_harness("m", "gs://b/m", lists.MMLU_TASKS, TpuSlice("v6e-16"))
    assert step.resources == TpuSlice("v6e-16")
