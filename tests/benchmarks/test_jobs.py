"""Job benchmark: the lines that it finds in logs, and the proxy that counts requests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSServerHandshakeError, web
from aiohttp.test_utils import TestServer

from benchmarks.jobs import follow, ids, lines, logs, printer, proxy


def log_record(at: float, *lines: str) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    return json.dumps({"timestamp": moment, "level": "info", "event": "\n".join(lines), "logger": "ray.job"})


def job_line(number: int, printed: float) -> str:
    return printer.LINE.format(number=number, printed=printed, padding=printer.PADDING)


def test_lines_are_parsed_from_whole_records_not_torn_ones() -> None:
    records = [log_record(12.5, job_line(0, 10.0)), log_record(13.0, job_line(1, 11.0), "other", job_line(2, 12.0))]
    torn = log_record(14.0, job_line(3, 13.0))[:-5]
    parsed = list(logs.lines_in([*records, "plain text", torn]))
    assert [(line.number, line.printed, line.logged) for line in parsed] == [(0, 10, 12.5), (1, 11, 13), (2, 12, 13)]


def test_lost_repeated_and_reordered_lines_are_counted() -> None:
    logged = [logs.LoggedLine(number, 10.0 + number, 20.0 + number) for number in (0, 1, 1, 3, 2)]
    result = lines.carried(logged, 6)
    assert (result.lost, result.repeated, result.in_order) == (2, 1, False)
    assert result.lines_per_second == pytest.approx(4 / 13) and result.last_lag == pytest.approx(10.0)
    assert lines.carried(logged[:2], 2).in_order and lines.carried([], 2).lost == 2


def test_task_log_merges_worker_and_triggerer_files(tmp_path: Path) -> None:
    folder = tmp_path / "dag_id=d" / "run_id=r" / "task_id=t"
    folder.mkdir(parents=True)
    (folder / "attempt=1.log").write_text(log_record(30.0, job_line(1, 29.0)) + "\n")
    (folder / "attempt=1.log.trigger.7.log").write_text(log_record(20.0, job_line(0, 19.0)) + "\n")
    assert [line.number for line in logs.lines_of_task(tmp_path, "d", "r", "t")] == [0, 1]
    assert logs.fired_at(tmp_path, "d", "r", "t") is None
    (folder / "attempt=1.log.trigger.7.log").write_text(log_record(25.0, "Trigger fired event") + "\n")
    assert logs.fired_at(tmp_path, "d", "r", "t") == 25.0


def test_printer_prints_requested_number_of_lines() -> None:
    command = [sys.executable, printer.__file__, "5", "1000"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    record = log_record(time.time(), printed)
    assert [line.number for line in logs.lines_in([record])] == [0, 1, 2, 3, 4]


def test_followers_of_a_size_include_those_of_smaller_sizes() -> None:
    everything = ids.job_ids("ours", 10)
    parts = [ids.job_ids("ours", size)[first:] for first, size in ids.batches([10, 1, 6])]
    assert sum(parts, []) == everything and [len(part) for part in parts] == [1, 5, 4]
    assert [job.startswith("ours-") for job in everything] == [True] * 4 + [False] * 6
    assert ids.batches([]) == []
    assert follow.sizes_for(True, [1, 300]) == [1, 300]
    assert follow.sizes_for(False, [1, 50, 300]) == [1, 8], "a worker for each job that is not deferred"


async def test_proxy_forwards_and_counts_bodies_refusals_websockets() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), status=201)

    async def tail(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("one line\n")
        return socket

    app = web.Application()
    app.router.add_post("/api/jobs/", echo)
    app.router.add_get("/api/jobs/some-job/logs/tail", tail)
    async with TestServer(app) as head, ClientSession() as client:
        with proxy.CountingProxy(str(head.make_url("/"))) as counting:
            async with client.post(f"{counting.address}/api/jobs/?a=1", data=b"x" * 200_000) as answer:
                assert answer.status == 201 and await answer.read() == b"x" * 200_000
            async with client.ws_connect(f"{counting.address}/api/jobs/some-job/logs/tail") as socket:
                assert [message.data async for message in socket] == ["one line\n"]
            with pytest.raises(WSServerHandshakeError) as refusal:
                await client.ws_connect(f"{counting.address}/api/jobs/unknown/logs/tail")
            assert refusal.value.status == 404
    assert counting.traffic.requests == {"POST /api/jobs/": 1, "GET /api/jobs/*/logs/tail": 2}
    assert counting.traffic.received == 200_000 + len("one line\n")


@pytest.mark.slow
def test_dag_file_passes_the_arguments_of_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ids.SIZES_VARIABLE, "[6]")
    from benchmarks.jobs.dags import ours
    from tradewind.triggers.ray_job import RayJobTrigger

    for job in ids.job_ids("ours", 6):
        arguments = ours.trigger_kwargs(job)
        assert RayJobTrigger(**arguments).serialize()[1] == arguments
