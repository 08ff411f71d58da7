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
    with pytest.raises(SecretReferenceError, match="Step 's': the value of 'KEY' in secrets is no reference") as refusal:
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


# ---- secret values


def test_the_newest_version_counts_unless_another_is_named(manager: LocalSecretManager) -> None:
    manager.put(KEY, "old")
    manager.put(KEY, VALUE)
    secrets = {"NEW": KEY, "SAME": KEY, "OLD": f"{KEY}/versions/1"}
    assert fetch_secrets(secrets, "Step 's'") == {"NEW": VALUE, "SAME": VALUE, "OLD": "old"}
    assert manager.accesses == [f"{KEY}/versions/latest", f"{KEY}/versions/1"]  # the driver reads each secret once


def test_a_value_arrives_as_it_was_stored(manager: LocalSecretManager) -> None:
    manager.put(KEY, "naïve\nsecond line\n")
    assert fetch_secrets({"KEY": KEY}, "Step 's'") == {"KEY": "naïve\nsecond line\n"}


def test_nul_in_host_environment_file_is_reported_and_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ENVIRONMENT_FOLDER).mkdir(parents=True)
    (tmp_path / ENVIRONMENT_FOLDER / "ON_THE_NODE").write_text(f"{VALUE}\0{VALUE}")
    with pytest.raises(SecretError, match="secret KEY from env:ON_THE_NODE holds a NUL, which no variable can") as told:
        fetch_secrets({"KEY": "env:ON_THE_NODE"}, "Step 's'")
    assert VALUE not in str(told.value)


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


def test_unreadable_secret_error_names_missing_role(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    manager.denied.add(KEY)
    assert "grant its service account roles/secretmanager.secretAccessor" in refused()


def test_a_disabled_version_is_named(manager: LocalSecretManager) -> None:
    manager.disabled.add(manager.put(KEY, VALUE))
    assert "this version is disabled, destroyed or misnamed" in refused()


def test_a_value_that_arrives_damaged_is_not_used(manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    manager.damaged.add(KEY)
    assert "its checksum does not match" in refused()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b"])
def test_a_value_that_no_variable_can_hold_is_refused(manager: LocalSecretManager, value: bytes) -> None:
    manager.put(KEY, value)
    assert "no environment variable can hold" in refused()


@pytest.mark.slow
def test_a_short_outage_is_waited_for(manager: LocalSecretManager) -> None:
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
def test_an_endpoint_elsewhere_must_be_encrypted(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, endpoint)
    assert "must be https://HOST" in refused()


def test_a_missing_client_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['google.cloud.secretmanager_v1'] = None\n"
        "from tradewind.runtime.driver.secrets import fetch_secrets\n"
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


def test_cluster_variable_prefers_newest_value_on_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OF_THE_CLUSTER", "as Ray was started")
    assert fetch_secrets({"KEY": "env:OF_THE_CLUSTER"}, "Step 's'") == {"KEY": "as Ray was started"}
    folder = tmp_path / ENVIRONMENT_FOLDER
    folder.mkdir(parents=True)
    (folder / "OF_THE_CLUSTER").write_text("newer\n")
    assert fetch_secrets({"KEY": "env:OF_THE_CLUSTER"}, "Step 's'") == {"KEY": "newer"}
