"""Jobs and log lines that ``tradewind jobs`` prints."""

from __future__ import annotations

import re

import pytest

from tradewind.cli.jobs.commands import LineFilter, chosen, job_rows, newest_match, table
from tradewind.cli.output import CommandError
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails

OLD = JobDetails("train-old", "RUNNING", "python a.py", metadata={"owner": "me"}, started_ms=1_000_000)
NEW = JobDetails("train-new", "PENDING", "python\n  b.py " + "x" * 100, metadata={"owner": "you"}, started_ms=2_000_000)
DONE = JobDetails("eval", "FAILED", "true", metadata={"owner": "me"}, started_ms=3_000_000, ended_ms=3_090_000)
JOBS = [OLD, DONE, NEW]


def test_those_that_have_not_ended_are_listed_newest_first() -> None:
    assert chosen(JOBS, everything=False, metadata={}) == [NEW, OLD]
    assert chosen(JOBS, everything=True, metadata={}) == [DONE, NEW, OLD]
    assert chosen(JOBS, everything=True, metadata={"owner": "me"}) == [DONE, OLD]
    assert chosen(JOBS, everything=False, metadata={"owner": "me"}) == [OLD]


def test_job_table_has_one_aligned_line_per_job() -> None:
    head, *rows = table([DONE, NEW, JobDetails("bare", "PENDING")], now=2_600.0)
    assert len(rows) == 3
    column = head.index("STATUS")
    assert [row[column:].split()[0] for row in rows] == ["FAILED", "PENDING", "PENDING"]
    assert " 90 s " in rows[0] and " 10 min " in rows[1]
    assert "python b.py xx" in rows[1] and rows[1].endswith("...")
    assert table([], now=0.0) == ["JOB  STATUS  SUBMITTED  FOR  COMMAND"]


def test_the_newest_match_is_the_one_submitted_last() -> None:
    cluster = RayCluster("c", "http://c:1")
    assert newest_match(JOBS, "train", cluster) == "train-new"
    with pytest.raises(CommandError, match="has no job with 'latest' in its id"):
        newest_match(JOBS, "latest", cluster)


def shown(lines: list[str], later: list[str], grep: str | None, tail: int | None) -> list[str]:
    found: list[str] = []
    some = LineFilter(found.extend, re.compile(grep) if grep else None, tail)
    some.add(lines)
    some.show_last()
    some.add(later)
    return found


def test_the_pattern_comes_before_the_tail() -> None:
    lines = ["a 1", "b 2", "a 3", "b 4", "a 5", "b 6"]
    assert shown(lines, [], "^a", 2) == ["a 3", "a 5"]
    assert shown(lines, [], None, 2) == ["a 5", "b 6"]
    assert shown(lines, [], "^a", None) == ["a 1", "a 3", "a 5"]
    assert shown(lines, [], None, 0) == []


def test_lines_after_the_tail_are_shown_as_they_come() -> None:
    assert shown(["a 1", "a 2"], ["b 3", "a 4", "a 5"], "^a", 1) == ["a 2", "a 4", "a 5"]
    found: list[str] = []
    LineFilter(found.extend, None, None).add(["a"])
    assert found == ["a"]


def test_job_status_shows_user_start_time_and_ray_state() -> None:
    job = JobDetails(
        "train", "FAILED", "python a.py", "Job entrypoint failed:\nKeyError: 'x'", "JOB_ENTRYPOINT_COMMAND_ERROR", 1,
        metadata={"user": "ada"}, started_ms=1_000_000, ended_ms=1_090_000,
    )  # fmt: skip
    rows = list(job_rows(job, "http://c:1/#/jobs/train", now=9_999.0))
    found = dict(row for row in rows if row[0])
    assert (found["job"], found["status"]) == ("train", "FAILED, JOB_ENTRYPOINT_COMMAND_ERROR")
    assert (found["whose"], found["exit code"], found["command"]) == ("ada", "1", "python a.py")
    assert found["submitted"].endswith(", 90 s") and "ended" in found
    assert ("message", "Job entrypoint failed:") in rows and ("", "KeyError: 'x'") in rows
    assert rows[-1] == ("link", "http://c:1/#/jobs/train")
    new = dict(job_rows(JobDetails("train", "PENDING", "true", started_ms=1_000_000), None, now=1_060.0))
    assert new["whose"] == "-" and new["submitted"].endswith(", 60 s")
    assert {"ended", "exit code", "message", "link"}.isdisjoint(new)
