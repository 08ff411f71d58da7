"""Runs of a DAG execute, reuse, block and refuse steps."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest
from airflow.sdk import BaseOperator

from tests.cloud_tpu.cloud import serving
from tests.datasets.caches import lines, with_tokenizers
from tests.datasets.hub_server import COMMIT, TOKEN, HubServer, hub
from tests.inprocess.conftest import DAGS, InProcessAirflow
from tests.operators.loopback_head import ImpatientHead, LoopbackHead
from tests.operators.test_lost_attempts import commits
from tradewind.operators.ray_job import RayJobOperator
from tradewind.provider_info import get_provider_info
from tradewind.records.lease import LEASE_FILE
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud

__all__ = ["hub"]
pytestmark = pytest.mark.slow
H = TypeVar("H", bound=LoopbackHead)


def test_failed_step_is_blocked_when_failures_are_not_retried(airflow: InProcessAirflow) -> None:
    first = airflow.run("blocked", {"says": "fail"})
    assert first.states["blocked_third"] == "upstream_failed"
    second = airflow.run("blocked", {"force_run_failed": False})
    assert set(second.decisions.values()) == {"BLOCKED"}
    assert second.states["blocked_first"] == "failed"
    assert "ValueError: failed as configured" in second.log("blocked_first")
    assert airflow.calls("blocked/first") == 1


def test_run_can_be_a_plan_a_part_or_forced(airflow: InProcessAirflow) -> None:
    planned = airflow.run("selected", {"dry_run": True})
    assert planned.state == "success"
    assert set(planned.decisions.values()) == {"RUN"}
    assert {state for task, state in planned.states.items() if task != "plan"} == {"skipped"}
    part = airflow.run("selected", {"run_only": ["second"]})
    assert part.decisions == {"selected_first": "RUN", "selected_second": "RUN", "selected_third": "PRUNED"}
    assert part.reasons["selected_third"] == "not asked for"
    assert airflow.run("selected").decisions["selected_third"] == "RUN"
    steps = ("selected/first", "selected/second", "selected/third")
    assert [airflow.calls(step) for step in steps] == [1, 1, 1]
    again = airflow.run("selected", {"force": ["/second$"], "force_downstream": True})
    assert again.decisions == {"selected_first": "REUSE", "selected_second": "RUN", "selected_third": "RUN"}
    assert [airflow.calls(step) for step in steps] == [1, 2, 2]


def test_gate_fails_night_that_is_worse_than_the_last(airflow: InProcessAirflow) -> None:
    """Of 8 CPU seconds: which evaluation is last night's, and what runs after a failure, shows only in two runs."""
    first = airflow.run("gated", {"right": 120})
    assert first.states["gated_gate"] == "success" and "there is no earlier evaluation" in first.log("gated_gate")
    assert first.states["gated_board"] == "failed"
    assert "1 of 2 runs have no result: lost" in first.log("gated_board")
    worse = airflow.run("gated", {"right": 90, "force_run_failed": False})
    assert worse.states["gated_gate"] == "failed" and "-0.1500" in worse.log("gated_gate")


REMADE = {"chained_first": "REUSE", "chained_second": "REUSE", "chained_third": "RUN"}


def test_missing_or_damaged_output_is_made_again(airflow: InProcessAirflow) -> None:
    airflow.run("chained")
    output = airflow.output("chained/third")
    (output / "text").unlink()
    again = airflow.run("chained")
    assert again.decisions == REMADE
    assert again.reasons["chained_third"].startswith("ran, output gone")
    (output / "text").write_text("the sane")
    assert airflow.run("chained", {"verify": True}).decisions == REMADE
    lease = json.loads((output / ".executor_status.lock").read_text())
    assert (airflow.calls("chained/third"), lease["attempt"]) == (3, 3)
    assert (output / "text").read_text() == "the same"
    assert set(airflow.run("chained", {"verify": True}).decisions.values()) == {"REUSE"}


def test_new_output_triggers_consumers_and_reuse_marks_cached(airflow: InProcessAirflow) -> None:
    airflow.run("announced")
    assert airflow.queued_assets("consumer") == ["announced/step"]
    [extra] = airflow.asset_events("announced/step")
    output = airflow.output("announced/step")
    assert (extra["path"], extra["version"]) == (str(output), output.relative_to(airflow.store).as_posix())
    airflow.run("announced")
    assert [extra.get("cached", False) for extra in airflow.asset_events("announced/step")] == [False, True]


def test_partition_keys_give_own_versions_without_logical_date(airflow: InProcessAirflow) -> None:
    for key in ("2026-03-01T00:00:00", "2026-03-02T00:00:00", "2026-03-01T00:00:00"):
        run = airflow.run("parted", partition_key=key)
        assert (run.state, run.partition_key, run.logical_date) == ("success", key, None)
    assert airflow.calls("parted/step") == 2


def makes_output(job: str, output_path: str) -> None:
    if output_path:  # of a step
        commits(job, output_path)


def test_triggers_in_line_read_connections_from_database(airflow: InProcessAirflow) -> None:
    with serving(LocalTpuCloud()) as cloud, stored(airflow, "stored", ImpatientHead(0, driver=makes_output)) as head:
        airflow.add_connection("cloud", "", "google_cloud_platform", project="rehearsal", tpu_endpoint=cloud.url)
        run = airflow.run("deferred")
        assert (run.state, set(run.states.values())) == ("success", {"success"}), run.text
        assert run.text.count("running trigger in line") == len(run.states) == len(deferrable_classes())
        assert run.results["ended"] in head.jobs


def deferrable_classes() -> set[type]:
    """Return the announced operators and sensors that can defer, without those that are a Ray job with a fixed call."""
    info = get_provider_info()
    modules = [name for kind in ("operators", "sensors") for each in info[kind] for name in each["python-modules"]]
    classes = {each for name in modules for each in vars(import_module(name)).values() if isinstance(each, type)}
    deferrable = {each for each in classes if issubclass(each, BaseOperator) and hasattr(each, "execute_complete")}
    return {each for each in deferrable if RayJobOperator not in each.__mro__[1:]}


@contextmanager
def stored(airflow: InProcessAirflow, conn_id: str, head: H) -> Iterator[H]:
    """Run the head, with a connection to it in the database only."""
    head.start()
    airflow.add_connection(conn_id, head.url, bucket=str(airflow.store))
    yield head
    head.stop()


@pytest.fixture(scope="module")
def held(airflow: InProcessAirflow) -> Iterator[LoopbackHead]:
    """A head whose jobs run on."""
    with stored(airflow, "held", LoopbackHead()) as head:
        yield head


ENDS = {signal.SIGTERM: "SystemExit(143)", signal.SIGINT: "KeyboardInterrupt()"}


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize(
    ("dag_id", "outlook"),
    [
        ("held_job", "Stopping Ray job "),
        ("held_step", "Stopping Ray job "),
        ("held_ended", "The job that this task waits for is not stopped."),
        ("held_free", "It has no job."),
    ],
)
def test_signal_ends_a_run_in_line_and_its_job(
    airflow: InProcessAirflow, held: LoopbackHead, dag_id: str, outlook: str, number: int
) -> None:
    held.jobs.clear()
    held.has("theirs", "RUNNING")
    end, text = airflow.run_interrupted(dag_id, number, held)
    assert (end, f"Interrupted. {outlook}" in text) == (ENDS[signal.Signals(number)], True), text
    is_own = "Stopping" in outlook
    assert [job["status"] for job in held.jobs.values()] == ["RUNNING", "STOPPED"][: 1 + is_own]


def test_execution_timeout_stops_a_step_in_the_worker(airflow: InProcessAirflow) -> None:
    run = airflow.run("limited")
    assert (run.states, run.tries) == ({"step": "failed"}, {"step": 1}), run.text
    assert "attempt 1 was stopped: it exceeded its task's execution_timeout. Clear the task" in run.text
    assert json.loads((airflow.output("limited/step") / LEASE_FILE).read_text())["phase"] == "stopped"


def test_plain_task_makes_each_version_once(airflow: InProcessAirflow) -> None:
    first = airflow.run("plain_versions", {"n": 7})
    assert Path(first.results["plain"], ".executor_status").read_text() == "SUCCESS"
    second = airflow.run("plain_versions", {"n": 7})
    assert (first.states, second.states) == ({"plain": "success"}, {"plain": "skipped"})
    assert "is finished: made by task plain of run" in second.log("plain")
    assert airflow.run("plain_versions", {"n": 8}).states == {"plain": "success"}


def test_failed_sweep_point_is_named_in_comparison_and_retried(airflow: InProcessAirflow) -> None:
    run = airflow.run("sweep")
    assert run.state == "failed"
    assert [task for task, state in run.states.items() if state != "success"] == ["sweep_2.0", "sweep_table"]
    log = run.log("sweep_table")
    assert "rate=0.1  0.1" in log
    assert "1 of 3 runs have no result: rate=2.0 (failed: ValueError: this rate is above all)." in log
    assert "rate=0.5" in (airflow.output("sweep/table") / "comparison.md").read_text()

    again = airflow.run("sweep", {"is_mended": True})
    assert [task for task, decision in again.decisions.items() if decision == "RUN"] == ["sweep_2.0", "sweep_table"]
    assert set(again.decisions.values()) == {"RUN", "REUSE"} and len(again.decisions) == 4
    assert (again.state, airflow.attempts("sweep/2.0"), airflow.attempts("sweep/table")) == ("success", 2, 2)
    assert "rate=2" in (airflow.output("sweep/table") / "comparison.md").read_text()

    part = airflow.run(
        "sweep_group", {"is_mended": True} | {f"sweep.{each}": ["sweep/0.1"] for each in ("run_only", "force")}
    )
    assert (part.decisions_of("sweep")["sweep.sweep_0.1"], part.states["sweep.sweep_table"]) == ("RUN", "skipped")
    assert "sweep/0.1" in part.results["sweep.outputs"], "its task has no edge to the last task"


def test_group_in_own_dag_hands_paths_on_also_if_reused(airflow: InProcessAirflow) -> None:
    first, second = airflow.run("own_dag"), airflow.run("own_dag")
    paths = {name: str(airflow.output(name)) for name in ("own/first", "own/second")}
    for run, of_steps in ((first, "success"), (second, "skipped")):
        assert (run.state, run.results["publish"], run.results["publish_first"]) == (
            "success",
            paths,
            paths["own/first"],
        )
        assert {run.states[f"train.own_{name}"] for name in ("first", "second")} == {of_steps}
    failed = airflow.run("own_dag", {"cutoff": "tuesday", "says": "fail"})
    ended = {name: failed.states[name] for name in ("train.own_first", "train.outputs", "publish", "always")}
    assert list(ended.values()) == ["failed", "upstream_failed", "upstream_failed", "failed"]
    refusal = "Step 'own/second' has no output in this run, because task 'train.own_second' is upstream_failed"
    assert refusal in failed.log("always") and failed.tries["always"] == 1
    again = airflow.run("own_dag", {"cutoff": "tuesday", "train.force_run_failed": False})
    assert set(again.decisions_of("train").values()) == {"BLOCKED"}


def test_part_of_a_group_hands_on_its_paths(airflow: InProcessAirflow) -> None:
    part = airflow.run("own_dag", {"cutoff": "sunday", "train.run_only": ["first"]})
    assert list(part.results["train.outputs"]) == ["own/first"] and part.states["publish_first"] == "success"
    assert "Step 'own/second' has no output in this run, because the plan left it out" in part.log("always")


def test_groups_of_a_dag_follow_plans_of_their_own(airflow: InProcessAirflow) -> None:
    first = airflow.run("two_groups")
    steps = [f"two/{group}/{name}" for group in ("train", "evaluate") for name in ("first", "second")]
    assert (first.state, first.results["publish"]) == ("success", str(airflow.output("two/evaluate/second")))
    forced = airflow.run("two_groups", {"evaluate.force": ["second"], "outer.train.run_only": ["first"]})
    assert set(forced.decisions_of("outer.train").values()) == {"REUSE"}
    assert list(forced.decisions_of("evaluate").values()) == ["REUSE", "RUN"]
    assert [airflow.calls(step) for step in steps] == [1, 1, 1, 2]
    planned = airflow.run("two_groups", {"evaluate.dry_run": True})
    assert (planned.states["evaluate.outputs"], planned.states["publish"]) == ("skipped", "skipped")
    stopped = airflow.run("two_groups", {"goes_on": False})
    assert {state for task, state in stopped.states.items() if task != "choose"} == {"skipped"}
    assert [airflow.calls(step) for step in steps] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("dag_id", "task_id", "sentence"),
    [
        (
            "local_function",
            "plan",
            "BadInputError: Step 'bad/local_function': '<lambda>' cannot be imported on a cluster, because it is a "
            "lambda, a local function or no plain function at all: define it at the top level of a module.",
        ),
        ("missing_prefix", "plan", "BadInputError: No source sets the prefix of outputs: give experiment_dag("),
        ("no_such_cluster", "bad_no_such_cluster", "There is no connection 'missing', and "),
        ("no_json_value", "train.plan", "BadInputError: Group 'train': value 'at' is "),
        ("unreachable", "bad_unreachable", "does not answer (ConnectionError): start the cluster, or correct the host"),
    ],
)
def test_step_refused_before_submission_leaves_nothing(
    airflow: InProcessAirflow, dag_id: str, task_id: str, sentence: str
) -> None:
    run = airflow.run(dag_id)
    assert run.state == "failed"
    log = run.log(task_id)
    assert sentence in log
    assert dag_id in ("missing_prefix", "no_json_value") or f"Step 'bad/{dag_id}'" in log
    assert not list(airflow.store.glob(f"bad/{dag_id}-*/**/*"))
    assert not airflow.head.jobs
    assert run.tries[task_id] == 1  # a retry would fail the same way


def test_data_set_and_tokenizer_of_hub_become_tokens(airflow: InProcessAirflow, hub: HubServer, tmp_path: Path) -> None:
    hub.files = {"train.jsonl": lines(["a", "b"]), "dev.jsonl.gz": gzip.compress(lines(["c"]))}
    hub.models = {"people/words": {file.name: file.read_bytes() for file in with_tokenizers(tmp_path).glob("end/*")}}
    (airflow.store.parent / "hub").write_text(json.dumps({"HF_ENDPOINT": hub.url, "TOKEN_OF_HUB": TOKEN}))
    run = airflow.run("hub")
    assert run.state == "success", run.text
    record = json.loads((airflow.output("tokenized/letters") / "tokenization.json").read_text())
    assert (record["dataset"]["commit"], record["train"]["documents"]) == (COMMIT, 2)
    assert record["validation"]["documents"] == 1
    assert set(hub.tokens) == {f"Bearer {TOKEN}"} and TOKEN not in run.text
    assert (airflow.store / ".tradewind/tokenizers/people--words/tokenizer.json").exists()
    assert airflow.run("hub").decisions == {"tokenized_letters": "REUSE"}


def test_script_that_tests_its_dag_runs_steps_once(airflow: InProcessAirflow) -> None:
    assert airflow.run_script(DAGS / "as_script.py").states == {"plan": "success", "tested_by_script": "success"}
    assert airflow.calls("tested_by_script") == 1
