"""The commands about experiments: what they print, what they write, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airflow.settings
import pendulum
import pytest
from airflow.cli.cli_parser import get_parser
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import delete

from tradewind.cli.main import parser, run
from tradewind.records.files import list_files

NIGHTLY = '''
"""An Airflow DAG."""
from dataclasses import dataclass
from typing import Any
from tradewind import ExecutorStep, experiment_dag, night, run_param, versioned

print("a line of the DAG file's own")

@dataclass(frozen=True)
class Config:
    value: Any

def work(config): ...

raw = ExecutorStep("data/raw", work, Config(versioned(run_param("size"))))
train = ExecutorStep("train", work, Config([raw, versioned(run_param("note"))]))
report = ExecutorStep("report", work, Config([train, versioned(night())]))
dag = experiment_dag(
    "nightly", [report], schedule="@weekly", timezone="Europe/Zurich", params={"size": 1.0, "note": "1"}
)
'''
PARTITIONED = '''
"""An Airflow DAG."""
from tradewind import ExecutorStep, experiment_dag, partition_key, versioned

def work(config): ...

dag = experiment_dag("partitioned", [ExecutorStep("shard", work, {"key": versioned(partition_key())})])
'''
STRAY = '''
"""An Airflow DAG."""
from tradewind import ExecutorStep, experiment_dag

def work(config): ...

step = ExecutorStep("elsewhere", work, {"reads": "RAW"}, override_output_path="PLACE")
dag = experiment_dag("stray", [step])
'''
ALLOWED = STRAY.replace("[step])", '[step], allow_outside=["elsewhere"])')
MONTHS_S = 60 * 86400.0


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class House:
    """A store, and a folder of DAG files that the commands read."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def store(self) -> Path:
        return self.root / "store"

    def add_dag(self, name: str, text: str) -> None:
        (self.root / "dags" / f"{name}.py").write_text(text)

    def __call__(self, *words: str) -> Done:
        self.capsys.readouterr()
        arguments = parser().parse_args(words)
        code = run(arguments.run, arguments)
        return Done(code, *self.capsys.readouterr())

    def plan(self, *words: str) -> dict[str, dict[str, Any]]:
        """The plan's steps by name."""
        done = self("plan", "nightly", "--json", *words)
        assert done.code == 0, done.err
        return {step["name"]: step for step in done.json["steps"]}

    def make(self, name: str, *words: str) -> Path:
        """A finished output of the step; its path."""
        path = Path(self.plan(*words)[name]["output_path"])
        path.mkdir(parents=True)
        (path / "model").write_text("weights")
        done = self("adopt", str(path), "--as", name, "--dag", "nightly", *words)
        assert done.code == 0, done.err
        return path

    def age(self) -> None:
        """Nothing in the store has changed for two months."""
        then = time.time() - MONTHS_S
        for file in list_files(str(self.store)):
            os.utime(self.store / file.path, (then, then))

    def files(self) -> list[str]:
        return [file.path for file in list_files(str(self.store))]


def settings(root: Path) -> Mapping[str, str]:
    bundle = {
        "name": "ours",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(root / "dags")},
    }
    return {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "TRADEWIND_PREFIX": str(root / "store"),
    }


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Airflow's database, in which this process is at home."""
    with pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("database") / "airflow.db"
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{file}")
        airflow.settings.configure_vars()
        airflow.settings.reconfigure_orm()
        import_all_models()
        Base.metadata.create_all(airflow.settings.engine)
        yield
    airflow.settings.configure_vars()
    airflow.settings.reconfigure_orm()


@pytest.fixture
def runs(database: None) -> Iterator[Callable[..., None]]:
    """Adds a run to Airflow's database, which has none before."""

    def add(state: str, dag_id: str = "nightly", run_type: str = "manual", **fields: Any) -> None:
        with create_session() as session:
            session.add(
                DagRun(dag_id, "the-run", state=state, run_type=run_type, run_after=pendulum.now("UTC"), **fields)
            )

    yield add
    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> House:
    (tmp_path / "dags").mkdir()
    for name, value in {**settings(tmp_path), "_AIRFLOW_PROCESS_CONTEXT": "server"}.items():
        monkeypatch.setenv(name, value)
    house = House(tmp_path, capsys)
    house.add_dag("nightly", NIGHTLY)
    return house


# ---- both command lines


@pytest.mark.parametrize(
    "words",
    [
        [
            "plan",
            "d",
            "--param",
            "a=1",
            "--param",
            "b=2",
            "--partition",
            "k",
            "--night",
            "2026-03-01",
            "--prefix",
            "/p",
        ],
        ["plan", "d", "--run-only", "a", "b", "--force", "c", "--force-downstream", "--no-force-run-failed", "--json"],
        ["plan", "d", "--date", "2026-03-01"],
        ["why", "train", "--dag", "d"],
        ["diff", "abc123", "def456", "--json"],
        ["adopt", "/p/x", "--as", "train", "--dag", "d", "--copy"],
        ["pin", "abc123", "--note", "for the paper"],
        ["pin", "--list"],
        ["gc", "a", "b", "--older-than", "8w", "--delete"],
        ["gc"],
        ["status", "--prefix", "/p"],
    ],
)
def test_airflows_command_line_understands_the_same(words: list[str]) -> None:
    theirs = vars(get_parser().parse_args(["tradewind", *words]))
    ours = vars(parser().parse_args(words))
    assert callable(theirs.pop("func"))
    assert theirs.pop("subcommand") == ours.pop("run") == words[0]
    assert theirs == ours


@pytest.mark.airflow
def test_airflow_prints_the_plan_as_json_alone_and_needs_no_database(house: House, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(tmp_path / "airflow"), **settings(tmp_path)}
    command = [sys.executable, "-m", "airflow", "tradewind", "plan", "nightly", "--param", "size=2", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert steps == house.plan("--param", "size=2")
    assert not (tmp_path / "airflow" / "airflow.db").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["plan", "d", "--night", "tomorrow"], "'tomorrow' is no date"),
        (["gc", "--older-than", "30"], "'30' is no age"),
        (["gc", "--older-than=-3d"], "'-3' is not a number"),
        (["plan", "d", "--force", "("], "is not a regular expression"),
        (["adopt", "/p/x", "--dag", "d"], "--as"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


# ---- plan


def test_a_plan_is_printed_and_nothing_is_written(house: House) -> None:
    done = house("plan", "nightly")
    assert done.code == 0, done.err
    assert [line.split()[:2] for line in done.out.splitlines()[1:4]] == [
        ["RUN", "data/raw"],
        ["RUN", "train"],
        ["RUN", "report"],
    ]
    assert "a line of the DAG file's own" in done.err
    assert not house.store.exists()


def test_params_are_read_as_their_schemas_mean_them(house: House) -> None:
    default = house.plan()
    assert house.plan("--param", "size=1") == default, "an integer for a param that is a float"
    assert house.plan("--param", "note=1") == default, "a text stays one"
    other = house.plan("--param", "size=2")
    assert {name for name in default if other[name]["hash"] != default[name]["hash"]} == set(default)


def test_the_night_is_that_of_a_run_of_the_schedule(house: House) -> None:
    sunday = house.plan("--night", "2026-03-01")
    assert house.plan("--date", "2026-03-08")["report"]["hash"] != sunday["report"]["hash"]
    assert house.plan("--night", "2026-03-29")["train"] == sunday["train"], "also when the clocks change"
    refused = house("plan", "nightly", "--night", "2026-03-02")
    assert refused.code == 2
    assert "has no run for 2026-03-02; the next one after is that for 2026-03-08" in refused.err


def test_a_partition_is_given_by_its_key(house: House) -> None:
    house.add_dag("partitioned", PARTITIONED)
    first, second = (house("plan", "partitioned", "--partition", key, "--json").json for key in ("a", "b"))
    assert first["steps"][0]["hash"] != second["steps"][0]["hash"]
    missing = house("plan", "partitioned")
    assert missing.code == 2 and "partition_key() has no value" in missing.err


def test_the_prefix_and_the_selection_can_be_given(house: House, tmp_path: Path) -> None:
    house.make("train")
    plan = house.plan("--force", "^train", "--force-downstream", "--run-only", "train")
    assert (plan["train"]["decision"], plan["train"]["is_forced"]) == ("RUN", True)
    assert plan["report"]["decision"] == "PRUNED"
    elsewhere = house.plan("--prefix", str(tmp_path / "elsewhere"))
    assert elsewhere["train"]["output_path"].startswith(f"{tmp_path}/elsewhere/train-")
    assert elsewhere["train"]["decision"] == "RUN"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["nothing"], 1, "No DAG 'nothing' made by experiment_dag was found"),
        (["nightly", "--param", "sise=2"], 2, "has no param 'sise'; it has size, note"),
        (["nightly", "--prefix", "relative"], 2, "'relative' is a relative path"),
    ],
)
def test_what_there_is_not_is_named(house: House, words: list[str], code: int, complaint: str) -> None:
    done = house("plan", *words)
    assert (done.code, done.out) == (code, "")
    assert complaint in done.err


def test_a_dag_that_cannot_be_loaded_is_told_with_its_reason(house: House) -> None:
    house.add_dag("broken", '"""An Airflow DAG."""\nimport nothing_of_this_name\n')
    done = house("plan", "broken")
    assert done.code == 1
    assert "broken.py could not be loaded: ModuleNotFoundError: No module named 'nothing_of_this_name'" in done.err


# ---- why, diff


def test_why_tells_what_has_changed_since_the_earlier_version(house: House) -> None:
    house.make("train", "--param", "size=2")
    done = house("why", "train", "--dag", "nightly")
    assert done.code == 0, done.err
    assert "2.0 → 1.0" in done.out
    told = house("why", "train", "--dag", "nightly", "--json").json
    assert (told["name"], told["decision"], told["state"]) == ("train", "RUN", "none")
    assert house("why", "nothing", "--dag", "nightly").code == 2


def test_diff_compares_two_versions_that_ran(house: House) -> None:
    first, second = (house.make("train", "--param", f"note={note}").name for note in ("a", "b"))
    done = house("diff", first, second.removeprefix("train-"))
    assert done.code == 0, done.err
    assert '"a" → "b"' in done.out
    assert house("diff", first, first, "--json").json["is_same"] is True
    assert house("diff", first, "abcdef").code == 1


# ---- adopt, pin, status


def test_an_adopted_output_is_reused(house: House) -> None:
    path = house.make("train")
    assert house.plan()["train"]["decision"] == "REUSE"
    assert house.plan()["data/raw"]["decision"] == "PRUNED"
    again = house("adopt", str(path), "--as", "train", "--dag", "nightly")
    assert again.code == 1 and "has a finished output" in again.err
    lease = json.loads((path / ".executor_status.lock").read_text())
    assert lease["by"]["adopted"] == str(path) and {"user", "at"} <= lease["by"].keys()
    info = json.loads((path / ".executor_info").read_text())
    assert (info["name"], info["fn_name"]) == ("train", "nightly.work")


def test_an_output_is_copied_when_that_is_asked_for(house: House, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model").write_text("weights")
    words = ("adopt", str(tmp_path / "elsewhere"), "--dag", "nightly", "--as", "data_raw")
    refused = house(*words)
    assert refused.code == 2 and refused.err.strip().endswith("--copy does so.")
    done = house(*words, "--copy", "--json")
    assert done.code == 0, done.err
    assert (Path(done.json["output_path"]) / "model").read_text() == "weights"
    assert (tmp_path / "elsewhere" / "model").exists()


def test_a_step_is_named_in_three_ways(house: House) -> None:
    version = "train-{hash}".format(**house.plan()["train"])
    for word, code in (("data/raw", 2), ("data_raw", 2), (version, 2), ("nothing", 2)):
        done = house("adopt", "/nowhere", "--as", word, "--dag", "nightly")
        assert done.code == code
        assert ("has no step 'nothing'; its tasks are data_raw, train, report" in done.err) == (word == "nothing")


def test_the_status_of_a_run_and_of_all_outputs(house: House) -> None:
    path = house.make("train")
    house.make("train", "--param", "size=2")
    lines = house("status", "nightly").out.splitlines()
    assert lines[0].split() == ["STATE", "OUTPUT", "ATTEMPT", "SINCE", "PRODUCER", "JOB"]
    assert [line.split()[0] for line in lines[1:]] == ["none", "finished", "none"]
    everything = house("status", "--json").json
    assert [one["state"] for one in everything] == ["finished", "finished"]
    assert str(path) in {one["output_path"] for one in everything}


def test_pins_are_set_listed_and_taken_away(house: House) -> None:
    path = house.make("train")
    hash_ = path.name.removeprefix("train-")
    for word in (str(path), hash_, path.name):
        assert house("pin", word, "--note", "for the paper", "--json").json[0]["path"] == str(path)
    assert str(path) in house("pin", "--list").out and "for the paper" in house("pin", "--list").out
    assert house("pin", hash_, "--remove").code == 0
    assert house("pin", "--list", "--json").json == []
    for words in ([hash_, "--remove"], ["abcdef"], [str(house.store / "nothing-abcdef")]):
        assert house("pin", *words).code == 1
    for words in ([], [hash_, "--list"], [str(path), "--prefix", f"{house.store}/below"]):
        assert house("pin", *words).code == 2


def test_outputs_are_looked_after_without_airflow(house: House) -> None:
    path = house.make("train")
    code = "import sys; sys.modules['airflow'] = None; from tradewind.cli.main import main; main(sys.argv[1:])"
    done = [
        subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        for words in (["status"], ["pin", path.name], ["diff", path.name, path.name], ["plan", "nightly"])
    ]
    assert [one.returncode for one in done] == [0, 0, 0, 2], [one.stderr for one in done]
    assert path.name in done[0].stdout and str(path) in done[1].stdout
    assert "Airflow is not installed here" in done[3].stderr


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "nightly", "--prefix", "gs://bucket/x::y"],
        ["plan", "nightly", "--prefix", "ftp://host/x"],
        ["status", "--prefix", "s3://me:hunter2hunter2@bucket/x"],
        ["gc", "--prefix", "gs://"],
        ["pin", "x", "--note", "n", "--prefix", "http://me:hunter2hunter2@host/x"],
    ],
)
def test_a_prefix_that_is_none_is_bad_usage(words: list[str], house: House) -> None:
    done = house(*words)
    assert done.code == 2 and "the path" in done.err.splitlines()[-1].lower(), done.err
    assert "Traceback" not in done.err and "hunter2" not in done.err


# ---- gc


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
def test_a_dag_whose_steps_have_no_allowed_place_keeps_its_own_and_stops_nobody(house: House, tmp_path: Path) -> None:
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
def test_what_an_output_outside_of_the_prefix_was_made_from_is_kept(house: House, tmp_path: Path) -> None:
    """Made by an earlier version of the DAG: no current step names that input."""
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
def test_what_a_pinned_output_below_a_hidden_prefix_was_made_from_is_kept(house: House) -> None:
    """A search from the prefix above looks into no hidden folder."""
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
    assert unknown.code == 2 and "no DAG says where outputs go" in unknown.err
    done = house("gc", "--prefix", str(house.store))
    assert done.code == 0 and done.out.split()[-1] == str(spare) and str(needed) not in done.out


def test_params_are_those_of_dags_that_are_named(house: House) -> None:
    unnamed, unknown = house("gc", "--param", "size=2"), house("gc", "nightly", "--param", "sise=2")
    assert unnamed.code == 2 and "name one" in unnamed.err
    assert unknown.code == 2 and "has no param 'sise'" in unknown.err


# ---- what active runs need

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
def test_an_active_run_that_cannot_be_resolved_keeps_all_outputs_of_its_steps(
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
    assert "What active runs need is listed too: Airflow's database does not say" in listed.err
    assert refused.code == 1 and "Nothing was removed. Airflow's database does not say" in refused.err
    assert (raw / "model").exists()
