"""The token of a ``ray`` connection: its source, its cache time, and that no output shows it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from tests.deployment.conftest import SECRET
from tests.support.shared_clusters import TOKEN
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.deployment.ray_connection import CACHE_TTL_S, FAILURE_TTL_S, TokenCache, cluster_of
from tradewind.provider_info import get_provider_info
from tradewind.ray_jobs.errors import BadAddressError, BadTokenError, RayUnreachableError
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.local.processes import free_port


def connection(**fields: Any) -> Connection:
    extra = json.dumps({name: fields.pop(name) for name in list(fields) if name not in ("host", "password")})
    return Connection(conn_id="mine", conn_type="ray", host=fields.get("host", "http://10.0.0.2:8265"),
                      password=fields.get("password"), extra=extra)  # fmt: skip


def refused(**fields: Any) -> str:
    with pytest.raises(BadTokenError) as refusal:
        cluster_of(connection(**fields))
    assert "Connection 'mine'" in str(refusal.value) or "Ray cluster 'mine'" in str(refusal.value)
    assert TOKEN not in str(refusal.value)
    return str(refusal.value)


def test_token_comes_from_password_file_or_secret(token_file: Path, manager: LocalSecretManager) -> None:
    manager.put(SECRET, f"{TOKEN}\n")
    for fields in ({"password": TOKEN}, {"token_file": str(token_file)}, {"token_secret": SECRET}):
        assert {cluster_of(connection(**fields)).token for _ in range(100)} == {TOKEN}
    assert len(manager.accesses) == 1, "the tasks of one process share the cached token"
    assert cluster_of(connection()).token is None
    assert cluster_of(connection(token_file="", token_secret=None)).token is None


def test_two_token_sources_are_refused(token_file: Path) -> None:
    sources = {"password": TOKEN, "token_file": str(token_file), "token_secret": SECRET}
    for pair in itertools.combinations(sources.items(), 2):
        assert "names its token more than once" in refused(**dict(pair))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_token_file_that_others_can_use_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    assert f"(mode {mode:04o}): run 'chmod 600' on it." in refused(token_file=str(token_file))


def test_token_file_must_exist_be_nonempty_and_absolute(tmp_path: Path, token_file: Path) -> None:
    assert "cannot be read here (No such file or directory)" in refused(token_file=str(tmp_path / "none"))
    assert "cannot be read here (Is a directory)" in refused(token_file=str(tmp_path))
    assert "give an absolute path" in refused(token_file="token")
    token_file.write_text(" \n")
    assert "is empty" in refused(token_file=str(token_file))


def test_invalid_token_secret_is_not_shown_and_missing_one_named(manager: LocalSecretManager) -> None:
    for reference in (TOKEN, "env:RAY_TOKEN", "ray-token"):
        assert "token_secret is not the name of a secret" in refused(token_secret=reference)
    assert f"cannot be read from {SECRET}/versions/latest: there is no such secret" in refused(token_secret=SECRET)


def test_unreachable_secret_manager_is_not_a_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RayUnreachableError, match="Connection 'mine': the token cannot be read from"):
        cluster_of(connection(token_secret=SECRET))


@pytest.mark.parametrize("token", [f"{TOKEN} x", f"{TOKEN}\r\nX-Other: 1", "naïve" + TOKEN])
def test_token_invalid_in_http_header_is_refused_and_not_shown(token: str) -> None:
    assert "no HTTP header can carry" in refused(password=token)


def test_missing_ca_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadAddressError, match="Connection 'mine': there is no CA bundle '/no/such.pem'"):
        cluster_of(connection(ca="/no/such.pem"))


@pytest.mark.parametrize(
    ("given", "verify"), [(None, True), (True, True), (False, False), ("false", False), ("", True)]
)
def test_verify_option_accepts_common_spellings(given: Any, verify: bool) -> None:
    assert cluster_of(connection(verify=given)).verify is verify


def test_token_cache_fetches_once_per_ttl_for_many_threads() -> None:
    now = [0.0]
    cache, fetched = TokenCache(lambda: now[0]), []
    gate = threading.Event()

    def fetch() -> str:
        gate.wait(60)
        fetched.append(1)
        return TOKEN

    with ThreadPoolExecutor(20) as pool:
        tokens = [pool.submit(cache.get, "s", fetch) for _ in range(20)]
        gate.set()
    assert [token.result() for token in tokens] == [TOKEN] * 20
    for now[0], fetches in ((0.0, 1), (CACHE_TTL_S - 1, 1), (CACHE_TTL_S, 2)):
        cache.get("s", fetch)
        assert len(fetched) == fetches
    assert TOKEN not in repr(cache.__dict__)


def test_failure_is_cached_for_a_shorter_time() -> None:
    now = [0.0]
    cache, failed = TokenCache(lambda: now[0]), []

    def fail() -> str:
        failed.append(1)
        raise RayUnreachableError("no answer")

    for now[0] in (0.0, FAILURE_TTL_S - 1, FAILURE_TTL_S):
        with pytest.raises(RayUnreachableError, match="no answer"):
            cache.get("s", fail)
    assert len(failed) == 2


LOGGING = """
import json, logging, sys
from airflow.sdk import Connection
from airflow.sdk.log import redact
from tradewind.deployment.ray_connection import cluster_of
cluster = cluster_of(Connection(conn_id="mine", conn_type="ray", host="http://h:1", extra=sys.argv[1]))
print(redact(f"a line with {cluster.token} in it"), repr(cluster), cluster)
"""


@pytest.mark.slow
def test_token_of_file_or_secret_is_masked_in_logs(token_file: Path, manager: LocalSecretManager) -> None:
    manager.put(SECRET, TOKEN)
    for extra in ({"token_file": str(token_file)}, {"token_secret": SECRET}):
        command = [sys.executable, "-c", LOGGING, json.dumps(extra)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "a line with *** in it" in done.stdout
        assert TOKEN not in done.stdout + done.stderr


def test_the_form_fits_airflows_schema_and_explains_every_field() -> None:
    import airflow
    import jsonschema

    info = get_provider_info()
    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    (form,) = [one for one in info["connection-types"] if one["connection-type"] == "ray"]
    assert {"token_file", "token_secret", "verify", "ca", "bucket", "region"} <= form["conn-fields"].keys()
    assert all(field["label"] and field["description"] for field in form["conn-fields"].values())
    placeholders = form["ui-field-behaviour"]["placeholders"]
    assert placeholders.keys() <= form["conn-fields"].keys() | {"host", "password"}
