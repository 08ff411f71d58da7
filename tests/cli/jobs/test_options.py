"""Options that ``tradewind jobs`` accepts, and those that it refuses before it reads anything."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.cli.jobs.submit import command_words
from tradewind.cli.main import main, parser


def submit(*words: str) -> argparse.Namespace:
    return parser().parse_args(["jobs", "submit", *words])


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("tradewind: ") and said.err.count("\n") == 1
    return said.err


def test_all_behind_the_two_dashes_is_the_command() -> None:
    arguments = submit("--no-wait", "-e", "A", "1", "--", "python", "a.py", "--no-wait", "--", "-e", "B=2")
    assert command_words(arguments.command) == ["python", "a.py", "--no-wait", "--", "-e", "B=2"]
    assert arguments.no_wait and arguments.env == [["A", "1"]]


def test_options_behind_the_command_are_the_commands_own() -> None:
    assert not submit("--", "python", "a.py", "--auto-stop").auto_stop


def test_the_spellings_of_ray_run_are_understood() -> None:
    ours = submit(
        "--no-wait", "--env", "A", "1", "--num-cpus", "2", "--num-gpus", "1", "--memory", "3", "--resources", "{}"
    )
    words = ("--no_wait", "--env_vars", "A", "1", "--entrypoint-num-cpus", "2", "--entrypoint-num-gpus", "1")
    theirs = submit(*words, "--entrypoint-memory", "3", "--entrypoint-resources", "{}")
    assert vars(ours) == vars(theirs)


@pytest.mark.parametrize("words", [["python", "a.py"], [], ["python", "--", "a.py"], ["--"]])
def test_a_command_that_is_not_behind_two_dashes_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'--'" in refusal(capsys, "jobs", "submit", *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submit", "--no-wait", "--auto-stop", "--", "true"], "--no-wait and --auto-stop exclude each other"),
        (["submit", "--no-wait", "--timeout", "5", "--", "true"], "--no-wait and --timeout exclude each other"),
        (["submit", "--timeout", "0", "--", "true"], "is not a number of seconds above zero"),
        (["submit", "--num-cpus", "-1", "--", "true"], "is not a number that is not below zero"),
        (["submit", "--memory", "1.5", "--", "true"], "is not a whole number"),
        (["submit", "--resources", "[1]", "--", "true"], "is not a JSON object"),
        (["submit", "--tpu", "v4-16", "--", "true"], "has 2 hosts"),
        (["submit", "--tpu", "v4-9", "--", "true"], "v4-8"),
        (["submit", "--secret", "A=hunter2", "--", "true"], "is no reference"),
        (["submit", "--submission-id", "a/b", "--", "true"], "would not be found again"),
        (["submit", "--working-dir", "nowhere", "--", "true"], "does not exist"),
        (["submit", "--metadata", "owner", "--", "true"], "write NAME=VALUE"),
        (["submit", "--extra", "gpu", "--", "true"], "but there is no pyproject.toml at or above"),
        (["submit", "--", "env", "HF_TOKEN=hunter2", "python", "a.py"], "--secret HF_TOKEN=projects/"),
        (["logs"], "the following arguments are required: ID"),
        (["logs", "a", "-n", "many"], "is not a whole number"),
        (["logs", "a", "-g", "("], "is not a regular expression"),
        (["stop"], "the ids of the jobs or --metadata"),
        (["stop", "a", "--metadata", "owner=me"], "the ids of the jobs or --metadata"),
        (["wait"], "the id of the job or --match"),
        (["wait", "a", "--match", "b"], "the id of the job or --match"),
        (["wait", "a", "--timeout", "soon"], "is not a number of seconds"),
        (["list", "--address", "10.0.0.2:8265"], "is not a dashboard address"),
        (["list", "--address", "http://me:hunter2@10.0.0.2:8265"], "has a user or a password"),
        (["list", "--address", "http://10.0.0.2:8265", "--cluster", "ray_default"], "both name a cluster"),
        (["list", "--address", "https://10.0.0.2:8265", "--ca", "nowhere"], "there is no such file"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_two(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    said = refusal(capsys, "jobs", *words)
    assert says in said
    assert "hunter2" not in said


@pytest.mark.slow
def test_job_commands_need_no_airflow_and_help_imports_are_light(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['airflow'] = None\n"
        "from tradewind.cli.main import main, parser\n"
        "parser().format_help()\n"
        "assert not {'ray', 'aiohttp', 'requests', 'yaml'} & set(sys.modules), 'heavy'\n"
        "main(sys.argv[1:])\n"
    )

    def ended(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return done.returncode, done.stderr

    exit_code, said = ended("jobs", "list", "--address", "http://127.0.0.1:1")
    assert exit_code == 1 and "The Ray cluster at http://127.0.0.1:1 does not answer" in said
    exit_code, said = ended("jobs", "list", "--cluster", "ray_default")
    assert exit_code == 2 and "neither Airflow nor a fleet file here: give --address URL" in said
    (tmp_path / "infra").mkdir()
    write_fleet(tmp_path / "infra")
    exit_code, said = ended("jobs", "list", "--cluster", "her")
    assert exit_code == 2 and "infra/fleet.yaml describes no cluster 'her': did you mean here?" in said
    exit_code, said = ended("reconcile")
    assert exit_code == 2 and "Airflow is not installed here" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cluster", "statsu"], "there is no command 'statsu': did you mean 'status' or "),
        (["jbos", "list"], "there is no command 'jbos': did you mean 'jobs'"),
        (["validate", "infra/fleet.yaml"], "there is no command 'validate': did you mean 'cluster validate'"),
        (["cluster", "xyz"], "there is no command 'xyz'; 'tradewind cluster --help' lists the options."),
        (["cluster", "status", "--flet", "a"], "unrecognized arguments (did you mean --fleet?): --flet"),
        (["jobs", "logs", "a", "--clustre=hunter2"], "(did you mean --cluster?): --clustre=(not shown);"),
    ],
)
def test_a_word_that_there_is_not_is_answered_with_the_nearest(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(capsys, *words)
