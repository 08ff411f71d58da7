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
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.runtime.with_secrets import NO_SECRET_EXIT_CODE, with_secrets


def start_job(entrypoint: str, kept: Sequence[str] = ()) -> subprocess.Popen[str]:
    command, secrets = with_secrets(entrypoint, {"KEY": KEY}, "Task 't'", kept)
    command = command.replace("python", sys.executable, 1)
    env = {**os.environ, **secrets}
    return subprocess.Popen(command, shell=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_job(entrypoint: str, kept: Sequence[str] = ()) -> tuple[int, str]:
    job = start_job(entrypoint, kept)
    text, _ = job.communicate()
    return job.returncode, text


def commands_with_secret(job: subprocess.Popen[str]) -> dict[psutil.Process, str]:
    """Return the command lines of the job's processes that have the secret in their environment, parents first."""
    commands = {}
    top = psutil.Process(job.pid)
    for process in [top, *top.children(recursive=True)]:
        with suppress(psutil.Error):  # some child processes exit during the search
            if process.environ().get("KEY") == VALUE:
                commands[process] = " ".join(process.cmdline())
    return commands


def test_job_spec_and_environment_omit_secret_value() -> None:
    assert with_secrets("python train.py", {}, "Task 't'") == ("python train.py", {})
    command, env = with_secrets("python train.py --name 'a b'", {"KEY": KEY}, "Task 't'")
    assert command.startswith("python -u -m tradewind.runtime.with_secrets ")
    assert json.loads(next(iter(env.values())))["secrets"] == {"KEY": KEY}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ends", "printed"),
    [
        (f"""test "$KEY" = {VALUE} && echo '"there"'; env | grep -c TRADEWIND_SECRETS; exit 7""", {7}, '"there"\n0\n'),
        (f'echo "in $KEY"; printf %s "$KEY" | base64 >&2; echo {VALUE}:end', {0}, f"in ***\n***\n{VALUE}:end\n"),
        ("kill -9 $$", {-signal.SIGKILL, 128 + signal.SIGKILL}, None),
    ],
    ids=["code", "redacted", "signal"],  # pytest puts them into the environment
)
def test_job_gets_secret_redacts_it_and_ends_as_its_command(
    manager: LocalSecretManager, script: str, ends: set[int], printed: str | None
) -> None:
    manager.put(KEY, VALUE)
    code, text = run_job(script, [f"{VALUE}:end"])
    assert code in ends and printed in (None, text)


@pytest.mark.slow
@pytest.mark.parametrize("signalled", ["command", "wrapper"])
def test_signalled_job_ends_by_handler_of_its_command(manager: LocalSecretManager, signalled: str) -> None:
    """Meanwhile, no process has the secret on its command line."""
    manager.put(KEY, VALUE)
    job = start_job("trap 'echo bye; exit 9' TERM; echo ready; while true; do sleep 0.1; done")
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    commands = commands_with_secret(job)
    assert not any(VALUE in command for command in commands.values())
    shell = next(one for one in commands if one.name() == "sh")
    wrapper = shell.parent()
    assert wrapper is not None and "tradewind.runtime.with_secrets" in wrapper.cmdline()
    (shell if signalled == "command" else wrapper).send_signal(signal.SIGTERM)
    text, _ = job.communicate()
    assert (job.returncode, text) == (9, "bye\n")


@pytest.mark.slow
def test_job_does_not_start_without_secret(manager: LocalSecretManager) -> None:
    code, text = run_job("echo started")
    assert code == NO_SECRET_EXIT_CODE
    assert text.startswith(f"Task 't': secret KEY cannot be read from {KEY}/versions/latest") and text.count("\n") == 1
