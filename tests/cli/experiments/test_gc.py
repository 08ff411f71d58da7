"""`tradewind gc` lists unused outputs, removes them only on request, and keeps inputs of active runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import airflow.settings
import pendulum
import pytest
from airflow.models.dagrun import DagRun

from tests.cli.experiments.environment import ALLOWED, NIGHTLY, PARTITIONED, STRAY, House

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("runs")
def test_garbage_is_listed_first_and_removed_when_asked(house: House) -> None:
    needed, spare = house.make("train"), house.make("train", "--param", "size=2")
    pinned = house.make("train", "--param", "size=3")
    house("pin", str(pinned))
    house.age()
    before = house.files()
    listed = house("gc")
    assert listed.code == 0, listed.err
    assert [line.split()[-1] for line in listed.out.splitlines()] == [str(spare)]
    assert "in 1 of 3 outputs" in listed.err and "would be removed with --delete" in listed.err
    assert house.files() == before

    kept = house("gc", "nightly", "--param", "size=2", "--delete", "--json")
    assert kept.json[0]["garbage"] == []
    done = house("gc", "--delete", "--json")
    [sweep] = done.json
    assert [(one["output_path"], one["removed"]) for one in sweep["garbage"]] == [(str(spare), True)]
    assert sweep["bytes"] > 0
    assert house.plan("--param", "size=2")["train"]["decision"] == "RUN"
    assert (needed / "model").exists() and (pinned / "model").exists()


def test_young_outputs_are_no_garbage(house: House) -> None:
    house.make("train", "--param", "size=2")
    assert house("gc").out == ""
    assert house("gc", "--older-than", "0m").out != ""


def test_nothing_is_removed_while_a_dag_file_cannot_be_loaded(house: House) -> None:
    house.make("train", "--param", "size=2")
    house.age()
    house.add_dag("broken", '"""An Airflow DAG."""\nimport nothing_of_this_name\n')
    before = house.files()
    done = house("gc", "--delete")
    assert done.code == 1 and "broken.py could not be loaded" in done.err
    assert house.files() == before
    assert house("gc").code == 0


@pytest.mark.usefixtures("runs")
def test_the_outputs_of_a_dag_that_needs_a_partition_are_kept(house: House) -> None:
    house.add_dag("partitioned", PARTITIONED)
    path = Path(house("plan", "partitioned", "--partition", "a", "--json").json["steps"][0]["output_path"])
    path.mkdir(parents=True)
    (path / "model").write_text("weights")
    adopted = house("adopt", str(path), "--as", "shard", "--dag", "partitioned", "--partition", "a")
    assert adopted.code == 0, adopted.err
    house.age()
    done = house("gc", "--delete")
    assert done.code == 0 and "All outputs of the steps of DAG partitioned are kept" in done.err
    assert (path / "model").exists()


@pytest.mark.usefixtures("runs")
def test_gc_keeps_outputs_of_dag_with_disallowed_output_path(house: House, tmp_path: Path) -> None:
    spare, own = house.make("train", "--param", "size=2"), house.make("train", "--param", "size=3")
    (own.parent / "elsewhere-123456").mkdir()
    own = own.rename(own.parent / "elsewhere-123456" / "own")
    info = own / ".executor_info"
    info.write_text(info.read_text().replace('"train"', '"elsewhere"'))
    house.age()
    house.add_dag("stray", STRAY.replace("PLACE", str(tmp_path / "stray")))
    done = house("gc", "--delete")
    assert done.code == 0, done.err
    assert [line.split()[-1] for line in done.out.splitlines()] == [str(spare)]
    assert "All outputs of the steps of DAG stray are kept: Step 'elsewhere': override_output_path" in done.err
    assert (own / "model").exists()


@pytest.mark.usefixtures("runs")
def test_gc_keeps_inputs_of_output_outside_prefix(house: House, tmp_path: Path) -> None:
    """An earlier version of the DAG made the output, so no current step names its input."""
    raw, place = house.make("data/raw", "--param", "size=2"), tmp_path / "far"
    house.add_dag("stray", ALLOWED.replace("PLACE", str(place)).replace("RAW", str(raw)))
    place.mkdir()
    (place / "model").write_text("weights")
    assert house("adopt", str(place), "--as", "elsewhere", "--dag", "stray").code == 0
    house.add_dag("stray", ALLOWED.replace("PLACE", str(place)).replace("RAW", "nothing"))
    house.age()
    kept = house("gc", "--delete")
    assert (kept.code, kept.out) == (0, ""), kept.err
    assert (raw / "model").exists()


@pytest.mark.usefixtures("runs")
def test_gc_keeps_inputs_of_pinned_output_under_hidden_prefix(house: House) -> None:
    """A search from the parent prefix does not enter hidden folders."""
    raw, team = house.make("data/raw", "--param", "size=2"), house.store / ".team"
    dag = STRAY.replace(', override_output_path="PLACE"', "").replace("[step])", f"[step], prefix={str(team)!r})")
    dag = dag.replace('"stray"', '"team"')
    house.add_dag("team", dag.replace("RAW", str(raw)))
    planned = house("plan", "team", "--json")
    assert planned.code == 0, planned.err
    path = Path(planned.json["steps"][0]["output_path"])
    path.mkdir(parents=True)
    (path / "model").write_text("weights")
    adopted = house("adopt", str(path), "--as", "elsewhere", "--dag", "team")
    assert adopted.code == 0, adopted.err
    pinned = house("pin", str(path), "--prefix", str(team))
    assert pinned.code == 0, pinned.err
    house.add_dag("team", dag.replace("RAW", "nothing"))
    house.age()
    kept = house("gc", "--delete")
    assert (kept.code, kept.out) == (0, ""), kept.err
    assert (raw / "model").exists()


def test_garbage_is_found_below_a_prefix_that_no_dag_names(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, spare = house.make("train"), house.make("train", "--param", "size=2")
    house.age()
    monkeypatch.delenv("TRADEWIND_PREFIX")
    unknown = house("gc")
    assert unknown.code == 2 and "no DAG has a prefix" in unknown.err
    done = house("gc", "--prefix", str(house.store))
    assert done.code == 0 and done.out.split()[-1] == str(spare) and str(needed) not in done.out


def test_params_are_those_of_dags_that_are_named(house: House) -> None:
    unnamed, unknown = house("gc", "--param", "size=2"), house("gc", "nightly", "--param", "sise=2")
    assert unnamed.code == 2 and "name one" in unnamed.err
    assert unknown.code == 2 and "has no param 'sise'" in unknown.err


# ---- inputs of active runs

SIZE_2 = ("--param", "size=2")


@pytest.mark.parametrize(("state", "run_type"), [("queued", "manual"), ("running", "manual"), ("queued", "backfill")])
def test_an_active_run_keeps_what_it_has_yet_to_read(
    state: str, run_type: str, house: House, runs: Callable[..., None]
) -> None:
    raw, spare = house.make("data/raw", *SIZE_2), house.make("data/raw", "--param", "size=3")
    house.age()
    runs(state, run_type=run_type, conf={"size": 2})
    done = house("gc", "--delete")
    assert done.code == 0, done.err
    assert [line.split()[-1] for line in done.out.splitlines()] == [str(spare)]
    assert (raw / "model").exists() and house.plan(*SIZE_2)["data/raw"]["decision"] == "REUSE"


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_run_that_has_ended_keeps_nothing(state: str, house: House, runs: Callable[..., None]) -> None:
    raw = house.make("data/raw", *SIZE_2)
    house.age()
    runs(state, conf={"size": 2})
    assert house("gc").out.split()[-1] == str(raw)


def test_an_active_run_keeps_what_its_own_night_names(house: House, runs: Callable[..., None]) -> None:
    report, spare = (house.make("report", "--night", night) for night in ("2026-03-01", "2026-03-08"))
    house.age()
    start = pendulum.datetime(2026, 3, 1, tz="Europe/Zurich")
    interval = (start, start.add(days=7))
    runs("running", run_type="scheduled", logical_date=start, data_interval=interval)
    assert [line.split()[-1] for line in house("gc").out.splitlines()] == [str(spare)]
    assert report != spare


@pytest.mark.parametrize(
    "fields", [{"conf": {"size": "much"}}, {"conf": {"prefix": "relative"}}, {"bundle_version": "of-last-week"}]
)
def test_gc_keeps_all_outputs_of_unresolvable_active_run(
    fields: dict[str, Any], house: House, runs: Callable[..., None]
) -> None:
    house.add_dag(
        "nightly",
        NIGHTLY.replace('"size": 1.0', '"size": Param(1.0, type="number")').replace(
            "from tradewind", "from airflow.sdk import Param\nfrom tradewind", 1
        ),
    )
    made = [house.make(name, *SIZE_2) for name in ("data/raw", "train")]
    house.age()
    assert len(house("gc").out.splitlines()) == len(made)
    runs("queued", **fields)
    kept = house("gc", "--delete")
    assert (kept.code, kept.out) == (0, ""), kept.err
    assert "All outputs of the steps of DAG nightly are kept, for its active run the-run" in kept.err
    assert all((path / "model").exists() for path in made)


def test_a_run_of_a_dag_that_is_no_experiment_keeps_nothing(house: House, runs: Callable[..., None]) -> None:
    raw = house.make("data/raw", *SIZE_2)
    house.age()
    runs("running", dag_id="another")
    assert house("gc").out.split()[-1] == str(raw)


def test_nothing_is_removed_while_the_active_runs_cannot_be_read(house: House, database: None) -> None:
    raw = house.make("data/raw", *SIZE_2)
    house.age()
    DagRun.__table__.drop(airflow.settings.engine)
    try:
        listed, refused = house("gc"), house("gc", "--delete")
    finally:
        DagRun.__table__.create(airflow.settings.engine)
    assert listed.code == 0 and listed.out.split()[-1] == str(raw)
    assert "The list includes outputs that active runs require: Cannot read the active runs" in listed.err
    assert refused.code == 1 and "Nothing was removed. Cannot read the active runs" in refused.err
    assert (raw / "model").exists()
