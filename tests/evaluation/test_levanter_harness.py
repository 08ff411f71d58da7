"""Levanter's harness in the processes of a step: what it measures, keeps and refuses."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.evaluation.conftest import LM_EVAL, TASKS
from tests.marin.checkouts import put, run
from tests.recipes.workbench import Workbench, lines_of, wait_for
from tests.serving.exports import tiny_export
from tests.support.fork_server import prepared_to_train
from tradewind.evaluation import levanter_harness
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.results import EvaluationRecord, Model, Serving, Status, read_record, write_results
from tradewind.evaluation.steps import evaluate_levanter_lm_evaluation_harness
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.rehearsal.local.processes import free_port
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import Cpu, TpuSlice, resolve

PROGRAM = f"""
import json, sys
from tradewind.evaluation import levanter_harness
from tradewind.evaluation.config import EvaluationConfig
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.evaluation.run import EvaluationError
root, output, rank, port = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]
if int(port):
    import jax
    jax.distributed.initialize(f"127.0.0.1:{{port}}", num_processes=2, process_id=int(rank))

def config(*tasks, **more):
    given = dict(evaluation_path=f"{{root}}/{{output}}", evals=tasks, model_path=f"{{root}}/run/hf",
                 task_path={str(TASKS)!r}, discover_latest_checkpoint=True, max_context=96)
    return EvaluationConfig("levanter_lm_evaluation_harness", None, **given | more)

def refusal(make):
    try:
        make()
    except (ValueError, EvaluationError) as error:
        print(error)

colors = EvalTaskConfig("colors", 0), EvalTaskConfig("colors", 2, "colors_2shot")
"""
MEASURE = PROGRAM + "print(json.dumps(levanter_harness.evaluate(config(*colors))))"
FAILING = (
    PROGRAM
    + """
failing = EvalTaskConfig("of_the_hub", 0), EvalTaskConfig("words", 0)
for _ in range(2):
    refusal(lambda: levanter_harness.evaluate(config(*failing, *colors, apply_chat_template=True)))
for changed in ({"evals": [EvalTaskConfig("color", 0)]}, {"task_path": f"{root}/none"}, {"task_path": root + "/run"},
                {"model_path": f"{root}/plain", "apply_chat_template": True}, {"model_path": f"{root}/nothing"},
                {"max_context": 300}, {"model_path": f"{root}/other"}):
    refusal(lambda: levanter_harness.preflight(config(*colors, **changed), 4))
refusal(lambda: levanter_harness.evaluate(config(*colors, model_path=f"{root}/diverged", evaluation_path=f"{root}/no")))
"""
)
SCORED = (
    PROGRAM
    + """
import numpy as np
from tradewind.evaluation.scored_model import ModelSource, loaded
sys.path.insert(0, config().task_path)
from documents import choices
with loaded(ModelSource(f"{root}/run/hf/step-10"), 1) as scored:
    right = 0
    for document in choices()["test"]:
        sums = []
        for choice in document["choices"]:
            begin = len(scored.tokenizer.encode(document["question"]))
            tokens = scored.tokenizer.encode(document["question"] + choice)
            row = np.zeros((1, 96), np.int32)
            row[0, :len(tokens)] = tokens
            sums.append(scored.log_probs(row, np.zeros_like(row))[0, begin:len(tokens)].sum())
        right += int(np.argmax(sums)) == document["answer"]
print(right / 6)
"""
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    root = tmp_path_factory.mktemp("levanter")
    tiny_export(root / "run/hf/step-9", seed=3)
    tiny_export(root / "run/hf/step-10", seed=7)
    tiny_export(root / "plain", chat=False)
    config = tiny_export(root / "other") / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llama"', '"model_type": "unheard"'))
    weights = tiny_export(root / "diverged") / "model.safetensors"
    save_file({name: np.full_like(array, np.nan) for name, array in load_file(weights).items()}, weights)
    with prepared_to_train(root, PYTHONPATH=str(LM_EVAL)) as python:
        yield Workbench(root, python)


def whole_tasks(output: Path) -> list[Path]:
    return sorted(output.glob(".tasks/*/whole.json"))


@pytest.mark.slow
@pytest.mark.long
def test_killed_evaluation_measures_only_the_rest(bench: Workbench) -> None:
    """The scores are those of an undisturbed run, and of the probabilities of the same texts."""
    undisturbed = json.loads(bench.run(MEASURE, "undisturbed", "0", "0")[-1])
    assert (undisturbed["model"], undisturbed["status"]) == ("run", "succeeded")
    assert undisturbed["scores"]["colors"]["acc"] == pytest.approx(float(bench.run(SCORED, "", "0", "0")[-1]))
    program = bench.start(MEASURE, "killed", "0", "0")
    wait_for(lambda: bool(whole_tasks(bench.root / "killed")), program, "a task was measured")
    program.kill()
    lines_of(program, -signal.SIGKILL)
    assert not (bench.root / "killed/record.json").exists()
    lines = bench.run(MEASURE, "killed", "0", "0")
    assert "1 of 2 tasks were measured before" in lines
    assert json.loads(lines[-1]) == undisturbed
    record = read_record(str(bench.root / "killed"))
    assert (record.serving.engine, record.status, record.tasks["colors_2shot"].num_fewshot) == (
        "in_process", Status.SUCCEEDED, 2,
    )  # fmt: skip
    assert len(list((bench.root / "killed/lm_eval").rglob("samples_colors_*.jsonl"))) == 2
    assert not list((bench.root / "killed/.tasks").rglob("*.json*")), "what the record has is not kept twice"


@pytest.mark.slow
@pytest.mark.long
def test_hosts_of_a_slice_measure_together(bench: Workbench) -> None:
    port = str(free_port())
    programs = [bench.start(MEASURE, "hosts", str(rank), port) for rank in range(2)]
    results = [json.loads(lines_of(program)[-1]) for program in programs]
    alone = json.loads(bench.run(MEASURE, "alone", "0", "0")[-1])
    assert results == [alone, alone]
    assert read_record(str(bench.root / "hosts")).serving.hardware == "2 x cpu"


@pytest.mark.slow
@pytest.mark.long
def test_failed_task_leaves_others_measured(bench: Workbench) -> None:
    lines = bench.run(FAILING, "failing", "0", "0")
    errors = [line for line in lines if line.startswith("2 of 4 tasks failed: ")]
    assert len(errors) == 2 and "2 of 4 tasks were measured before" in lines
    assert "of_the_hub: " in errors[0] and "may not use the network: give network=True" in errors[0]
    assert "words: UnmeasuredTaskError: it has words, whose kind is generate_until" in errors[0]
    record = read_record(str(bench.root / "failing"))
    assert {name: task.status for name, task in record.tasks.items()} == {
        "of_the_hub": Status.FAILED, "words": Status.FAILED, "colors": Status.SUCCEEDED,
        "colors_2shot": Status.SUCCEEDED,
    }  # fmt: skip
    assert record.tasks["colors"].chat_template_sha256 is not None
    assert len(whole_tasks(bench.root / "failing")) == 2, "the next attempt goes on with them"
    for expected in (
        "evals has 'color', which lm-eval does not know: did you mean colors",
        "is no folder: give one with the YAML files of tasks",
        "has no *.yaml, so it has no task of lm-eval",
        "apply_chat_template=True: the tokenizer of model_path=",
        "is no model: give an export, a training, a folder of checkpoints",
        "max_context=300 is longer than the model's context of 256 tokens",
        "Levanter cannot read the model",
        "2 of 2 tasks failed: colors: ValueError: the model's log probabilities are no numbers",
    ):
        assert any(expected in line for line in lines), expected


OF_MARIN = """
from experiments.evals.evals import default_eval
from experiments.evals.resource_configs import SINGLE_TPU_V4_8
from marin.evaluation.evaluation_config import EvalTaskConfig
from marin.execution.executor import executor_main

tasks = (EvalTaskConfig("{tasks}/colors.yaml", 0, task_alias="colors"),)
if __name__ == "__main__":
    executor_main([default_eval("{root}/run/hf", SINGLE_TPU_V4_8, tasks, max_eval_instances=4)], description="Measure.")
"""
"""A file in the form of Marin's."""
RUN = """
import json, sys
from pathlib import Path
from tradewind.serialization.spec import StepSpec
spec = StepSpec.from_json(json.loads(Path(sys.argv[1], "spec.json").read_text()))
function, config = spec.load_function(), spec.load_config()
function.preflight(config, 4)
print(json.dumps(function(config)))
"""


@pytest.mark.slow
@pytest.mark.long
def test_marins_file_measures_its_model(bench: Workbench, tmp_path: Path) -> None:
    """What the file's step carries is all that its job needs."""
    put(tmp_path / "experiments/a.py", OF_MARIN.format(tasks=TASKS, root=bench.root))
    (step,) = run(tmp_path, "a").calls[0].steps
    resolved = resolve([step], str(bench.root / "prefix")).of(step)
    spec = json.dumps(step_spec(resolved, CodeFolder(tmp_path)).to_json())
    (bench.root / "spec.json").write_text(spec)
    result = json.loads(bench.run(RUN)[-1])
    assert result["status"] == "succeeded" and result["scores"].keys() == {"colors"}
    record = read_record(resolved.output_path)
    assert (record.model.name, record.tasks["colors"].num_documents) == ("run", 4)
    assert record.model.path == f"{bench.root}/run/hf/step-10", "the newest export"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"options": {"modell": 1}}, "options has 'modell', which is none of Levanter's harness; did you mean 'model'"),
        ({"generation_params": {"temperature": 1}}, "generation_params: Levanter's harness loads the model itself"),
        ({"serving": ServedAddress("http://a/v1", "m")}, "serving: Levanter's harness loads the model itself"),
        ({"evals": ()}, "evals is empty"),
        ({}, "lm-eval is not installed on this cluster: use an image with the extra 'evaluation'"),
    ],
)
def test_evaluation_is_refused_before_a_slice_is_reserved(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"evaluation_path": "/out", "evals": [EvalTaskConfig("mmlu", 0)], "model_path": "/model"}
    config = EvaluationConfig("levanter_lm_evaluation_harness", None, **given | changed)
    with pytest.raises(ValueError, match=message):
        levanter_harness.preflight(config, 4)


def test_kept_tasks_are_only_of_the_same_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not count in a version may differ between attempts, such as the newest export of a training."""
    monkeypatch.setattr(levanter_harness, "_version", lambda distribution: "1")
    for name in ("run/hf/step-9", "run/hf/step-10"):
        put(tmp_path / name / "config.json", "{}")
    (tmp_path / "run/hf/step-11").mkdir()
    given: dict[str, Any] = {
        "evaluation_path": str(tmp_path / "out"),
        "evals": [EvalTaskConfig("mmlu", 0)],
        "model_path": str(tmp_path / "run/hf"),
        "discover_latest_checkpoint": True,
    }

    def kept(**changed: Any) -> str:
        config = EvaluationConfig("levanter_lm_evaluation_harness", None, **given | changed)
        source = levanter_harness._source(config)
        return levanter_harness._Measuring(config, source, tmp_path / "work")._places[0].kept

    alias = [EvalTaskConfig("mmlu", 0, "alias")]
    assert kept() == kept(evals=alias) == kept(model_path=str(tmp_path / "run/hf/step-10"))
    changes: list[dict[str, Any]] = [
        {"evals": [EvalTaskConfig("mmlu", 5)]}, {"evals": [EvalTaskConfig("boolq", 0)]}, {"max_eval_instances": 5},
        {"apply_chat_template": True}, {"max_context": 64}, {"seed": 1}, {"task_path": "/tasks"},
        {"model_path": str(tmp_path / "run/hf/step-9")},
    ]  # fmt: skip
    assert len({kept(), *(kept(**changed) for changed in changes)}) == 1 + len(changes)
    own = {"task_path": str(tmp_path / "tasks"), "tokenizer": str(tmp_path / "tokenizer")}
    keys = [kept(**own)]
    for changed_file in ("run/hf/step-10/weights", "tasks/more/task.yaml", "tokenizer/tokenizer.json"):
        put(tmp_path / changed_file, "{}")
        keys.append(kept(**own))
    assert len(set(keys)) == len(keys), "trained again, another task or tokenizer at its path"


@pytest.mark.parametrize(
    ("status", "is_measured"), [(Status.SUCCEEDED, True), (Status.INCOMPLETE, True), (Status.FAILED, False)]
)
def test_restart_measures_failed_tasks_again(tmp_path: Path, status: Status, is_measured: bool) -> None:
    config = EvaluationConfig(
        "levanter_lm_evaluation_harness", None, str(tmp_path), [EvalTaskConfig("mmlu", 0)], "/model"
    )
    assert not levanter_harness._was_measured(config)
    record = EvaluationRecord("levanter", status, Model("/model", "model"), Serving("in_process"), 0.0, 1.0)
    write_results(str(tmp_path), record, [])
    assert levanter_harness._was_measured(config) == is_measured


def test_kept_task_replaces_files_of_a_killed_copy(tmp_path: Path) -> None:
    kept = tmp_path / "out/.tasks/a"
    put(kept / "model/results_1.json", "{}")
    put(tmp_path / "work/model/results_2.json", "{}")
    task = EvalTaskConfig("mmlu", 0)
    place = levanter_harness._Place(0, "mmlu", task, tmp_path / "work", str(kept))
    levanter_harness._keep(place)
    assert sorted(file.name for file in kept.rglob("*.json")) == ["results_2.json", "whole.json"]
    levanter_harness._download(str(kept), tmp_path / "restored")
    assert [file.name for file in (tmp_path / "restored").rglob("*.json")] == ["results_2.json"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gs://b/checkpoints/run-1a2b3c/hf/step-100", "run-1a2b3c-step-100"),
        ("gs://b/checkpoints/run-1a2b3c/hf/", "run-1a2b3c"),
        ("gs://b/checkpoints/run-1a2b3c", "run-1a2b3c"),
        ("hub:org/name@1a2b3c4", "name@1a2b3c4"),
    ],
)
def test_model_is_named_by_its_path(path: str, name: str) -> None:
    config = EvaluationConfig("levanter_lm_evaluation_harness", None, "/out", [EvalTaskConfig("mmlu", 0)], path)
    assert levanter_harness._model_name(config) == name


def test_step_counts_tasks_but_not_its_slice() -> None:
    tasks = [EvalTaskConfig("mmlu", 5)]
    steps = [
        evaluate_levanter_lm_evaluation_harness("tiny", "gs://b/run", tasks, resources)
        for resources in (TpuSlice("v4-8"), Cpu(2))
    ]
    first, second = (resolve([step], "gs://b").of(step) for step in steps)
    assert first.output_path == second.output_path and [step.resources for step in steps] == [TpuSlice("v4-8"), Cpu(2)]
    assert first.step.fn is levanter_harness.evaluate and first.step.resumable == (".tasks/**",)
    other = evaluate_levanter_lm_evaluation_harness("tiny", "gs://b/run", [EvalTaskConfig("mmlu", 0)], Cpu())
    assert resolve([other], "gs://b").of(other).output_path != first.output_path
    for refused, message in (("v4-8", "resource_config is 'v4-8'"), (TpuSlice("v4-8", 2), "on one slice, so give one")):
        with pytest.raises(ValueError, match=f"Step 'evaluation/.*tiny': .*{message}"):
            evaluate_levanter_lm_evaluation_harness("tiny", "gs://b/run", tasks, refused)
