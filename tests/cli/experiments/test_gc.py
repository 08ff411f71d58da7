"""`tradewind gc` lists unused outputs, removes them only on request, and keeps inputs of active runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import airflow.settings
import pendulum
import pytest
from airflow.models.dagrun import DagRun

from tests.cli.conftest import Ended
from tests.cli.experiments.conftest import ALLOWED, GROUPED, NIGHTLY, PARTITIONED, STRAY, Environment

pytestmark = pytest.mark.slow


def paths(done: Ended) -> list[str]:
    """Return the listed outputs."""
    return [line.split()[-1] for line in done.out.splitlines()]


def adopt(cli: Environment, path: Path, *words: str) -> None:
    """Make an output, and adopt it."""
    path.mkdir(parents=True)
    (path / "model").write_text("weights")
    done = cli("adopt", str(path), *words)
    assert done.code == 0, done.err


@pytest.mark.usefixtures("runs")
def test_garbage_is_listed_and_removed_only_with_delete(cli: Environment) -> None:
    needed, spare = cli.make("train"), cli.make("train", "--param", "size=2")
    pinned = cli.make("train", "--param", "size=3")
    cli("pin", str(pinned))
    cli.age()
    before = cli.files()
    listed = cli("gc")
    assert listed.code == 0, listed.err
    assert paths(listed) == [str(spare)]
    assert "in 1 of 3 outputs" in listed.err and "would be removed with --delete" in listed.err
    assert cli.files() == before

    done = cli("gc", "nightly", "--param", "size=2", "--delete", "--json")
    assert done.json[0]["garbage"] == []
    done = cli("gc", "--delete", "--json")
    [sweep] = done.json
    assert [(one["output_path"], one["removed"]) for one in sweep["garbage"]] == [(str(spare), True)]
    assert sweep["bytes"] > 0
    assert cli.plan("--param", "size=2")["train"]["decision"] == "RUN"
    assert (needed / "model").exists() and (pinned / "model").exists()


def test_young_outputs_are_no_garbage(cli: Environment) -> None:
    cli.make("train", "--param", "size=2")
    assert cli("gc").out == ""
    assert cli("gc", "--older-than", "0m").out != ""


def test_nothing_is_removed_while_a_dag_file_cannot_be_loaded(cli: Environment) -> None:
    cli.make("train", "--param", "size=2")
    cli.age()
    cli.add_dag("broken", '"""An Airflow DAG."""\nimport nothing_of_this_name\n')
    before = cli.files()
    done = cli("gc", "--delete")
    assert done.code == 1 and "broken.py could not be loaded" in done.err
    assert cli.files() == before
    assert cli("gc").code == 0


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("text", "name", "words"),
    [(PARTITIONED, "partitioned", ["--partition", "a"]), (GROUPED, "grouped:shard", ["--param", "key=1"])],
)
def test_outputs_are_kept_if_only_runs_know_their_versions(
    cli: Environment, text: str, name: str, words: list[str]
) -> None:
    cli.add_dag("own", text)
    path = Path(cli("plan", name, *words, "--json").json["steps"][0]["output_path"])
    adopt(cli, path, "--as", "shard", "--dag", name, *words)
    cli.age()
    done = cli("gc", "--delete")
    assert done.code == 0 and f"All outputs of the steps of DAG {name} are kept" in done.err
    assert (path / "model").exists()


@pytest.mark.usefixtures("runs")
def test_gc_keeps_outputs_of_dag_with_disallowed_output_path(cli: Environment, tmp_path: Path) -> None:
    spare, own = cli.make("train", "--param", "size=2"), cli.make("train", "--param", "size=3")
    (own.parent / "elsewhere-123456").mkdir()
    own = own.rename(own.parent / "elsewhere-123456" / "own")
    info = own / ".executor_info"
    info.write_text(info.read_text().replace('"train"', '"elsewhere"'))
    cli.age()
    cli.add_dag("stray", STRAY.replace("PLACE", str(tmp_path / "stray")))
    done = cli("gc", "--delete")
    assert done.code == 0, done.err
    assert paths(done) == [str(spare)]
    assert "All outputs of the steps of DAG stray are kept: Step 'elsewhere': override_output_path" in done.err
    assert (own / "model").exists()


@pytest.mark.usefixtures("runs")
def test_gc_keeps_inputs_of_output_outside_prefix(cli: Environment, tmp_path: Path) -> None:
    """An earlier version of the DAG made the output, so no current step names its input."""
    raw, place = cli.make("data/raw", "--param", "size=2"), tmp_path / "far"
    cli.add_dag("stray", ALLOWED.replace("PLACE", str(place)).replace("RAW", str(raw)))
    adopt(cli, place, "--as", "elsewhere", "--dag", "stray")
    cli.add_dag("stray", ALLOWED.replace("PLACE", str(place)).replace("RAW", "nothing"))
    cli.age()
    done = cli("gc", "--delete")
    assert (done.code, done.out) == (0, ""), done.err
    assert (raw / "model").exists()


@pytest.mark.usefixtures("runs")
def test_gc_keeps_inputs_of_pinned_output_under_hidden_prefix(cli: Environment) -> None:
    """A search from the parent prefix does not enter hidden folders."""
    raw, team = cli.make("data/raw", "--param", "size=2"), cli.store / ".team"
    dag = STRAY.replace(', override_output_path="PLACE"', "").replace("[step])", f"[step], prefix={str(team)!r})")
    dag = dag.replace('"stray"', '"team"')
    cli.add_dag("team", dag.replace("RAW", str(raw)))
    planned = cli("plan", "team", "--json")
    assert planned.code == 0, planned.err
    path = Path(planned.json["steps"][0]["output_path"])
    adopt(cli, path, "--as", "elsewhere", "--dag", "team")
    pinned = cli("pin", str(path), "--prefix", str(team))
    assert pinned.code == 0, pinned.err
    cli.add_dag("team", dag.replace("RAW", "nothing"))
    cli.age()
    done = cli("gc", "--delete")
    assert (done.code, done.out) == (0, ""), done.err
    assert (raw / "model").exists()


def test_garbage_is_found_below_a_prefix_that_no_dag_names(cli: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, spare = cli.make("train"), cli.make("train", "--param", "size=2")
    cli.age()
    monkeypatch.delenv("TRADEWIND_PREFIX")
    unknown = cli("gc")
    assert unknown.code == 2 and "no DAG has a prefix" in unknown.err
    done = cli("gc", "--prefix", str(cli.store))
    assert done.code == 0 and done.out.split()[-1] == str(spare) and str(needed) not in done.out


def test_params_are_those_of_dags_that_are_named(cli: Environment) -> None:
    unnamed, unknown = cli("gc", "--param", "size=2"), cli("gc", "nightly", "--param", "sise=2")
    assert unnamed.code == 2 and "name one" in unnamed.err
    assert unknown.code == 2 and "has no param 'sise'" in unknown.err


SIZE_2 = ("--param", "size=2")


@pytest.mark.parametrize(("state", "run_type"), [("queued", "manual"), ("running", "manual"), ("queued", "backfill")])
def test_gc_keeps_inputs_of_active_run(state: str, run_type: str, cli: Environment, runs: Callable[..., None]) -> None:
    raw, spare = cli.make("data/raw", *SIZE_2), cli.make("data/raw", "--param", "size=3")
    cli.age()
    runs(state, run_type=run_type, conf={"size": 2})
    done = cli("gc", "--delete")
    assert done.code == 0, done.err
    assert paths(done) == [str(spare)]
    assert (raw / "model").exists() and cli.plan(*SIZE_2)["data/raw"]["decision"] == "REUSE"


@pytest.mark.parametrize(
    "other_run",
    [("success", {}), ("failed", {}), ("running", {"dag_id": "another"})],
    ids=["success", "failed", "another"],
)
def test_gc_ignores_ended_run_and_run_of_other_dag(
    other_run: tuple[str, dict[str, str]], cli: Environment, runs: Callable[..., None]
) -> None:
    raw = cli.make("data/raw", *SIZE_2)
    cli.age()
    runs(other_run[0], conf={"size": 2}, **other_run[1])
    assert paths(cli("gc")) == [str(raw)]


def test_gc_keeps_outputs_of_active_runs_date(cli: Environment, runs: Callable[..., None]) -> None:
    report, spare = (cli.make("report", "--night", night) for night in ("2026-03-01", "2026-03-08"))
    cli.age()
    start = pendulum.datetime(2026, 3, 1, tz="Europe/Zurich")
    interval = (start, start.add(days=7))
    runs("running", run_type="scheduled", logical_date=start, data_interval=interval)
    assert paths(cli("gc")) == [str(spare)]
    assert report != spare


@pytest.mark.parametrize(
    "fields", [{"conf": {"size": "much"}}, {"conf": {"prefix": "relative"}}, {"bundle_version": "of-last-week"}]
)
def test_gc_keeps_all_outputs_of_unresolvable_active_run(
    fields: dict[str, Any], cli: Environment, runs: Callable[..., None]
) -> None:
    dag = NIGHTLY.replace('"size": 1.0', '"size": Param(1.0, type="number")')
    cli.add_dag("nightly", dag.replace("from tradewind", "from airflow.sdk import Param\nfrom tradewind", 1))
    made = [cli.make(name, *SIZE_2) for name in ("data/raw", "train")]
    cli.age()
    assert len(cli("gc").out.splitlines()) == len(made)
    runs("queued", **fields)
    done = cli("gc", "--delete")
    assert (done.code, done.out) == (0, ""), done.err
    assert "All outputs of the steps of DAG nightly are kept, for its active run the-run" in done.err
    assert all((path / "model").exists() for path in made)


def test_nothing_is_removed_while_the_active_runs_cannot_be_read(cli: Environment, database: None) -> None:
    raw = cli.make("data/raw", *SIZE_2)
    cli.age()
    DagRun.__table__.drop(airflow.settings.engine)
    try:
        listed, refused = cli("gc"), cli("gc", "--delete")
    finally:
        DagRun.__table__.create(airflow.settings.engine)
    assert listed.code == 0 and listed.out.split()[-1] == str(raw)
    assert "The list includes outputs that active runs require: Cannot read the active runs" in listed.err
    assert refused.code == 1 and "Nothing was removed. Cannot read the active runs" in refused.err
    assert (raw / "model").exists()
