"""Commands on experiments and outputs, in both command lines.

`plan` and `gc` have files of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

from tests.cli.experiments.environment import House
from tradewind.cli.main import parser


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
        ["port", "a.py", "b/", "--checkout", "c", "--prefix", "/p", "--param", "a=1", "--time-limit", "5", "--json"],
    ],
)
def test_airflows_command_line_understands_the_same(words: list[str]) -> None:
    theirs = vars(get_parser().parse_args(["tradewind", *words]))
    ours = vars(parser().parse_args(words))
    assert callable(theirs.pop("func"))
    assert theirs.pop("subcommand") == ours.pop("run") == words[0]
    assert theirs == ours


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
def test_what_cannot_be_meant_is_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


# ---- why, diff


@pytest.mark.slow
def test_why_tells_what_has_changed_since_the_earlier_version(house: House) -> None:
    house.make("train", "--param", "size=2")
    done = house("why", "train", "--dag", "nightly")
    assert done.code == 0, done.err
    assert "2.0 → 1.0" in done.out
    told = house("why", "train", "--dag", "nightly", "--json").json
    assert (told["name"], told["decision"], told["state"]) == ("train", "RUN", "none")
    assert house("why", "nothing", "--dag", "nightly").code == 2


@pytest.mark.slow
def test_diff_compares_two_versions_that_ran(house: House) -> None:
    first, second = (house.make("train", "--param", f"note={note}").name for note in ("a", "b"))
    done = house("diff", first, second.removeprefix("train-"))
    assert done.code == 0, done.err
    assert '"a" → "b"' in done.out
    assert house("diff", first, first, "--json").json["is_same"] is True
    assert house("diff", first, "abcdef").code == 1


# ---- adopt, pin, status


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_step_is_named_in_three_ways(house: House) -> None:
    version = "train-{hash}".format(**house.plan()["train"])
    for word, code in (("data/raw", 2), ("data_raw", 2), (version, 2), ("nothing", 2)):
        done = house("adopt", "/nowhere", "--as", word, "--dag", "nightly")
        assert done.code == code
        assert ("has no step 'nothing'; its tasks are data_raw, train, report" in done.err) == (word == "nothing")


@pytest.mark.slow
def test_the_status_of_a_run_and_of_all_outputs(house: House) -> None:
    path = house.make("train")
    house.make("train", "--param", "size=2")
    lines = house("status", "nightly").out.splitlines()
    assert lines[0].split() == ["STATE", "OUTPUT", "ATTEMPT", "SINCE", "PRODUCER", "JOB"]
    assert [line.split()[0] for line in lines[1:]] == ["none", "finished", "none"]
    everything = house("status", "--json").json
    assert [one["state"] for one in everything] == ["finished", "finished"]
    assert str(path) in {one["output_path"] for one in everything}


@pytest.mark.slow
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


@pytest.mark.slow
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
def test_a_prefix_that_is_none_is_bad_usage(words: list[str], house: House) -> None:
    done = house(*words)
    assert done.code == 2 and "the path" in done.err.splitlines()[-1].lower(), done.err
    assert "Traceback" not in done.err and "hunter2" not in done.err
