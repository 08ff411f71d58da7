"""Secrets are named in the DAG, fetched on the cluster by Google's own client, and written nowhere."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.runtime.marked import marked
from tests.turns import claimed, driver_arguments
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE, SecretManagerUnreachableError, read_secret
from tradewind.records.attempts import Attempt, Outcome, newest_attempt
from tradewind.rehearsal.secret_manager import LocalSecretManager
from tradewind.runtime.errors import SecretError
from tradewind.runtime.references import CodeFolder
from tradewind.runtime.secrets import fetch_secrets, in_environment
from tradewind.runtime.spec import step_spec
from tradewind.runtime.with_secrets import NO_SECRET_EXIT_CODE, with_secrets
from tradewind.steps import ExecutorStep, SecretReferenceError, resolve, this_output_path, versioned

REPOSITORY = Path(__file__).parents[2]
VALUE = "s3cr3t-value-of-the-test"
KEY = "projects/research/secrets/wandb"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    server = LocalSecretManager()
    server.start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint)
    try:
        yield server
    finally:
        server.stop()


# ---- naming


@pytest.mark.parametrize(
    "reference",
    [
        KEY,
        f"{KEY}/versions/3",
        f"{KEY}/versions/latest",
        "projects/example.com:research/secrets/a_b-C",
        "projects/123456/secrets/s",
        "env:WANDB_API_KEY",
    ],
)
def test_a_step_keeps_the_references_that_it_is_given(reference: str) -> None:
    assert ExecutorStep("s", None, None, secrets={"KEY": reference}).secrets == {"KEY": reference}


@pytest.mark.parametrize(
    "reference",
    [
        VALUE,
        "WANDB_API_KEY",
        "",
        "env:",
        "env:not a name",
        "env:hf-abc",
        "projects/research/secrets",
        "projects/research/secrets/wandb/versions/",
        "projects/research/secrets/wandb/versions/1\n",
        "projects/research/locations/eu/secrets/wandb",
        "{{ var.value.key }}",
        5,
        None,
    ],
)
def test_what_is_no_reference_is_refused_and_never_shown(reference: Any) -> None:
    with pytest.raises(SecretReferenceError, match="Step 's': what secrets gives for 'KEY' is no reference") as refusal:
        ExecutorStep("s", None, None, secrets={"KEY": reference})
    shown = str(refusal.value).replace("'env:VARIABLE'", "").replace("'projects/PROJECT/secrets/SECRET'", "")
    assert not reference or len(str(reference)) < 6 or str(reference) not in shown


@pytest.mark.parametrize("name", ["", "1KEY", "A-B", "A=B", "hf token", 3])
def test_a_name_that_is_no_variable_is_refused_and_never_shown(name: Any) -> None:
    with pytest.raises(SecretReferenceError, match="is no name of an environment variable") as refusal:
        ExecutorStep("s", None, None, secrets={name: KEY})
    assert not name or repr(name) not in str(refusal.value)


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "LD_PRELOAD", "TRADEWIND_STEP"])
def test_a_name_that_the_driver_depends_on_is_refused(name: str) -> None:
    with pytest.raises(SecretReferenceError, match=f"secrets cannot set {name}"):
        ExecutorStep("s", None, None, secrets={name: KEY})


def test_secrets_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(SecretReferenceError, match="secrets is a list"):
        ExecutorStep("s", None, None, secrets=["KEY"])  # type: ignore[arg-type]


def test_secrets_are_outside_the_version() -> None:
    plain = ExecutorStep("s", None, {"a": versioned(1)})
    secret = ExecutorStep("s", None, {"a": versioned(1)}, secrets={"KEY": KEY})
    assert resolve([plain], "/p").of(plain).hash == resolve([secret], "/p").of(secret).hash


# ---- fetching


def test_the_newest_version_counts_unless_another_is_named(manager: LocalSecretManager) -> None:
    manager.put(KEY, "old")
    manager.put(KEY, VALUE)
    secrets = {"NEW": KEY, "SAME": KEY, "OLD": f"{KEY}/versions/1"}
    assert fetch_secrets(secrets, "Step 's'") == {"NEW": VALUE, "SAME": VALUE, "OLD": "old"}
    assert manager.accesses == [f"{KEY}/versions/latest", f"{KEY}/versions/1"]  # each once


def test_a_value_arrives_as_it_was_stored(manager: LocalSecretManager) -> None:
    manager.put(KEY, "naïve\nsecond line\n")
    assert fetch_secrets({"KEY": KEY}, "Step 's'") == {"KEY": "naïve\nsecond line\n"}


def test_a_variable_of_the_clusters_own_environment_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ON_THE_NODE", VALUE)
    assert fetch_secrets({"KEY": "env:ON_THE_NODE"}, "Step 's'") == {"KEY": VALUE}


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ON_THE_NODE", raising=False)
    message = "Step 's': secret KEY cannot be read from env:ON_THE_NODE: .* does not set ON_THE_NODE"
    with pytest.raises(SecretError, match=message):
        fetch_secrets({"KEY": "env:ON_THE_NODE"}, "Step 's'")


def refused(reference: str = KEY) -> str:
    with pytest.raises(SecretError) as refusal:
        fetch_secrets({"KEY": reference}, "Step 's'")
    text = str(refusal.value)
    assert VALUE not in text
    assert text.startswith(f"Step 's': secret KEY cannot be read from {reference}")
    return text


def test_a_secret_that_is_not_there_is_named(manager: LocalSecretManager) -> None:
    assert "there is no such secret or version" in refused()
    manager.put(KEY, VALUE)
    assert "there is no such secret or version" in refused(f"{KEY}/versions/7")


def test_a_secret_that_is_not_ours_to_read_says_which_role_is_missing(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    manager.denied.add(KEY)
    assert "grant its service account roles/secretmanager.secretAccessor" in refused()


def test_a_disabled_version_is_named(manager: LocalSecretManager) -> None:
    manager.disabled.add(manager.put(KEY, VALUE))
    assert "this version is disabled, destroyed or misnamed" in refused()


def test_a_value_that_arrives_damaged_is_not_used(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    manager.damaged.add(KEY)
    assert "its checksum does not fit" in refused()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b"])
def test_a_value_that_no_variable_can_hold_is_refused(manager: LocalSecretManager, value: bytes) -> None:
    manager.put(KEY, value)
    assert "no environment variable can hold" in refused()


def test_a_short_outage_is_waited_for(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    manager.failures = 1
    assert fetch_secrets({"KEY": KEY}, "Step 's'") == {"KEY": VALUE}


def test_a_secret_manager_that_does_not_answer_is_told_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv(ENDPOINT_VARIABLE, f"http://127.0.0.1:{probe.getsockname()[1]}")
        with pytest.raises(SecretManagerUnreachableError, match="does not answer"):
            read_secret(f"{KEY}/versions/latest")


@pytest.mark.parametrize("endpoint", ["http://secrets.example", "secrets.example", "ftp://127.0.0.1"])
def test_an_endpoint_elsewhere_must_be_encrypted(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, endpoint)
    assert "must be https://HOST" in refused()


def test_a_missing_client_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['google.cloud.secretmanager_v1'] = None\n"
        "from tradewind.runtime.secrets import fetch_secrets\n"
        f"fetch_secrets({{'KEY': {KEY!r}}}, 'Step \"s\"')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "google-cloud-secret-manager is not installed there" in done.stderr
    assert "airflow-provider-tradewind[gcp]" in done.stderr


def test_googles_client_can_fill_the_rehearsals_secret_manager(manager: LocalSecretManager) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.secretmanager_v1 import SecretManagerServiceClient
    from google.cloud.secretmanager_v1.services.secret_manager_service.transports import (
        SecretManagerServiceRestTransport,
    )

    transport = SecretManagerServiceRestTransport(
        host=manager.endpoint.removeprefix("http://"), credentials=AnonymousCredentials(), url_scheme="http"
    )
    client = SecretManagerServiceClient(transport=transport)
    client.create_secret(parent="projects/research", secret_id="wandb", secret={"replication": {"automatic": {}}})
    client.add_secret_version(parent=KEY, payload={"data": VALUE.encode()})
    assert fetch_secrets({"KEY": KEY}, "Step 's'") == {"KEY": VALUE}


def test_what_was_set_for_a_while_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFORE", "1")
    monkeypatch.delenv("FRESH", raising=False)
    with in_environment({"BEFORE": "2", "FRESH": "3"}):
        assert (os.environ["BEFORE"], os.environ["FRESH"]) == ("2", "3")
    assert os.environ["BEFORE"] == "1" and "FRESH" not in os.environ


# ---- a step's driver


@dataclass(frozen=True)
class Config:
    output_path: Any
    mode: Any = None


def uses_its_secret(config: Config) -> str:
    assert os.environ["KEY"] == VALUE
    return "seen"


def blurts_its_secret_out(config: Config) -> None:
    raise ValueError(f"GET https://api.example?key={os.environ['KEY']}")


def prints_its_secret_in_pieces(config: Config) -> dict[str, Any]:
    value = os.environ["KEY"].encode()
    for descriptor in (1, 2):
        for at in range(len(value)):
            os.write(descriptor, value[at : at + 1])
            time.sleep(0.002)
        os.write(descriptor, b"\xff\x00" + value + b"\n")
    logging.getLogger().error("https://api.example/?key=%s", quote(os.environ["KEY"], safe=""))
    print("Authorization: Basic", base64.b64encode(b"user:" + value).decode())
    subprocess.run(["printenv", "KEY"], check=True)
    del os.environ["KEY"]
    return {"saved": value.decode(), value.decode(): ["with", value.decode()], "shard": 7}


def prints_its_short_secret(config: Config) -> str:
    print(f"the key is {os.environ['KEY']}, key={os.environ['KEY']}; a banana")
    raise ValueError(f"bad key: {os.environ['KEY']}")


def names_a_file_by_its_secret(config: Config) -> None:
    Path(config.output_path, f"of-{os.environ['KEY']}.txt").write_text("x")


def drive(fn: Any, store: Path, secrets: dict[str, str]) -> tuple[int, str, Attempt]:
    step = ExecutorStep("s", fn, Config(this_output_path(), versioned(fn.__name__)), secrets=secrets)
    resolved = resolve([step], str(store)).of(step)
    spec = step_spec(resolved, CodeFolder(REPOSITORY))
    attempt = claimed(resolved, spec)
    command = [sys.executable, "-m", "tradewind.runtime.run_step", *driver_arguments(attempt)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    ended = newest_attempt(resolved.output_path)
    assert ended is not None
    return done.returncode, done.stdout.decode(), ended


def everything_in(folder: Path) -> str:
    return "\n".join(f"{path}\n{path.read_text()}" for path in folder.rglob("*") if path.is_file())


def test_a_steps_function_finds_its_secret_and_nothing_that_is_written_holds_it(
    tmp_path: Path, manager: LocalSecretManager
) -> None:
    manager.put(KEY, VALUE)
    code, text, ended = drive(uses_its_secret, tmp_path, {"KEY": KEY})
    assert (code, ended.outcome) == (0, Outcome.SUCCEEDED), text
    written = everything_in(tmp_path)
    assert KEY in written
    assert VALUE not in written + text


def test_an_error_that_quotes_the_secret_is_recorded_without_it(tmp_path: Path, manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    code, text, ended = drive(blurts_its_secret_out, tmp_path, {"KEY": KEY})
    assert code == 1 and ended.error is not None
    assert ended.error.message == "GET https://api.example?key=***"
    assert VALUE not in everything_in(tmp_path) + text


def test_what_a_function_prints_logs_and_returns_of_its_secret_is_hidden_in_every_form(
    tmp_path: Path, manager: LocalSecretManager
) -> None:
    manager.put(KEY, VALUE)
    code, text, ended = drive(prints_its_secret_in_pieces, tmp_path, {"KEY": KEY})
    assert (code, ended.outcome) == (0, Outcome.SUCCEEDED), text
    (log,) = tmp_path.rglob("driver.log")
    assert log.read_text() in text and text.count("***") == 2 * 2 + 3
    shown = everything_in(tmp_path) + text
    for form in (VALUE, quote(VALUE), base64.b64encode(b"user:" + VALUE.encode()).decode()[8:-4]):
        assert form not in shown
    (result,) = tmp_path.rglob(".artifact.json")
    assert json.loads(result.read_text()) == {"saved": "***", "***": ["with", "***"], "shard": 7}


@pytest.mark.parametrize("value", ["hunter2", "p@ss", "x9", "a"])
def test_a_short_secret_is_hidden_too_and_words_that_hold_its_letters_stay(
    tmp_path: Path, manager: LocalSecretManager, value: str
) -> None:
    manager.put(KEY, value)
    code, text, ended = drive(prints_its_short_secret, tmp_path, {"KEY": KEY})
    assert code == 1 and ended.error is not None and ended.error.message == "bad key: ***"
    assert "the key is ***, key=***; " in text and "banana" in text
    assert "bad key: ***" in ended.error.traceback


def test_an_output_whose_files_are_named_by_the_secret_is_no_result(
    tmp_path: Path, manager: LocalSecretManager
) -> None:
    manager.put(KEY, VALUE)
    code, text, ended = drive(names_a_file_by_its_secret, tmp_path, {"KEY": KEY})
    assert (code, ended.outcome) == (1, Outcome.FAILED), text
    assert ended.error is not None and "'of-***.txt'" in ended.error.message
    assert VALUE not in "".join(path.read_text() for path in tmp_path.rglob("*.json")) + text


def test_a_step_whose_secret_cannot_be_had_fails_before_its_function_runs(
    tmp_path: Path, manager: LocalSecretManager
) -> None:
    code, text, ended = drive(uses_its_secret, tmp_path, {"KEY": KEY})
    assert (code, ended.outcome) == (1, Outcome.FAILED)
    assert ended.error is not None and ended.error.type == "SecretError"
    assert ended.error.message.startswith(f"Step 's': secret KEY cannot be read from {KEY}/versions/latest: there is")
    assert ended.error.message in text


# ---- a plain job


def start_job(entrypoint: str, secrets: dict[str, str], kept: Sequence[str] = ()) -> subprocess.Popen[str]:
    command, env = with_secrets(entrypoint, secrets, "Task 't'", kept)
    command = command.replace("python", sys.executable, 1)
    given = {**os.environ, **env}
    return subprocess.Popen(command, shell=True, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def shell_of(job: subprocess.Popen[str]) -> psutil.Process:
    """The shell that runs the job's own command, which has the secret in its environment."""
    top = psutil.Process(job.pid)
    for process in [top, *top.children(recursive=True)]:
        with suppress(psutil.Error):  # some of those below it live for a moment only
            if process.name() == "sh" and process.environ().get("KEY") == VALUE:
                return process
    raise AssertionError("There is no such shell.")


def test_a_job_without_secrets_runs_as_it_is() -> None:
    assert with_secrets("python train.py", {}, "Task 't'") == ("python train.py", {})


def test_a_jobs_entrypoint_and_environment_name_the_secret_without_its_value() -> None:
    command, env = with_secrets("python train.py --name 'a b'", {"KEY": KEY}, "Task 't'")
    assert command.startswith("python -u -m tradewind.runtime.with_secrets ")
    assert json.loads(next(iter(env.values())))["secrets"] == {"KEY": KEY}


def test_a_jobs_command_finds_its_secret_and_its_exit_code_is_the_jobs(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job(
        f"""test "$KEY" = {VALUE} && echo 'it is "there"' ; env | grep -c TRADEWIND_SECRETS ; exit 7""", {"KEY": KEY}
    )
    text, _ = job.communicate()
    assert (job.returncode, text) == (7, 'it is "there"\n0\n')


def test_what_a_job_prints_of_its_secret_is_hidden_and_what_others_look_for_stays(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job(
        f'echo "in $KEY"; printf \'%s\' "$KEY" | base64 >&2; echo {VALUE}:end', {"KEY": KEY}, [f"{VALUE}:end"]
    )
    text, _ = job.communicate()
    assert (job.returncode, text) == (0, f"in ***\n***\n{VALUE}:end\n")


def test_a_job_that_a_signal_ends_ends_by_that_signal(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job("kill -9 $$", {"KEY": KEY})
    job.communicate()
    assert job.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


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


def test_a_job_that_is_signalled_ends_by_its_own_handler(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    job = start_job("trap 'echo bye; exit 9' TERM; echo ready; while true; do sleep 0.1; done", {"KEY": KEY})
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    shell = shell_of(job)
    shell.send_signal(signal.SIGTERM)
    text, _ = job.communicate()
    assert (job.returncode, text) == (9, "bye\n")


def test_a_job_whose_secret_cannot_be_had_does_not_start(manager: LocalSecretManager) -> None:
    job = start_job("echo started", {"KEY": KEY})
    text, _ = job.communicate()
    assert job.returncode == NO_SECRET_EXIT_CODE
    assert text.startswith(f"Task 't': secret KEY cannot be read from {KEY}/versions/latest") and text.count("\n") == 1


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
