"""The alert about steps without progress: once for each stall, through Airflow's notifiers."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from tests.operators.loopback_head import LoopbackHead
from tests.runtime.test_stalls import put, running_attempt
from tradewind.operators.fleet import StallAlertOperator
from tradewind.runtime.stalls import SHARD_LIMIT_S, STEP_LIMIT_S

CLUSTERS = [{"name": "here", "ray_conn_id": "head"}]


class Recorder(BaseNotifier):
    """A notifier with a template, as Slack's."""

    template_fields = ("text",)
    sent: list[str] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        if self.text == "fail":
            raise RuntimeError("the webhook is gone")
        self.sent.append(self.text)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHead]:
    """A head with one step, whose last row is 20 minutes old."""
    now = time.time()
    output = running_attempt(tmp_path, started_at=now - 9e4)
    put(output, "metrics.jsonl", json.dumps({"step": 7, "time": now - 1210}) + "\n")
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(tmp_path))
    Recorder.sent = []
    with LoopbackHead().connected(monkeypatch) as head:
        head.has("job", "RUNNING", metadata={"step": "train@abc", "output_path": output})
        yield head


def run(before: Any = None, clusters: Any = CLUSTERS, **arguments: Any) -> list[dict[str, Any]]:
    """Run the operator once after a run that returned ``before``; a real Airflow: ``test_fleet_maintenance``."""
    results = {} if before is None else {"last": before}
    ti = SimpleNamespace(
        get_previous_ti=lambda state, logical_date: SimpleNamespace(run_id="last") if results else None,
        xcom_pull=lambda task_ids, run_id, map_indexes: results[run_id],
    )
    dag_run = SimpleNamespace(logical_date="now")
    operator = StallAlertOperator(task_id="stalls", clusters=clusters, **arguments)
    return operator.execute({"ti": ti, "dag_run": dag_run})  # type: ignore[typeddict-item]


@pytest.mark.usefixtures("head")
def test_each_stall_is_notified_once() -> None:
    notifiers = [Recorder("{{ announcement }} ({{ stalls | length }})")]
    first = run(notifiers=notifiers)
    assert [(step["job"], step["what"]) for step in first] == [("job", "step")]
    [text] = Recorder.sent
    assert text.startswith("Step train@abc on here: no step for 20 min (limit 15 min). Output: /") and text.endswith(
        "(1)"
    )
    assert [step["job"] for step in run(before=first, notifiers=[Recorder("again")])] == ["job"]
    assert Recorder.sent == [text]
    assert run(no_step_s=3600, notifiers=notifiers) == []


@pytest.mark.usefixtures("head")
def test_failed_notifier_fails_the_task() -> None:
    with pytest.raises(RuntimeError):
        run(notifiers=[Recorder("fail")])


@pytest.mark.usefixtures("head")
def test_dry_run_and_no_notifier_only_log() -> None:
    dry = [{**CLUSTERS[0], "dry_run": True}]
    before = run(clusters=dry, notifiers=[Recorder("x")])
    assert len(run()) == 1 and Recorder.sent == []
    assert [step["job"] for step in run(before=before, notifiers=[Recorder("after the dry run")])] == ["job"]
    assert Recorder.sent == ["after the dry run"]
    assert [step["job"] for step in run(before=[{"job": "job"}], clusters=dry)] == ["job"]


@pytest.mark.usefixtures("head")
def test_notifiers_of_the_deployment_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"classpath": f"{__name__}.Recorder", "kwargs": {"text": "{{ clusters }}: {{ announcement }}"}}
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ANNOUNCE_NOTIFIERS", json.dumps([entry]))
    run()
    [text] = Recorder.sent
    assert text.startswith("here: Step train@abc on here")


def test_dead_cluster_does_not_hide_stalls_of_others(head: LoopbackHead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DEAD", json.dumps({"conn_type": "ray", "host": "http://127.0.0.1:9"}))
    dead = {"name": "dead", "ray_conn_id": "dead"}
    assert [step["cluster"] for step in run(clusters=[dead, *CLUSTERS])] == ["here"]


def test_default_limits_are_those_of_pages() -> None:
    defaults = inspect.signature(StallAlertOperator.__init__.__wrapped__).parameters  # type: ignore[attr-defined]
    assert (defaults["no_step_s"].default, defaults["no_shard_s"].default) == (STEP_LIMIT_S, SHARD_LIMIT_S)
    with pytest.raises(ValueError, match="no_step_s is -1"):
        StallAlertOperator(task_id="stalls", clusters=[], no_step_s=-1)
