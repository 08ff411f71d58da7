"""The command of a Ray job gets its secrets and keeps its own exit code or signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import psutil
import pytest

from tests.runtime.driver.secret_value import KEY, VALUE
from tests.runtime.marked import marked
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.runtime.with_secrets import NO_SECRET_EXIT_CODE, with_secrets


def start_job(entrypoint: str, secrets: dict[str, str], kept: Sequence[str] = ()) -> subprocess.Popen[str]:
    command, env = with_secrets(entrypoint, secrets, "Task 't'", kept)
    command = command.replace("python", sys.executable, 1)
    given = {**os.environ, **env}
    return subprocess.Popen(command, shell=True, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def shell_of(job: subprocess.Popen[str]) -> psutil.Process:
    """Return the shell that runs the job's command and has the secret in its environment."""
    top = psutil.Process(job.pid)
    for process in [top, *top.children(recursive=True)]:
        with suppress(psutil.Error):  # some child processes exit during the search
            if process.name() == "sh" and process.environ().get("KEY") == VALUE:
                return process
    raise AssertionError("There is no such shell.")


def test_a_job_without_secrets_runs_as_it_is() -> None:
    assert with_secrets("python train.py", {}, "Task 't'") == ("python train.py", {})


def test_job_spec_and_environment_omit_secret_value() -> None:
    command, env = with_secrets("python train.py --name 'a b'", {"KEY": KEY}, "Task 't'")
    assert command.startswith("python -u -m tradewind.runtime.with_secrets ")
    assert json.loads(next(iter(env.values())))["secrets"] == {"KEY": KEY}


@pytest.mark.slow
def test_job_command_gets_secret_and_sets_exit_code(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job(
        f"""test "$KEY" = {VALUE} && echo 'it is "there"' ; env | grep -c TRADEWIND_SECRETS ; exit 7""", {"KEY": KEY}
    )
    text, _ = job.communicate()
    assert (job.returncode, text) == (7, 'it is "there"\n0\n')


@pytest.mark.slow
def test_job_output_redacts_secret_and_keeps_markers(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job(
        f'echo "in $KEY"; printf \'%s\' "$KEY" | base64 >&2; echo {VALUE}:end', {"KEY": KEY}, [f"{VALUE}:end"]
    )
    text, _ = job.communicate()
    assert (job.returncode, text) == (0, f"in ***\n***\n{VALUE}:end\n")


@pytest.mark.slow
def test_a_job_that_a_signal_ends_ends_by_that_signal(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job("kill -9 $$", {"KEY": KEY})
    job.communicate()
    assert job.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


@pytest.mark.slow
def test_a_job_whose_wrapper_is_signalled_gets_the_signal(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job("trap 'echo bye; exit 9' TERM; echo ready; while true; do sleep 0.1; done", {"KEY": KEY})
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    shell = shell_of(job)
    wrapper = shell.parent()
    assert wrapper is not None and "tradewind.runtime.with_secrets" in wrapper.cmdline()
    wrapper.send_signal(signal.SIGTERM)
    text, _ = job.communicate()
    assert (job.returncode, text) == (9, "bye\n")


@pytest.mark.slow
def test_a_job_that_is_signalled_ends_by_its_own_handler(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job("trap 'echo bye; exit 9' TERM; echo ready; while true; do sleep 0.1; done", {"KEY": KEY})
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    shell = shell_of(job)
    shell.send_signal(signal.SIGTERM)
    text, _ = job.communicate()
    assert (job.returncode, text) == (9, "bye\n")


@pytest.mark.slow
def test_a_job_whose_secret_cannot_be_had_does_not_start(manager: LocalSecretManager) -> None:
    job = start_job("echo started", {"KEY": KEY})
    text, _ = job.communicate()
    assert job.returncode == NO_SECRET_EXIT_CODE
    assert text.startswith(f"Task 't': secret KEY cannot be read from {KEY}/versions/latest") and text.count("\n") == 1


@pytest.mark.slow
def test_a_secret_is_on_no_command_line(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job("echo ready; sleep 600", {"KEY": KEY})
    try:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        found = marked("KEY", VALUE)
        assert found
        assert all(VALUE not in " ".join(one.cmdline()) for one in found)
    finally:
        for one in marked("KEY", VALUE):
            one.kill()
        job.communicate()
