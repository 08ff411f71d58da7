"""Steps of evaluations: what counts in their versions, and what a DAG file may not say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pytest

from tests.serving.exports import tiny_export
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.model_files import find_model
from tradewind.evaluation.run import served_by, serving_of
from tradewind.evaluation.steps import evaluate_lm_evaluation_harness
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.serving.config import ServingConfig, pool_name
from tradewind.steps import Cpu, ExecutorStep, Gpu, resolve

EVALS = [EvalTaskConfig("arc_easy", 10)]
MODEL = ExecutorStep("model", print, None)
POOL = ServingConfig(MODEL / "hf", "vllm", resources=Gpu(1))  # type: ignore[arg-type]


def version(**changes: Any) -> str:
    given: dict[str, Any] = {"model_name": "m", "model_path": MODEL / "hf", "evals": EVALS} | changes
    step = evaluate_lm_evaluation_harness(**given)
    return resolve([step], prefix="/p").steps[-1].output_path


PLAIN = version()
SAME: Mapping[str, dict[str, Any]] = {
    "pool": {"serving": POOL},
    "another pool": {"serving": dataclasses.replace(POOL, engine="levanter", replicas=4, resources=Cpu(2))},
    "resources": {"resource_config": Gpu(1)},
    "engine_kwargs": {"engine_kwargs": {"max_seq_len": 128}},
    "concurrency": {"num_concurrent": 64},
    "patience": {"recovery_timeout_s": 60},
    "network": {"network": True},
    "no template": {"apply_chat_template": False},
    "names of tasks": {"evals": (EvalTaskConfig("arc_easy", 10),)},
    "description": {"description": "d"},
}
OTHER: Mapping[str, dict[str, Any]] = {
    "evals": {"evals": [EvalTaskConfig("arc_easy", 5)]},
    "instances": {"max_eval_instances": 10},
    "template": {"apply_chat_template": True},
    "generation": {"generation_params": {"temperature": 0.5}},
    "seed": {"seed": 1},
    "model": {"model_path": "gs://b/other"},
    "tasks": {"task_path": "gs://b/tasks"},
    "options": {"options": {"add_bos_token": True}},
    "address": {"serving": ServedAddress("https://h/v1", "m")},
    "judge": {"judge": ServedAddress("https://h/v1", "j")},
    "judge pool": {"judge": POOL},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_version_ignores_where_the_model_is_served(changes: dict[str, Any]) -> None:
    assert version(**changes) == PLAIN


def test_version_counts_what_decides_scores() -> None:
    versions = {name: version(**changes) for name, changes in OTHER.items()}
    assert len({PLAIN, *versions.values()}) == len(OTHER) + 1


def test_evaluation_joins_pool_of_the_same_model() -> None:
    """A group of tasks, a command and other evaluations name the model by the same path."""
    pool = ServingConfig("gs://b/trained", resources=Cpu(2))
    plain = EvaluationConfig("lm_evaluation_harness", "m", "/out", EVALS, "gs://b/trained", resource_config=Cpu(2))
    given = dataclasses.replace(plain, serving=ServingConfig(resources=Cpu(2), replicas=3))
    for config in (plain, given):
        served = served_by(config)
        assert isinstance(served, ServingConfig)
        assert pool_name(served) == pool_name(pool)


def test_answers_are_only_of_the_same_files_and_template(tmp_path: Path) -> None:
    """A program's own form of a model, and the template beside a checkpoint, may change at their path."""
    program = ServingConfig(engine="command", command=("llama-server", "-m", "{model}", "--port", "{port}"))
    model, checkpoint = tmp_path / "model.gguf", tmp_path / "run/checkpoints/step-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.ocdbt").write_text("{}")
    tiny_export(tmp_path / "run/hf")
    states = []
    for content in ("old", "trained again"):
        model.write_text(content)
        (tmp_path / "run/hf/chat_template.jinja").write_text(content)
        for path, serving in ((model, program), (checkpoint, None)):
            config = EvaluationConfig("lm_evaluation_harness", "m", "/out", EVALS, str(path), serving=serving)
            states.append(str(find_model(config).state))
    assert len(set(states)) == 4


def test_record_has_version_of_installed_engine() -> None:
    served = ServingConfig("m"), ServingConfig("m", "vllm"), ServingConfig("m", "command", command=("x", "{port}"))
    assert [serving_of(each).version for each in served] == [installed("marin-levanter"), None, None]


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "option": ({"num_concurent": 4}, "'num_concurent' is no option of an evaluation; did you mean 'num_concurrent'"),
    "evals": ({"evals": [5]}, r"evals\[0\] is 5"),
    "no evals": ({"evals": []}, "evals is empty"),
    "instances": ({"max_eval_instances": 0}, "max_eval_instances=0: give a whole number of at least 1, or None"),
    "model": ({"model_path": 5}, "model_path=5: give a step, a path"),
    "no model": ({"model_path": None}, "model_path=None: give the model"),
    "no judge": ({"judge": ServingConfig()}, r"judge=ServingConfig\(...\) has no model"),
    "other model": ({"serving": ServingConfig("x")}, "serving has the model 'x', which is not that of model_path"),
    "serving": ({"serving": "http://h/v1"}, "serving='http://h/v1': give ServingConfig"),
    "seed": ({"seed": -1}, "seed=-1: give a whole number of at least 0"),
    "generation": ({"generation_params": [1]}, r"generation_params=\[1\]: give a mapping"),
    "setting": ({"generation_params": {"temprature": 1}}, "generation_params has 'temprature'.*mean 'temperature'"),
    "harness option": ({"options": {"truncated": True}}, "options has 'truncated'.*did you mean 'truncate'"),
    "context": ({"max_context": 1}, "max_context=1: give a whole number of at least 2"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_impossible_step_refused_with_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Step 'evaluation/lm_evaluation_harness/m': {message}"):
        version(**changes)


@pytest.mark.parametrize(
    "address",
    [
        "h/v1",
        "ftp://h/v1",
        "https://u:s3cret@h/v1",
        "https://h/v1?key=s3cret",
        "https://",
        "http://h:0/v1",
        "http://h:x",
    ],
)
def test_address_that_may_hold_a_key_not_shown(address: str) -> None:
    with pytest.raises(ValueError, match=r"^address \(not shown") as refused:
        ServedAddress(address, "m")
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ValueError, match=r"^api_key \(not shown") as refused:
        ServedAddress("https://h/v1", "m", "sk-s3cret")
    assert "s3cret" not in str(refused.value)


def test_address_of_any_form_taken() -> None:
    for address in ("https://h.example/v1", "http://10.0.0.1:8000/v1/", "http://[::1]:8000/v1", "https://h"):
        assert ServedAddress(address, "m", "KEY").address == address
