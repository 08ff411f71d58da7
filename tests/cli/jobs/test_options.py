"""Options that ``tradewind jobs`` accepts, and those that it refuses before it reads anything."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.fleets import write_fleet
from tradewind.cli.jobs.submit import command_words
from tradewind.cli.main import parser


def submit(*words: str) -> argparse.Namespace:
    return parser().parse_args(["jobs", "submit", *words])


def refusal(run: Run, *words: str) -> str:
    """Return the one sentence with which a command line is refused."""
    code, out, err = run(*words)
    assert (code, out) == (2, "") and err.startswith("tradewind: ") and err.count("\n") == 1
    return err


def test_words_after_two_dashes_are_the_command() -> None:
    arguments = submit("--no-wait", "-e", "A", "1", "--", "python", "a.py", "--no-wait", "--", "-e", "B=2")
    assert command_words(arguments.command) == ["python", "a.py", "--no-wait", "--", "-e", "B=2"]
    assert arguments.no_wait and arguments.env == [["A", "1"]]
    assert not submit("--", "python", "a.py", "--auto-stop").auto_stop


def test_option_spellings_of_ray_run_are_accepted() -> None:
    own = "--no-wait --env A 1 --num-cpus 2 --num-gpus 1 --memory 3 --resources {}"
    ray_run = "--no_wait --env_vars A 1 --entrypoint-num-cpus 2 --entrypoint-num-gpus 1 --entrypoint-memory 3"
    assert submit(*own.split()) == submit(*ray_run.split(), "--entrypoint-resources", "{}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((["submit", *words], "'--'") for words in (["python", "a.py"], [], ["python", "--", "a.py"], ["--"])),
        (["submit", "--no-wait", "--auto-stop", "--", "true"], "--no-wait and --auto-stop exclude each other"),
        (["submit", "--no-wait", "--timeout", "5", "--", "true"], "--no-wait and --timeout exclude each other"),
        (["submit", "--timeout", "0", "--", "true"], "is not a number of seconds above zero"),
        (["submit", "--num-cpus", "-1", "--", "true"], "is not a number that is not below zero"),
        (["submit", "--memory", "1.5", "--", "true"], "is not a whole number"),
        *((["submit", "--resources", text, "--", "true"], "is not a JSON object") for text in ("[1]", "[" * 100_000)),
        (["submit", "--memory", "1" * 5000, "--", "true"], "111...; 'tradewind jobs submit --help'"),
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
        *((["list", name, "https://me:hunter2@10.0.0.2"], "(not shown)") for name in ("--cluster", "--config", "--ca")),
        (["submit", "--working-dir", "https://me:hunter2@host/x.zip", "--", "true"], "(not shown)"),
        (["submit", "-e", "WANDB_API_KEY:hunter2", "--", "true"], "-e has a colon in its name (not shown"),
        (["submit", "-e", "WANDB_API_KEY:hunter2==", "--", "true"], "-e has a colon in its name (not shown"),
        (["list", "--address", "http://10.0.0.2:8265", "--cluster", "ray_default"], "both name a cluster"),
        (["list", "--address", "https://10.0.0.2:8265", "--ca", "nowhere"], "there is no such file"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_usage_is_one_sentence_and_exit_code_two(
    words: list[str], says: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    err = refusal(run, "jobs", *words)
    assert says in err and "hunter2" not in err


@pytest.mark.slow
def test_job_commands_need_no_airflow_and_help_imports_are_light(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['airflow'] = None\n"
        "from tradewind.cli.main import main, parser\n"
        "parser().format_help()\n"
        "assert not {'ray', 'aiohttp', 'requests', 'yaml'} & set(sys.modules), 'heavy'\n"
        "main(sys.argv[1:])\n"
    )

    def ended(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-c", script, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return done.returncode, done.stderr

    code, err = ended("jobs", "list", "--address", "http://127.0.0.1:1")
    assert code == 1 and "The Ray cluster at http://127.0.0.1:1 does not answer" in err
    code, err = ended("jobs", "list", "--cluster", "ray_default")
    assert code == 2 and "neither Airflow nor a fleet file here: give --address URL" in err
    (tmp_path / "infra").mkdir()
    write_fleet(tmp_path / "infra")
    code, err = ended("jobs", "list", "--cluster", "her")
    assert code == 2 and "infra/fleet.yaml describes no cluster 'her': did you mean here?" in err
    code, err = ended("reconcile")
    assert code == 2 and "Airflow is not installed here" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cluster", "statsu"], "there is no command 'statsu': did you mean 'status' or "),
        (["jbos", "list"], "there is no command 'jbos': did you mean 'jobs'"),
        (["validate", "infra/fleet.yaml"], "there is no command 'validate': did you mean 'cluster validate'"),
        (
            ["cluster", "stop-jobs", "a"],
            "there is no command 'stop-jobs': did you mean 'list-jobs' or 'restore",
        ),
        *(
            (words, f"there is no command {words[-1]!r}; 'tradewind ")
            for words in (["stop"], ["repair"], ["jobs", "stopp"], ["rehearse", "dwn"])
        ),
        (["cluster", "xyz"], "there is no command 'xyz'; 'tradewind cluster --help' lists the options."),
        (["cluster", "status", "--flet", "a"], "unrecognized arguments (did you mean --fleet?): --flet"),
        (["jobs", "logs", "a", "--clustre=hunter2"], "(did you mean --cluster?): --clustre=(not shown);"),
    ],
)
def test_unknown_word_is_refused_with_the_nearest(words: list[str], says: str, run: Run) -> None:
    assert says in refusal(run, *words)
