"""The pipelines of ``dags/`` that run long, under a scheduler and on a cluster: made once, then reused."""

from __future__ import annotations

import json

import pytest

from tests.airflow.conftest import DagRun, Environment

pytestmark = [pytest.mark.airflow, pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2400)]


def output(run: DagRun, name: str, file: str) -> dict[str, object]:
    return dict(json.loads((run.env.output(name) / file).read_text()))


@pytest.mark.parametrize(
    "dag_id, last, file, shown",
    [
        ("web_to_tokens", "web/evaluate", "results.json", "checkpoint"),
        ("quality_ablation", "ablation/comparison", ".artifact.json", "best"),
        ("compare_models", "compare_models/gate", "gate.json", "checks"),
    ],
)
def test_second_run_reuses_all_steps(env: Environment, dag_id: str, last: str, file: str, shown: str) -> None:
    first = env.run(dag_id)
    states, decisions = first.states(), first.decisions()
    failed = [task for task, state in states.items() if state == "failed"]
    assert not failed, first.log(failed[0])
    shared = {"tiny_sources"}  # another pipeline may have made them
    assert {decision for task, decision in decisions.items() if task not in shared} == {"RUN"}
    assert {state for task, state in states.items() if task not in shared} == {"success"}
    assert output(first, last, file)[shown]
    second = env.run(dag_id)
    assert set(second.decisions().values()) <= {"REUSE", "PRUNED"}
    steps = {task: state for task, state in second.states().items() if task != "plan"}
    assert second.state == "success" and set(steps.values()) == {"skipped"} and second.jobs() == []


def test_model_of_the_trigger_form_is_evaluated(env: Environment) -> None:
    """The form's values as a person gives them: a path below the prefix, a task's name, a folder of tasks."""
    model = env.output("compare_models/long").relative_to(env.store)  # the test above made it
    quiz = env.output("compare_models/quiz")
    run = env.run(
        "evaluate_model",
        {"model": str(model), "tasks": ["word_order"], "task_path": str(quiz), "max_documents": 20},
    )
    assert run.state == "success", run.log("evaluate_model_scores")
    record = output(run, "evaluate_model/scores", "record.json")
    assert str(model) in json.dumps(record["model"])
    unknown = env.run("evaluate_model", {"model": str(model), "tasks": ["word_odour"], "task_path": str(quiz)})
    assert unknown.state == "failed" and "word_order" in unknown.log("evaluate_model_scores")
