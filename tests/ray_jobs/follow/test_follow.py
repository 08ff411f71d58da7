"""Following a job's log: the reader gets each line once and in order, whatever restarts."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.follow.follow import FollowResult, follow_job
from tradewind.ray_jobs.follow.log_lines import JobLog, LogPosition
from tradewind.ray_jobs.request import JobRequest

pytestmark = pytest.mark.ray

SEED = 20260720


def submit(jobs: RayJobs, job: str, folder: Path, code: str) -> None:
    """Submit a job that prints ``BEGIN`` before it runs ``code``, after the lines that Ray writes first."""
    script = folder / f"{job}.py"
    script.write_text("import sys, time\nout = sys.stdout.buffer\nprint('BEGIN', flush=True)\n" + code)
    jobs.submit_or_attach(JobRequest(job, f"python -u {script}"))


def own(lines: Sequence[str]) -> list[str]:
    begin = list(lines).index("BEGIN")
    # Ray's supervisor may write its line after the first ones of the job.
    return [line for line in lines[begin + 1 :] if not line.startswith("Running entrypoint for job ")]


async def follow(jobs: RayJobs, job: str, log: JobLog | None, marker: str | None = None) -> FollowResult:
    following = follow_job(jobs.cluster, job, log=log, notice=lambda sentence: None, result_marker=marker)
    return await asyncio.wait_for(following, 240)


async def lines_of(jobs: RayJobs, job: str, marker: str | None = None) -> list[str]:
    lines: list[str] = []
    end = await follow(jobs, job, JobLog(lines.extend), marker)
    assert end.details is not None and end.details.status == "SUCCEEDED", end
    return own(lines)


def digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


async def test_second_submission_under_one_id_joins_first(jobs: RayJobs) -> None:
    request = JobRequest("once", "python -u -c 'import time; print(1, flush=True); time.sleep(2)'")
    assert jobs.submit_or_attach(request)
    assert not jobs.submit_or_attach(request)
    lines: list[str] = []
    end = await follow(jobs, "once", JobLog(lines.extend))
    assert end.details is not None and end.details.status == "SUCCEEDED" and lines.count("1") == 1
    assert not jobs.submit_or_attach(request), "the head does not rerun an ended job"


async def test_fast_log_is_emitted_once_in_order_and_in_batches(jobs: RayJobs, tmp_path: Path) -> None:
    submit(jobs, "fast", tmp_path, "for n in range(10000):\n  print('line', n)\n  if n % 100 == 99: time.sleep(0.05)\n")
    batches: list[list[str]] = []
    end = await follow(jobs, "fast", JobLog(lambda lines: batches.append(list(lines))))
    assert end.last_lines == tuple(f"line {n}" for n in range(9950, 10000))
    lines = own([line for batch in batches for line in batch])
    assert digest(lines) == digest([f"line {n}" for n in range(10000)])
    assert len(batches) < len(lines) / 10


async def test_restarted_follower_continues_at_its_position(jobs: RayJobs, tmp_path: Path) -> None:
    """Cancel the follower at random moments; only its position survives, as at triggerer restarts."""
    chance = random.Random(SEED)
    submit(jobs, "resumed", tmp_path, "for n in range(6000):\n  print('line', n)\n  time.sleep(0.002)\n")
    lines: list[str] = []
    position, restarts = LogPosition(), 0
    while True:
        log = JobLog(lines.extend, LogPosition.from_json(position.to_json()))
        following = asyncio.create_task(follow(jobs, "resumed", log))
        done, _ = await asyncio.wait([following], timeout=chance.uniform(0.5, 4.0) if restarts < 6 else None)
        position = log.position
        if done:
            break
        restarts += 1
        following.cancel()
        await asyncio.wait([following])
        assert log.position == position  # a cancelled follower emits no more lines
    assert restarts > 0
    assert digest(own(lines)) == digest([f"line {n}" for n in range(6000)])


async def test_log_lines_split_at_crlf_blank_lines_and_open_end(jobs: RayJobs, tmp_path: Path) -> None:
    code = (
        "out.write(b'\\n\\na\\r\\n\\r\\nb\\n\\n\\n'); out.flush(); time.sleep(4)\n"
        "out.write(b'c\\r\\nd'); out.flush(); time.sleep(4)\n"
        "out.write(b'd\\xc3\\xa9\\xf0\\x9f\\x98\\x80\\nlast'); out.flush()\n"
    )
    submit(jobs, "odd", tmp_path, code)
    assert await lines_of(jobs, "odd") == ["", "", "a", "", "b", "", "", "c", "ddé😀", "last"]


async def test_lines_that_are_not_utf8_follow_after_the_end(jobs: RayJobs, tmp_path: Path) -> None:
    code = "out.write(b'a\\n'); time.sleep(3); out.write(b'\\xff\\n'); time.sleep(3); print('b')"
    submit(jobs, "binary", tmp_path, code)
    assert await lines_of(jobs, "binary") == ["a", "\ufffd", "b"]


async def test_result_is_no_line_of_the_log(jobs: RayJobs, tmp_path: Path) -> None:
    submit(jobs, "result", tmp_path, "print('a'); print('RESULT {\"x\": 1}'); time.sleep(4); print('b', end='')")
    assert await lines_of(jobs, "result", "RESULT ") == ["a", "b"]
    end = await follow(jobs, "result", None, "RESULT ")
    assert end.result == '{"x": 1}'
    assert end.last_lines[-2:] == ("a", "b")


async def test_log_over_byte_budget_is_cut_and_names_full_log(jobs: RayJobs, tmp_path: Path) -> None:
    submit(jobs, "long", tmp_path, "for n in range(2000): print('line', n)\ntime.sleep(5); print('RESULT 1')")
    lines: list[str] = []
    log = JobLog(lines.extend, max_bytes=5000, full_log="gs://bucket/log.txt")
    end = await follow(jobs, "long", log, "RESULT ")
    assert sum(len(line) + 1 for line in lines[:-1]) <= 5000
    assert own(lines)[:-1] == [f"line {n}" for n in range(len(own(lines)) - 1)]
    assert "full log at gs://bucket/log.txt" in lines[-1]
    assert end.result == "1" and end.last_lines[-1] == "line 1999"


async def test_each_of_many_followers_gets_all_lines(jobs: RayJobs, tmp_path: Path) -> None:
    submit(jobs, "shared", tmp_path, "for n in range(500):\n  print('line', n)\n  time.sleep(0.01)\n")
    followed = await asyncio.gather(*(lines_of(jobs, "shared") for _ in range(30)))
    assert followed == [[f"line {n}" for n in range(500)]] * 30


async def test_error_of_log_reader_ends_follower(jobs: RayJobs, tmp_path: Path) -> None:
    def refuse(lines: Sequence[str]) -> None:
        raise OSError("disk full")

    submit(jobs, "unread", tmp_path, "time.sleep(600)")
    with pytest.raises(OSError, match="disk full"):
        await follow(jobs, "unread", JobLog(refuse))
