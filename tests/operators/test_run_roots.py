"""Roots of a run's outputs, as its DAG and its deployment set them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.operators.contexts import run_at_midnight
from tradewind import ExecutorStep, experiment_dag, run_param
from tradewind.steps import RunValues
from tradewind.steps.run_values import RunPath
from tradewind.storage import OutsideRootsError, StorageError
from tradewind.tasks.context import ExperimentSettings

STEP = ExecutorStep("made", None, {})


@pytest.fixture(autouse=True)
def deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRADEWIND_PREFIX", "MARIN_PREFIX", "AIRFLOW__TRADEWIND__ALLOWED_ROOTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__TRADEWIND__PREFIX", "/deployment")
    for name in ("ray_default", "mine", "other"):
        described = {"conn_type": "ray", "host": "http://127.0.0.1:1", "extra": {"bucket": f"gs://{name}"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(described))


def dag_of(*steps: ExecutorStep, **arguments: Any) -> DAG:
    dag = experiment_dag("made", list(steps) or [STEP], **arguments)
    assert dag is not None
    return dag


def prefix_of(dag: DAG, prefix: str | None) -> str:
    """Return the prefix of the outputs of a run that a user triggered with ``prefix``."""
    settings: ExperimentSettings = dag.get_task("plan").settings  # type: ignore[attr-defined]
    context: Any = {"dag": dag, "dag_run": run_at_midnight(), "params": {**dag.params.dump(), "prefix": prefix}}
    return settings.prefix_of(settings.values_of(context))


def test_a_run_may_choose_a_prefix_below_that_of_the_deployment() -> None:
    assert prefix_of(dag_of(), None) == "/deployment"
    assert prefix_of(dag_of(), "/deployment/drill") == "/deployment/drill"


@pytest.mark.parametrize("prefix", ["/elsewhere", "/deployment/../elsewhere", "gs://other/x", "s3://mine/x"])
def test_a_run_chooses_no_other_prefix(prefix: str) -> None:
    with pytest.raises(OutsideRootsError, match="^The run's param 'prefix': the path .* is below no allowed root"):
        prefix_of(dag_of(cluster="mine"), prefix)


def test_buckets_of_clusters_named_by_dag_are_roots() -> None:
    assert prefix_of(dag_of(cluster="mine"), "gs://mine/x") == "gs://mine/x"
    assert prefix_of(dag_of(ExecutorStep("made", None, {}, cluster="other")), "gs://other/x") == "gs://other/x"


def test_what_the_author_writes_as_the_params_default_is_a_root() -> None:
    assert prefix_of(dag_of(params={"prefix": "/author"}), "/author/x") == "/author/x"


def test_allowed_roots_also_restrict_author_and_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", "/only\ngs://two")
    assert prefix_of(dag_of(prefix="/only/x"), None) == "/only/x"
    assert prefix_of(dag_of(), "gs://two/x") == "gs://two/x"
    for dag, prefix in ((dag_of(prefix="/author"), None), (dag_of(cluster="mine"), "gs://mine/x"), (dag_of(), None)):
        with pytest.raises(OutsideRootsError, match="allowed_roots"):
            prefix_of(dag, prefix)


def test_a_prefix_that_a_template_made_is_not_the_authors() -> None:
    with pytest.raises(OutsideRootsError):
        ExperimentSettings("/elsewhere", has_own_prefix=False).prefix_of(RunValues())
    assert ExperimentSettings("/elsewhere").prefix_of(RunValues()) == "/elsewhere"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "gs://other/x", "simplecache::/deployment/x"])
def test_a_run_names_no_input_outside_the_roots(path: str) -> None:
    step = ExecutorStep("made", None, {"model": RunPath(run_param("model"))})
    for inside in ("checkpoints/x", "/deployment/x", "hub:org/name@main"):
        ExperimentSettings().resolve([step], RunValues(params={"model": inside}))
    with pytest.raises(StorageError, match=r"Step 'made': config\.model"):
        ExperimentSettings().resolve([step], RunValues(params={"model": path}))


def test_the_roots_of_a_run_travel_with_it() -> None:
    outside = ExecutorStep("outside", None, {}, override_output_path="gs://far/x")
    settings = ExperimentSettings(allow_outside=("outside",))
    assert settings.resolve([STEP, outside], RunValues()).roots.paths == ("/deployment", "gs://far/x")
