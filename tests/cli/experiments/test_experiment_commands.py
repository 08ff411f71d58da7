"""Commands on experiments and outputs other than ``plan`` and ``gc``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.experiments.conftest import Environment


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["plan", "d", "--night", "tomorrow"], "'tomorrow' is not a date"),
        (["gc", "--older-than", "30"], "'30' is not an age"),
        (["gc", "--older-than=-3d"], "'-3' is not a number"),
        (["plan", "d", "--force", "("], "is not a regular expression"),
        (["adopt", "/p/x", "--dag", "d"], "--as"),
    ],
)
def test_invalid_option_value_is_refused(words: list[str], complaint: str, run: Run) -> None:
    code, _, err = run(*words)
    assert code == 2 and complaint in err


@pytest.mark.slow
def test_why_and_diff_name_change_between_versions(cli: Environment) -> None:
    first, second = (cli.make("train", "--param", f"note={note}").name for note in ("a", "b"))
    done = cli("diff", first, second.removeprefix("train-"))
    assert done.code == 0 and '"a" → "b"' in done.out, done.err
    assert cli("diff", first, first, "--json").json["is_same"] is True
    assert cli("diff", first, "abcdef").code == 1
    done = cli("why", "train", "--dag", "nightly")
    assert done.code == 0 and '"b" → "1"' in done.out, done.err
    explained = cli("why", "train", "--dag", "nightly", "--json").json
    assert (explained["name"], explained["decision"], explained["state"]) == ("train", "RUN", "none")
    assert cli("why", "nothing", "--dag", "nightly").code == 2


@pytest.mark.slow
def test_an_adopted_output_is_reused(cli: Environment) -> None:
    path = cli.make("train")
    assert cli.plan()["train"]["decision"] == "REUSE"
    assert cli.plan()["data/raw"]["decision"] == "PRUNED"
    again = cli("adopt", str(path), "--as", "train", "--dag", "nightly")
    assert again.code == 1 and "has a finished output" in again.err
    lease = json.loads((path / ".executor_status.lock").read_text())
    assert lease["by"]["adopted"] == str(path) and {"user", "at"} <= lease["by"].keys()
    info = json.loads((path / ".executor_info").read_text())
    assert (info["name"], info["fn_name"]) == ("train", "nightly.work")


def test_adopt_copies_files_only_with_copy_option(cli: Environment, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model").write_text("weights")
    words = ("adopt", str(tmp_path / "elsewhere"), "--dag", "nightly", "--as", "data_raw")
    refused = cli(*words)
    assert refused.code == 2 and refused.err.strip().endswith("--copy does so.")
    done = cli(*words, "--copy", "--json")
    assert done.code == 0, done.err
    assert (Path(done.json["output_path"]) / "model").read_text() == "weights"
    assert (tmp_path / "elsewhere" / "model").exists()


@pytest.mark.slow
def test_a_step_is_named_in_three_ways(cli: Environment) -> None:
    version = "train-{hash}".format(**cli.plan()["train"])
    for word, code in (("data/raw", 2), ("data_raw", 2), (version, 2), ("nothing", 2)):
        done = cli("adopt", "/nowhere", "--as", word, "--dag", "nightly")
        assert done.code == code
        assert ("has no step 'nothing'; its tasks are data_raw, train, report" in done.err) == (word == "nothing")


@pytest.mark.slow
def test_the_status_of_a_run_and_of_all_outputs(cli: Environment) -> None:
    path = cli.make("train")
    cli.make("train", "--param", "size=2")
    lines = cli("status", "nightly").out.splitlines()
    assert lines[0].split() == ["STATE", "OUTPUT", "ATTEMPT", "SINCE", "PRODUCER", "JOB"]
    assert [line.split()[0] for line in lines[1:]] == ["none", "finished", "none"]
    everything = cli("status", "--json").json
    assert [one["state"] for one in everything] == ["finished", "finished"]
    assert str(path) in {one["output_path"] for one in everything}


@pytest.mark.slow
def test_pins_are_set_listed_and_taken_away(cli: Environment) -> None:
    path = cli.make("train")
    hash_ = path.name.removeprefix("train-")
    for word in (str(path), hash_, path.name):
        assert cli("pin", word, "--note", "for the paper", "--json").json[0]["path"] == str(path)
    assert str(path) in cli("pin", "--list").out and "for the paper" in cli("pin", "--list").out
    assert cli("pin", hash_, "--remove").code == 0
    assert cli("pin", "--list", "--json").json == []
    for words in ([hash_, "--remove"], ["abcdef"], [str(cli.store / "nothing-abcdef")]):
        assert cli("pin", *words).code == 1
    for words in ([], [hash_, "--list"], [str(path), "--prefix", f"{cli.store}/below"]):
        assert cli("pin", *words).code == 2


@pytest.mark.slow
def test_outputs_are_looked_after_without_airflow(cli: Environment) -> None:
    path = cli.make("train")
    code = "import sys; sys.modules['airflow'] = None; from tradewind.cli.main import main; main(sys.argv[1:])"
    done = [
        subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        for words in (["status"], ["pin", path.name], ["diff", path.name, path.name], ["plan", "nightly"])
    ]
    assert [one.returncode for one in done] == [0, 0, 0, 2], [one.stderr for one in done]
    assert path.name in done[0].stdout and str(path) in done[1].stdout
    assert "Airflow is not installed here" in done[3].stderr


@pytest.mark.slow
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
def test_a_prefix_that_is_none_is_bad_usage(words: list[str], cli: Environment) -> None:
    done = cli(*words)
    assert done.code == 2 and "the path" in done.err.splitlines()[-1].lower(), done.err
    assert "Traceback" not in done.err and "hunter2" not in done.err
