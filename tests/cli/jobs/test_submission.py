"""Translation of ``tradewind jobs submit`` options into the job to submit."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ray.dashboard.modules.job.cli import submit

from tradewind.cli.jobs.submit import id_for, job_to_submit, new_id, ray_command, script_stem
from tradewind.cli.main import parser
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.request import JobRequest, check_submission_id
from tradewind.ray_jobs.worker_python import start_command

CLUSTER = RayCluster("here", "http://127.0.0.1:1", token="t0ken-of-the-test-0123456789")


def job(folder: Path, *words: str) -> JobRequest:
    arguments = parser().parse_args(["jobs", "submit", *words])
    return job_to_submit(arguments, "the-job", folder, lambda sentence: None)


def test_the_command_reaches_the_cluster_word_for_word(tmp_path: Path) -> None:
    words = ["python", "-c", "print('a b', \"$HOME\")", "--name=x y", ""]
    assert shlex.split(job(tmp_path, "--", *words).entrypoint) == words


def test_job_without_amounts_requests_no_resources(tmp_path: Path) -> None:
    plain = job(tmp_path, "--", "true")
    amounts = (plain.num_cpus, plain.num_gpus, plain.memory_bytes, plain.resources, plain.label_selector)
    assert amounts == (None, None, None, None, None)
    assert plain.runtime_env["working_dir"] == str(tmp_path)
    assert not plain.runtime_env.get("py_modules")


def test_a_slice_of_one_host_is_taken_whole_with_amounts_on_top(tmp_path: Path) -> None:
    placed = job(tmp_path, "--tpu", "v4-8", "--num-cpus", "4", "--resources", '{"disk": 1}', "--", "true")
    assert placed.resources == {"TPU-v4-8-head": 1.0, "TPU": 4.0, "disk": 1}
    assert placed.label_selector == {"ray.io/tpu-pod-type": "v4-8"}
    assert placed.num_cpus == 4.0


def test_exclude_option_follows_default_patterns(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    env = job(tmp_path, "--exclude", "/data", "--exclude", "!/docs", "--", "true").runtime_env
    assert ".git" in env["excludes"] and env["excludes"].index("/docs") < env["excludes"].index("!/docs")
    assert "/data" in env["excludes"]


def test_secret_is_sent_as_reference_with_its_fetcher(tmp_path: Path) -> None:
    sent = job(tmp_path, "--secret", "HF_TOKEN=projects/p/secrets/s", "-e", "A=1", "--", "python", "a.py")
    assert sent.entrypoint == start_command("python -u -m tradewind.runtime.with_secrets 'python a.py'")
    assert "projects/p/secrets/s" in sent.runtime_env["env_vars"]["TRADEWIND_SECRETS_REF"]
    assert sent.runtime_env["env_vars"]["A"] == "1" and "HF_TOKEN" not in sent.runtime_env["env_vars"]
    assert [Path(module).name for module in sent.runtime_env["py_modules"]] == ["tradewind"]


def test_extras_of_the_project_become_an_environment(tmp_path: Path) -> None:
    extras = '[project.optional-dependencies]\na = ["six==1.16.0"]\nb = ["toml==0.10.2"]\n'
    text = f'[project]\nname = "mine"\nversion = "1"\n{extras}'
    (tmp_path / "pyproject.toml").write_text(text)
    sent = job(tmp_path, "--extra", "a,b", "--extra", "tomli==2.0.1", "--", "true")
    assert {"six==1.16.0", "toml==0.10.2", "tomli==2.0.1"} <= set(sent.runtime_env["uv"]["packages"])


@pytest.mark.parametrize(
    ("words", "stem"),
    [
        (["python", "-u", "experiments/train_lm.py", "--config", "b.py"], "train_lm"),
        (["python", "-m", "experiments.train_lm", "--x"], "train_lm"),
        (["A=1", "/usr/bin/env", "true"], "env"),
        (["bash", "run.sh"], "run"),
        (["A=1"], ""),
    ],
)
def test_a_job_is_named_for_what_it_runs(words: list[str], stem: str) -> None:
    assert script_stem(words) == stem


def test_a_new_id_says_whose_job_it_is_and_since_when() -> None:
    now = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)
    assert new_id(["python", "my train.py"], "jo.doe@x", now, "ab12") == "jo-doe-x-my-train-20260301-123005-ab12"
    for user, words in (("", []), ("é" * 300, ["python", "ü" * 300 + ".py"]), ("u" * 300, ["p" * 300])):
        check_submission_id(new_id(words, user, now, "ab12"))


def test_two_new_ids_differ_and_a_chosen_one_is_kept() -> None:
    arguments = parser().parse_args(["jobs", "submit", "--", "python", "a.py"])
    first, second = id_for(arguments), id_for(arguments)
    assert first != second and re.fullmatch(r".+-a-\d{8}-\d{6}-[0-9a-f]{4}", first)
    assert id_for(parser().parse_args(["jobs", "submit", "--submission-id", "mine", "--", "true"])) == "mine"


def test_equivalent_ray_command_has_real_options_and_no_token(tmp_path: Path) -> None:
    given = "--tpu v4-8 --num-cpus 1 --num-gpus 1 --memory 5 --metadata owner=me"
    request = job(tmp_path, *given.split(), "-e", "A=x y", "-e", "B=a$b", "--", "python", "a b.py")
    words = shlex.split(ray_command(request, CLUSTER))
    assert words[:3] == ["ray", "job", "submit"] and words[-3:] == ["--", "python", "a b.py"]
    options = dict(zip(words[3:-3:2], words[4:-3:2], strict=True))
    assert len(options) == 10 and options.keys() <= {name for each in submit.params for name in each.opts}
    assert options["--address"] == CLUSTER.address and options["--submission-id"] == "the-job"
    assert json.loads(options["--runtime-env-json"])["env_vars"].items() >= {"A": "x y", "B": "a$${0}b"}.items()
    assert json.loads(options["--entrypoint-resources"]) == {"TPU-v4-8-head": 1.0, "TPU": 4.0}
    assert options["--entrypoint-memory"] == "5" and json.loads(options["--metadata-json"])["owner"] == "me"
    assert CLUSTER.token is not None and CLUSTER.token not in " ".join(words)
