"""The demo's displays, computed from plain data."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console

from demo import view
from tradewind.rehearsal.local.airflow_api import log_line

NOW = datetime(2026, 1, 31, 3, 0, 30, tzinfo=UTC)


def instance(task_id, state, **fields):
    return {"task_id": task_id, "state": state, "start_date": None, "end_date": None, "duration": None, **fields}


def step(name, decision="RUN", version="0a1b2c"):
    decided = {"decision": decision, "reason": "new", "output_path": f"gs://bucket/{name}-{version}"}
    return {"task_id": f"steps.{name}", "name": name, "hash": version, **decided}


def plan(*steps):
    return {"prefix": "gs://bucket", "steps": list(steps)}


def rendered(table):
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def views_of(*instances, plan=None, messages=None):
    return view.task_views(instances, plan, messages or {}, NOW)


def test_tasks_are_listed_in_plan_order_after_plan_task():
    for name in ("plan", "steps.plan"):
        instances = [instance(f"steps.{name}", None) for name in ("train", "fetch")] + [instance(name, "success")]
        shown = views_of(*instances, plan=plan(step("fetch"), step("train")))
        assert [one.task_id for one in shown] == [name, "steps.fetch", "steps.train"]


def test_a_skipped_task_is_reused_only_if_the_plan_says_so():
    instances = [instance("steps.fetch", "skipped"), instance("steps.train", "skipped")]
    shown = views_of(*instances, plan=plan(step("fetch", "REUSE"), step("train")))
    assert [one.state for one in shown] == ["reused", "skipped"]


def test_changes_of_state_and_messages_of_a_while_are_lines():
    shown: dict[str, view.TaskView] = {}
    printed = []
    for state, start, message in (
        (None, None, ""),
        ("deferred", "03:00:28", ""),
        ("deferred", "03:00:27", "step 6"),
        ("deferred", "03:00:20", "step 7, loss 2.5"),
        ("deferred", "03:00:00", "step 7, loss 2.5"),
        ("success", None, "step 9"),
        ("success", None, "step 10"),
    ):
        start_date = start and f"2026-01-31T{start}Z"
        news = view.news(shown, views_of(instance("b", state, start_date=start_date), messages={"b": message}))
        shown |= {each.task_id: each for each in news}
        printed += [each.line() for each in news]
    assert printed == ["b deferred (2.0 s)", "b deferred (10.0 s): step 7, loss 2.5", "b success: step 9"]


def test_task_log_is_read_while_running_and_once_after_end() -> None:
    before = {"b": "running", "c": "queued", "d": "failed", "e": "success"}
    now = {"a": "running", "b": "failed", "c": "success", "d": "failed", "e": "success", "f": "queued", "g": "skipped"}
    seen = views_of(*(instance(task, state) for task, state in before.items()))
    news = view.with_news(seen, [instance(task, state) for task, state in now.items()])
    assert [each["task_id"] for each in news] == ["a", "b", "c"]


def test_the_live_table_shows_log_text_as_it_is():
    [shown] = views_of(instance("a", "running"), messages={"a": "[red]shape [2, 3][/red]"})
    assert "[red]shape [2, 3][/red]" in rendered(view.live_table([shown], "demo"))


def test_the_summary_tells_reused_steps_from_those_that_ran():
    rows = view.step_rows(
        plan(step("fetch", "REUSE"), step("train")),
        [instance("steps.fetch", "skipped", duration=0.0), instance("steps.train", "success", duration=61.23)],
    )
    assert [(row.name, row.decision, row.state, row.seconds) for row in rows] == [
        ("fetch", "REUSE", "reused", None),
        ("train", "RUN", "success", 61.23),
    ]
    assert view.reuse_sentence(rows, 3.21) == "1 of 2 steps reused."
    assert view.reuse_sentence(rows[:1], 3.21) == "Nothing had to run: 1 of 1 steps reused, in 3.2 s."
    text = rendered(view.summary_table(rows))
    assert "gs://bucket/train-0a1b2c" in text and "61.2" in text
    [row] = view.step_rows(plan(step("train")), [])
    assert (row.state, row.seconds) == ("waiting", None), "its task does not exist yet"


LOG = """\
::group::Log message source details
/logs/attempt=1.log
::endgroup::
2026-01-31T03:00:00.1Z info ::group::Pre Execute
2026-01-31T03:00:00.2Z info Worker startup parse complete
2026-01-31T03:00:00.3Z info ::endgroup::
2026-01-31T03:00:01.0Z info step 10: loss 3.2
Traceback line without a timestamp
2026-01-31T03:00:02.0Z info ::group::Post Execute
2026-01-31T03:00:02.0Z info Pushing xcom
2026-01-31T03:00:02.1Z info ::endgroup::
"""


def test_the_last_message_is_the_tasks_own_and_not_airflows():
    assert view.last_message(LOG) == "Traceback line without a timestamp"
    assert view.last_message(LOG.replace("Traceback line without a timestamp\n", "")) == "step 10: loss 3.2"


def test_log_end_and_last_message_exclude_lines_of_airflow():
    assert view.last_message("\n".join(LOG.splitlines()[:6])) == view.last_message("") == ""
    assert view.last_lines(LOG) == [
        "2026-01-31T03:00:01.0Z info step 10: loss 3.2",
        "Traceback line without a timestamp",
    ]
    assert view.last_lines(LOG, 1) == ["Traceback line without a timestamp"]
    log = "2026-01-31T03:00:00Z info ::group::Plan\n2026-01-31T03:00:00Z info 3 steps run\n::endgroup::"
    assert view.last_message(log) == "3 steps run"


def test_the_task_that_failed_first_is_to_blame():
    instances = [
        instance("report", "upstream_failed", end_date="2026-01-31T03:00:01Z"),
        instance("b", "failed", end_date="2026-01-31T03:00:05Z"),
        instance("a", "failed", end_date="2026-01-31T03:00:04Z"),
    ]
    assert (view.first_failed(instances) or {})["task_id"] == "a"
    assert view.first_failed([instance("a", "success")]) is None


def test_a_log_entry_with_an_exception_brings_its_frames():
    frames = [{"filename": "a.py", "lineno": 3, "name": "f"}]
    detail = {"exc_type": "ValueError", "exc_value": "no", "frames": frames}
    entry = {"timestamp": "2026-01-31T03:00:00Z", "level": "error", "event": "Task failed", "error_detail": [detail]}
    assert log_line(entry).splitlines() == [
        "2026-01-31T03:00:00Z error Task failed",
        "  File 'a.py', line 3, in f",
        "ValueError: no",
    ]


def test_last_message_is_not_of_triggerer_or_the_finished_line() -> None:
    log = """2026-01-31T03:00:00.1Z info step 10/60  loss 5.3
2026-01-31T03:00:00.2Z info trigger d/manual__2026-01-31T03:00:00+00:00/train/-1/1 (ID 2) starting
2026-01-31T03:00:00.3Z info Trigger fired event
2026-01-31T03:00:00.4Z info trigger completed
"""
    assert view.last_message(log) == "step 10/60 loss 5.3"
    log = """2026-01-31T03:00:00.1Z info export: loss 4.536
2026-01-31T03:00:00.2Z info Step 'code_lm/evaluate' is finished: /store/code_lm/evaluate-1d4a05
"""
    assert view.last_message(log) == "export: loss 4.536"
