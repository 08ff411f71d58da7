"""A DAG names secrets; the driver fetches them on the cluster with Google's client library."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driver.secret_value import KEY, VALUE
from tradewind.cloud_tpu.host_files import ENVIRONMENT_FOLDER
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE, SecretManagerUnreachableError, read_secret
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.runtime.driver.secrets import fetch_secrets, in_environment
from tradewind.serialization.errors import SecretError
from tradewind.steps import ExecutorStep, SecretReferenceError, resolve, versioned

# ---- secret names


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
def test_step_accepts_secret_reference(reference: str) -> None:
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
def test_invalid_reference_is_refused_without_printing_it(reference: Any) -> None:
    message = "Step 's': the value of 'KEY' in secrets is no reference"
    with pytest.raises(SecretReferenceError, match=message) as refusal:
        ExecutorStep("s", None, None, secrets={"KEY": reference})
    printed = str(refusal.value).replace("'env:VARIABLE'", "").replace("'projects/PROJECT/secrets/SECRET'", "")
    assert not reference or len(str(reference)) < 6 or str(reference) not in printed


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["", "1KEY", "A-B", "A=B", "hf token", 3], "is no name of an environment variable"),
        (["PATH", "PYTHONUSERBASE", "LD_AUDIT", "BASH_ENV", "TRADEWIND_STEP"], "secrets cannot set "),
    ],
)
def test_variable_that_no_secret_can_set_is_refused(names: list[Any], message: str) -> None:
    for name in names:
        with pytest.raises(SecretReferenceError, match=message) as refusal:
            ExecutorStep("s", None, None, secrets={name: KEY})
        assert not name or repr(name) not in str(refusal.value)
    with pytest.raises(SecretReferenceError, match="secrets is a list"):
        ExecutorStep("s", None, None, secrets=["KEY"])  # type: ignore[arg-type]


def test_secrets_are_outside_the_version() -> None:
    plain = ExecutorStep("s", None, {"a": versioned(1)})
    secret = ExecutorStep("s", None, {"a": versioned(1)}, secrets={"KEY": KEY})
    assert resolve([plain], "/p").of(plain).hash == resolve([secret], "/p").of(secret).hash


# ---- secret values


def test_newest_version_is_read_unless_another_is_named(manager: LocalSecretManager) -> None:
    manager.put(KEY, "old")
    manager.put(KEY, "naïve\nsecond line\n")
    secrets = {"NEW": KEY, "SAME": KEY, "OLD": f"{KEY}/versions/1"}
    new = "naïve\nsecond line\n"
    assert fetch_secrets(secrets, "Step 's'") == {"NEW": new, "SAME": new, "OLD": "old"}
    assert manager.accesses == [f"{KEY}/versions/latest", f"{KEY}/versions/1"]  # the driver reads each secret once


def refused(reference: str = KEY) -> str:
    with pytest.raises(SecretError) as refusal:
        fetch_secrets({"KEY": reference}, "Step 's'")
    text = str(refusal.value)
    assert VALUE not in text
    assert text.startswith(f"Step 's': secret KEY cannot be read from {reference}")
    return text


@pytest.mark.parametrize(
    ("reference", "set_up", "message"),
    [
        (f"{KEY}-2", None, "there is no such secret or version"),
        (f"{KEY}/versions/7", None, "there is no such secret or version"),
        (KEY, lambda manager: manager.denied.add(KEY), "grant its service account roles/secretmanager.secretAccessor"),
        (KEY, lambda manager: manager.disabled.add(f"{KEY}/versions/1"), "version is disabled, destroyed or misnamed"),
        (KEY, lambda manager: manager.damaged.add(KEY), "its checksum does not match"),
    ],
)
def test_unreadable_secret_error_names_cause(
    manager: LocalSecretManager, reference: str, set_up: Any, message: str
) -> None:
    manager.put(KEY, VALUE)
    if set_up:
        set_up(manager)
    assert message in refused(reference)


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b"])
def test_value_that_no_variable_can_hold_is_refused(manager: LocalSecretManager, value: bytes) -> None:
    manager.put(KEY, value)
    assert "no environment variable can hold" in refused()


@pytest.mark.slow
def test_secret_is_read_after_short_outage(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    manager.failures = 1
    assert fetch_secrets({"KEY": KEY}, "Step 's'") == {"KEY": VALUE}


def test_secret_manager_outage_is_distinct_from_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv(ENDPOINT_VARIABLE, f"http://127.0.0.1:{probe.getsockname()[1]}")
        with pytest.raises(SecretManagerUnreachableError, match="does not answer"):
            read_secret(f"{KEY}/versions/latest")


@pytest.mark.parametrize("endpoint", ["http://secrets.example", "secrets.example", "ftp://127.0.0.1"])
def test_remote_endpoint_must_be_encrypted(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, endpoint)
    assert "must be https://HOST" in refused()


def test_missing_client_error_names_extra_to_install() -> None:
    code = (
        "import sys; sys.modules['google.cloud.secretmanager_v1'] = None\n"
        "from tradewind.runtime.driver.secrets import fetch_secrets\n"
        f"fetch_secrets({{'KEY': {KEY!r}}}, 'Step \"s\"')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "google-cloud-secret-manager is not installed there" in done.stderr
    assert "airflow-provider-tradewind[gcp]" in done.stderr


def test_secret_stored_by_googles_client_is_fetched(manager: LocalSecretManager) -> None:
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


def test_environment_is_restored_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFORE", "1")
    monkeypatch.delenv("FRESH", raising=False)
    with in_environment({"BEFORE": "2", "FRESH": "3"}):
        assert (os.environ["BEFORE"], os.environ["FRESH"]) == ("2", "3")
    assert os.environ["BEFORE"] == "1" and "FRESH" not in os.environ


def test_cluster_variable_prefers_newest_value_on_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ON_THE_NODE", raising=False)
    assert "does not set ON_THE_NODE; set it where Ray is started" in refused("env:ON_THE_NODE")
    monkeypatch.setenv("ON_THE_NODE", "as Ray was started")
    assert fetch_secrets({"KEY": "env:ON_THE_NODE"}, "Step 's'") == {"KEY": "as Ray was started"}
    file = tmp_path / ENVIRONMENT_FOLDER / "ON_THE_NODE"
    file.parent.mkdir(parents=True)
    file.write_text("newer\n")
    assert fetch_secrets({"KEY": "env:ON_THE_NODE"}, "Step 's'") == {"KEY": "newer"}
    file.write_text(f"{VALUE}\0{VALUE}")
    with pytest.raises(SecretError, match="from env:ON_THE_NODE holds a NUL, which no variable can") as refusal:
        fetch_secrets({"KEY": "env:ON_THE_NODE"}, "Step 's'")
    assert VALUE not in str(refusal.value)
