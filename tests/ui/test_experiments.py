"""Routes of the page Experiments, and the reads that its requests share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_results import made_record, made_task
from tests.support.outputs import make_output
from tradewind.evaluation.results import write_results
from tradewind.records.lease import Phase
from tradewind.storage.errors import StoreUnavailableError
from tradewind_ui.api import shared_reads
from tradewind_ui.api.shared_reads import HungReadError, Running, SharedReads, TooManyReadsError

pytestmark = pytest.mark.airflow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the only allowed root, with three versions of a step, a failed step and an evaluation."""
    root = str(tmp_path / "store")
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", root)
    for value in range(3):
        make_output(root, "data/clean", value)
    make_output(root, "train", end=Phase.FAILED)
    write_results(make_output(root, "measured"), made_record(), [made_task("arc")])
    return root


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Return a client of the routes as a user who may read data."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from tradewind_ui.api import experiments
    from tradewind_ui.api.security import may_read_data

    app = FastAPI()
    app.include_router(experiments.router)
    app.dependency_overrides[may_read_data] = lambda: None
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_outputs_are_paged_and_filtered(store: str, client: Any) -> None:
    page = client.get("/experiments/outputs", params={"limit": 2}).json()
    assert (page["prefix"], page["roots"], page["total"], page["admitted"]) == (store, [store], 5, 5)
    assert [(row["output"]["step"], row["versions"]) for row in page["rows"]] == [("data/clean", 3)] * 2
    assert page["rows"][0]["details"]["size_bytes"] == 4
    assert page["experiments"] == [{"name": "nightly", "states": {"finished": 4, "failed": 1}}]
    last = client.get("/experiments/outputs", params={"limit": 2, "offset": 4}).json()
    assert [row["output"]["step"] for row in last["rows"]] == ["train"]
    failed = client.get("/experiments/outputs", params={"state": "failed", "experiment": "nightly"}).json()
    assert (failed["admitted"], failed["rows"][0]["output"]["status"]["task"]) == (1, "train")
    assert client.get("/experiments/outputs", params={"experiment": ""}).json()["admitted"] == 0


def test_leaderboards_have_the_evaluations_with_intervals(store: str, client: Any) -> None:
    boards = client.get("/experiments/leaderboards", params={"prefix": f"{store}/"}).json()
    [board] = [each for each in boards["evaluations"]["boards"] if each["metric"] == "acc"]
    [score] = board["scores"]
    assert score["low"] < score["value"] < score["high"] and score["label"].startswith("measured-")
    assert boards["speedruns"]["boards"] == []


@pytest.mark.parametrize("route", ["outputs", "files", "leaderboards"])
@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        ("/etc", 403),
        ("{store}/../..", 403),
        ("{store}/link", 403),
        ("gs://a::file:///etc", 403),
        ("http://example.org", 403),
        ("relative", 403),
        ("\0", 403),
        ("x" * 5_000, 422),
        ("{store}/none", 200),
        ("{store}", 200),
    ],
)
def test_only_prefixes_below_a_root_are_read(store: str, client: Any, route: str, prefix: str, status: int) -> None:
    Path(store, "link").symlink_to("/etc")
    answer = client.get(f"/experiments/{route}", params={"prefix": prefix.format(store=store)})
    assert answer.status_code == status and (status == 200 or answer.json()["detail"])


def test_store_that_fails_is_reported(store: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("gs://b: the store cannot be reached")

    monkeypatch.setattr("tradewind_ui.api.experiments.list_outputs", fail)
    for route in ("outputs", "files", "leaderboards"):
        answer = client.get(f"/experiments/{route}", params={"prefix": f"{store}/{route}"})
        assert (answer.status_code, answer.json()["detail"]) == (503, "gs://b: the store cannot be reached")


def test_store_that_does_not_answer_takes_no_thread_of_airflow(
    store: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    reads = SharedReads[Any](wait_s=0.05)
    monkeypatch.setattr("tradewind_ui.api.experiments._LISTS", reads)
    monkeypatch.setattr("tradewind_ui.api.experiments.list_outputs", lambda *_: answered.wait(60))
    try:
        for _ in range(3):
            page = client.get("/experiments/outputs").json()
            assert page["reading_s"] > 0 and page["rows"] == []
        assert sum(thread.name == "tradewind-read" for thread in threading.enumerate()) == 1
        monkeypatch.setattr(shared_reads, "HUNG_S", 0.0)
        hung = client.get("/experiments/outputs")
        assert hung.status_code == 503 and "has not answered for minutes" in hung.json()["detail"]
    finally:
        answered.set()


def test_requests_share_a_read_and_its_result_for_a_while() -> None:
    calls: list[float] = []

    def read() -> int:
        calls.append(time.monotonic())
        time.sleep(0.05)
        return len(calls)

    async def ask(reads: SharedReads[int]) -> list[int | Running]:
        first = await asyncio.gather(*(reads.get("a", read) for _ in range(5)))
        return [*first, await reads.get("a", read)]

    assert asyncio.run(ask(SharedReads(ttl_s=60.0))) == [1] * 6
    assert asyncio.run(ask(SharedReads(ttl_s=0.0))) == [2] * 5 + [3]


def test_failed_read_is_made_again() -> None:
    results = iter([ValueError("no"), 7])

    def read() -> int:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    async def ask() -> int | Running:
        reads = SharedReads[int]()
        with pytest.raises(ValueError, match="no"):
            await reads.get("a", read)
        return await reads.get("a", read)

    assert asyncio.run(ask()) == 7


def test_reads_that_hang_are_few_and_results_that_stay_too(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(shared_reads, "MAX_RUNNING", 2)
    monkeypatch.setattr(shared_reads, "MAX_KEPT", 2)

    async def ask() -> None:
        reads = SharedReads[bool](wait_s=0.01)
        for key in ("a", "b"):
            assert isinstance(await reads.get(key, lambda: over.wait(60)), Running)
        with pytest.raises(TooManyReadsError):
            await reads.get("c", bool)
        monkeypatch.setattr(shared_reads, "HUNG_S", 0.0)
        with pytest.raises(HungReadError):
            await reads.get("a", bool)
        monkeypatch.setattr(shared_reads, "HUNG_S", 60.0)
        over.set()
        while isinstance(await reads.get("b", bool), Running):
            pass
        for key in "cdefg":
            await reads.get(key, bool)
        assert len(reads._reads) <= 3

    try:
        asyncio.run(ask())
    finally:
        over.set()
