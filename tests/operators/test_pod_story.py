"""What a step on slices went through, in a line for its task's log and as a table for its page."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.operators.pod_story import goodput, in_words, story_of
from tradewind.records.attempts import attempt_folder
from tradewind.steps import Cpu, Hosts, TpuSlice

START = 1_790_000_000.0


def event(name: str, after_s: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "at": START + after_s, **fields}


CALM = [
    event("waiting", 0),
    event("reserved", 3),
    event("started", 4),
    event("first_step", 20, step=0),
    event("done", 120, step=99),
]
ROUGH = [
    *CALM[:4],
    event("preempted", 104, cause="node died", sentence="Host 1 was lost.", step=70, checkpoint_step=40),
    event("waiting", 105),
    event("started", 165),
    event("first_step", 175, step=41),
    event("failed", 195, cause="exception", sentence="Host 0 raised <ValueError>.", step=81, checkpoint_step=80),
    event("started", 196),
    event("first_step", 200, step=81),
    event("done", 204, step=99),
]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def leave(output: Path, attempt: int, text: str) -> None:
    file = Path(attempt_folder(str(output), attempt), "timeline.json")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (output / ".attempts" / f"{attempt}.json").write_text("{}")


def test_a_pod_that_started_again_is_told_of_in_one_line() -> None:
    told = in_words(ROUGH)
    assert told == "1 preemption, 1 failure, 31 steps lost, waited 1.1 min, goodput 0.36"


def test_a_pod_that_ran_through_is_not_worth_a_line() -> None:
    assert in_words(CALM) is None
    assert in_words([]) is None


def test_goodput_is_the_share_of_steps_since_the_first_start() -> None:
    assert goodput(CALM) == pytest.approx(100 / 116)
    assert goodput([event("started", 0), event("done", 5)]) is None  # it counts no steps


def test_the_story_of_an_attempt_is_read_beside_its_output(output: Path) -> None:
    leave(output, 2, json.dumps(ROUGH))
    for resources in (TpuSlice("v4-16"), Hosts(2)):
        told = story_of(str(output), 2, resources)
        assert told is not None and told.startswith("1 preemption, 1 failure")
    assert story_of(str(output), 2, Cpu()) is None
    assert story_of(str(output), 1, TpuSlice("v4-16")) is None
    leave(output, 3, "half a f")
    assert story_of(str(output), 3, TpuSlice("v4-16")) is None


def test_the_page_shows_the_newest_attempts_events_as_text(output: Path) -> None:
    timelines = importlib.import_module("tradewind_ui.timelines")
    assert timelines.timeline_of(str(output)) == ""
    leave(output, 9, json.dumps(CALM))
    leave(output, 10, json.dumps(ROUGH))
    page = timelines.timeline_of(str(output))
    assert "<h2>Attempt 10</h2>" in page and "<p>1 preemption, 1 failure, 31 steps lost" in page
    assert page.count("<tr") == 1 + len(ROUGH)
    assert "node died" in page and "Host 0 raised &lt;ValueError&gt;." in page
    assert "<ValueError>" not in page


def test_a_timeline_that_cannot_be_read_never_keeps_the_page_from_being_shown(output: Path) -> None:
    timelines = importlib.import_module("tradewind_ui.timelines")
    leave(output, 1, "half a f")
    assert "The timeline cannot be read now" in timelines.timeline_of(str(output))
    assert "The timeline cannot be read now" in timelines.timeline_of("nowhere://at/all")
