"""Routes of the page Experiments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_results import made_record, made_task
from tests.support.outputs import make_output
from tradewind.evaluation.results import write_results
from tradewind.records.info_files import write_experiment_info
from tradewind.records.lease import Phase
from tradewind.storage.errors import StoreUnavailableError

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the only allowed root, with three versions of a step, a failed step and an evaluation."""
    root = str(tmp_path_factory.mktemp("store"))
    for value in range(3):
        make_output(root, "data/clean", value)
    failed = make_output(root, "train", end=Phase.FAILED)
    write_results(make_output(root, "measured"), made_record(), [made_task("arc")])
    named = [failed, f"{root}/never-0a1b2c", "/elsewhere/a-0a1b2c"]
    write_experiment_info(root, "plan", [{"output_path": path} for path in named], "dag.py", "c0")
    Path(root, "link").symlink_to("/etc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", root)
        yield root


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
    orders = ("step", "-since", "-size", "color")
    sorts = {sort: client.get("/experiments/outputs", params={"sort": sort}) for sort in orders}
    assert [answer.status_code for answer in sorts.values()] == [200, 200, 200, 422]
    assert [row["output"]["step"] for row in sorts["step"].json()["rows"]] == ["data/clean"] * 3 + ["measured", "train"]
    assert [row["output"]["step"] for row in sorts["-since"].json()["rows"]][::4] == ["measured", "data/clean"]
    assert [row["output"]["step"] for row in sorts["-size"].json()["rows"]][-1] == "train"
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
    answer = client.get(f"/experiments/{route}", params={"prefix": prefix.format(store=store)})
    assert answer.status_code == status and (status == 200 or answer.json()["detail"])


def test_store_that_fails_is_reported(store: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("gs://b: the store cannot be reached")

    monkeypatch.setattr("tradewind_ui.api.experiments.list_outputs", fail)
    for route in ("outputs", "files", "leaderboards"):
        answer = client.get(f"/experiments/{route}", params={"prefix": f"{store}/{route}"})
        assert (answer.status_code, answer.json()["detail"]) == (503, "gs://b: the store cannot be reached")


def test_list_before_is_shown_while_a_newer_is_read(store: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tradewind_ui.api import experiments

    reads, answered = experiments._reads(wait_s=60), threading.Event()
    reads._ttl_s = 0.0
    monkeypatch.setattr(experiments, "_LISTS", reads)
    boards = client.get("/experiments/leaderboards").json()
    first = client.get("/experiments/outputs", params={"limit": 2}).json()
    monkeypatch.setattr("tradewind_ui.api.experiments.list_outputs", lambda *_: answered.wait(60))
    reads._wait_s = 0.05
    try:
        second = client.get("/experiments/outputs", params={"limit": 2, "offset": 2}).json()
        later = {route: client.get(f"/experiments/{route}").json() for route in ("files", "leaderboards")}
    finally:
        answered.set()
    assert first["reading_s"] is None and second["reading_s"] > 0
    assert (second["admitted"], len(second["rows"]), second["order"]) == (5, 2, first["order"])
    assert all(each["reading_s"] > 0 for each in later.values())
    assert later["leaderboards"]["evaluations"] == boards["evaluations"] and boards["evaluations"]["boards"]
    [file] = later["files"]["files"]
    assert (file["name"], file["counts"]["states"], file["missing"], file["elsewhere"]) == ("plan", {"failed": 1}, 1, 1)


def test_store_that_does_not_answer_takes_no_thread_of_airflow(
    store: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tradewind_ui.api import experiments

    answered = threading.Event()
    monkeypatch.setattr(experiments, "_LISTS", experiments._reads(wait_s=0.05))
    monkeypatch.setattr("tradewind_ui.api.experiments.list_outputs", lambda *_: answered.wait(60))
    try:
        for _ in range(3):
            page = client.get("/experiments/outputs").json()
            assert page["reading_s"] > 0 and page["rows"] == []
        assert sum(thread.name == f"read {store}" for thread in threading.enumerate()) == 1
        monkeypatch.setattr(experiments, "HUNG_S", 0.0)
        hung = client.get("/experiments/outputs")
        assert hung.status_code == 503 and "has not answered for minutes" in hung.json()["detail"]
    finally:
        answered.set()
