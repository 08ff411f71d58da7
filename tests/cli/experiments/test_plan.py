"""`tradewind plan` prints what would run and writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.experiments.conftest import GROUPED, PARTITIONED, Environment, settings


@pytest.mark.airflow
def test_airflow_command_prints_plan_json_without_database(cli: Environment, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(tmp_path / "airflow"), **settings(tmp_path)}
    command = [sys.executable, "-m", "airflow", "tradewind", "plan", "nightly", "--param", "size=2", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert steps == cli.plan("--param", "size=2")
    assert not (tmp_path / "airflow" / "airflow.db").exists()


def test_a_plan_is_printed_and_nothing_is_written(cli: Environment) -> None:
    done = cli("plan", "nightly")
    assert done.code == 0, done.err
    rows = [line.split()[:2] for line in done.out.splitlines()[1:4]]
    assert rows == [["RUN", "data/raw"], ["RUN", "train"], ["RUN", "report"]]
    assert "a line of the DAG file's own" in done.err
    assert not cli.store.exists()


def test_params_are_read_as_their_schemas_mean_them(cli: Environment) -> None:
    default = cli.plan()
    assert cli.plan("--param", "size=1") == default, "an integer for a param that is a float"
    assert cli.plan("--param", "note=1") == default, "a text stays one"
    other = cli.plan("--param", "size=2")
    assert {name for name in default if other[name]["hash"] != default[name]["hash"]} == set(default)


@pytest.mark.slow
def test_the_night_is_that_of_a_run_of_the_schedule(cli: Environment) -> None:
    sunday = cli.plan("--night", "2026-03-01")
    assert cli.plan("--date", "2026-03-08")["report"]["hash"] != sunday["report"]["hash"]
    assert cli.plan("--night", "2026-03-29")["train"] == sunday["train"], "also when the clocks change"
    refused = cli("plan", "nightly", "--night", "2026-03-02")
    assert refused.code == 2
    assert "has no run for 2026-03-02; the next one is for 2026-03-08" in refused.err


def test_a_group_is_named_and_its_values_are_given(cli: Environment) -> None:
    cli.add_dag("grouped", GROUPED)
    several = cli("plan", "grouped")
    assert several.code == 2 and "'grouped' has several groups: name grouped:shard or grouped:other" in several.err
    missing = cli("plan", "grouped:shard")
    assert missing.code == 2 and "come from the run's tasks. Give them here: --param key=VALUE" in missing.err
    hashes = {
        cli("plan", "grouped:shard", "--json", *words).json["steps"][0]["hash"]
        for words in (["--param", "key=a"], ["--param", "key=1"], ["--param", "key=1", "--param", "size=2"])
    }
    assert len(hashes) == 3


def test_a_partition_is_given_by_its_key(cli: Environment) -> None:
    cli.add_dag("partitioned", PARTITIONED)
    first, second = (cli("plan", "partitioned", "--partition", key, "--json").json for key in ("a", "b"))
    assert first["steps"][0]["hash"] != second["steps"][0]["hash"]
    missing = cli("plan", "partitioned")
    assert missing.code == 2 and "partition_key() has no value" in missing.err


@pytest.mark.slow
def test_the_prefix_and_the_selection_can_be_given(cli: Environment, tmp_path: Path) -> None:
    cli.make("train")
    plan = cli.plan("--force", "^train", "--force-downstream", "--run-only", "train")
    assert (plan["train"]["decision"], plan["train"]["is_forced"]) == ("RUN", True)
    assert plan["report"]["decision"] == "PRUNED"
    elsewhere = cli.plan("--prefix", str(tmp_path / "elsewhere"))
    assert elsewhere["train"]["output_path"].startswith(f"{tmp_path}/elsewhere/train-")
    assert elsewhere["train"]["decision"] == "RUN"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["nothing"], 1, "/airflow; 'airflow dags list --local' lists the DAGs."),
        (["nightly", "--param", "sise=2"], 2, "has no param 'sise'; it has size, note"),
        (["nightly", "--prefix", "relative"], 2, "'relative' is a relative path"),
        (["experiment.py"], 1, "'experiment.py' is a file, not a DAG id. It has no DAG made by experiment_dag"),
    ],
)
def test_unusable_dag_param_or_prefix_is_named(cli: Environment, words: list[str], code: int, complaint: str) -> None:
    done = cli("plan", *words)
    assert (done.code, done.out) == (code, "")
    assert complaint in done.err


@pytest.mark.parametrize("words", [["plan"], ["why", "train", "--dag"], ["status"], ["gc"]])
def test_dag_file_path_is_answered_with_its_dag_ids(cli: Environment, words: list[str]) -> None:
    file = str(cli.root / "dags" / "nightly.py")
    done = cli(*words, file)
    assert (done.code, done.out) == (1, "")
    assert f"{file!r} is a file, not a DAG id. Its DAGs are 'nightly'." in done.err


def test_dag_file_that_fails_to_load_is_named_with_reason(cli: Environment) -> None:
    cli.add_dag("broken", '"""An Airflow DAG."""\nimport nothing_of_this_name\n')
    done = cli("plan", "broken")
    assert done.code == 1
    assert "broken.py could not be loaded: ModuleNotFoundError: No module named 'nothing_of_this_name'" in done.err
