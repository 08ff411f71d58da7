"""The Test button of a ``ray`` connection; one process that uses many clusters, each with its token."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from tests.deployment.conftest import OTHER, SECRET
from tests.support.http_server import serving
from tests.support.shared_clusters import TOKEN, shared_cluster
from tradewind.deployment.ray_connection import extras_of
from tradewind.hooks.ray import RayHook
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.errors import BadAddressError, RayAuthenticationError, RayUnreachableError
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.local.processes import LocalStack, free_port
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.serialization.job_start import JobStart

RAY = version("ray")


@pytest.fixture(scope="module")
def guarded() -> LocalRay:
    return shared_cluster("guarded")


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    ray = LocalRay(LocalStack(tmp_path_factory.mktemp("open")), token="", num_cpus=1)
    try:
        ray.start()
        yield ray
    finally:
        ray.stop()


@pytest.mark.ray
def test_button_reports_accepted_refused_and_missing_token(
    connected: Any, guarded: LocalRay, token_file: Path, manager: LocalSecretManager
) -> None:
    manager.put(SECRET, TOKEN)
    for fields in ({"password": TOKEN}, {"token_file": str(token_file)}, {"token_secret": SECRET}):
        ok, text = connected(guarded.address, **fields).test_connection()
        assert (ok, text) == (True, f"Ray cluster 'mine' ({guarded.address}) runs Ray {RAY} on 1 node; token accepted.")
    ok, text = connected(guarded.address, password=OTHER).test_connection()
    assert not ok and "refuses the connection's token" in text and OTHER not in text
    ok, text = connected(guarded.address).test_connection()
    assert not ok and "asks for a token, and the connection has none" in text


@pytest.mark.ray
def test_button_reports_that_no_token_is_required(connected: Any, open_cluster: LocalRay) -> None:
    ok, text = connected(open_cluster.address).test_connection()
    assert ok and text.endswith(f"runs Ray {RAY} on 1 node; it asks for no token.")
    ok, text = connected(open_cluster.address, password=TOKEN).test_connection()
    assert ok and "so the connection's is not needed" in text and TOKEN not in text


@pytest.mark.ray
def test_one_process_serves_clusters_with_and_without_token(
    connected: Any, guarded: LocalRay, open_cluster: LocalRay, manager: LocalSecretManager
) -> None:
    manager.put(SECRET, TOKEN)
    before = dict(os.environ)
    hooks = [
        connected(guarded.address, "one", token_secret=SECRET),
        connected(open_cluster.address, "two"),
        connected(guarded.address, "three", password=TOKEN),
    ]
    for hook in [*hooks, *hooks]:
        assert hook.get_conn().details("unknown") is None
    with pytest.raises(RayAuthenticationError):
        connected(guarded.address, "four", password=OTHER).get_conn()
    changed = {name for name in os.environ if before.get(name) != os.environ[name]}
    assert not any(name.startswith("RAY_AUTH") for name in changed)
    assert not any(TOKEN in os.environ[name] for name in changed if not name.startswith("AIRFLOW_CONN_"))


@pytest.mark.ray
def test_token_renewed_in_secret_manager_is_fetched_on_refusal(
    connected: Any, guarded: LocalRay, manager: LocalSecretManager
) -> None:
    manager.put(SECRET, OTHER)
    hook = connected(guarded.address, token_secret=SECRET)
    with pytest.raises(RayAuthenticationError):
        hook.get_conn()
    manager.put(SECRET, TOKEN)
    assert hook.get_conn().details("unknown") is None
    with pytest.raises(RayAuthenticationError):  # a refused password causes no second read
        connected(guarded.address, password=OTHER).get_conn()


@pytest.mark.ray
def test_a_trigger_gets_the_cluster_without_blocking_its_loop(
    connected: Any, guarded: LocalRay, manager: LocalSecretManager
) -> None:
    manager.put(SECRET, TOKEN)
    manager.released.clear()
    connected(guarded.address, token_secret=SECRET)

    async def follow() -> Any:
        task = asyncio.create_task(RayHook.cluster_from_trigger("mine"))
        done, _ = await asyncio.wait({task}, timeout=0.2)  # a blocked event loop would never return here
        assert not done
        manager.released.set()
        return await task

    assert asyncio.run(follow()).token == TOKEN


def test_trigger_names_missing_connection() -> None:
    with pytest.raises(
        BadAddressError, match="There is no connection 'nowhere': add one of type 'Ray' .*TRADEWIND_FLEET"
    ):
        asyncio.run(RayHook.cluster_from_trigger("nowhere"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    for name, host in (("right", "IP:127.0.0.1"), ("other", "DNS:elsewhere.example")):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        subprocess.run([*command, "-addext", f"subjectAltName={host}", *files], check=True, capture_output=True)
    return folder


class NoDashboard(BaseHTTPRequestHandler):
    """A server that is no Ray head: a site, or below ``/login`` what redirects to it."""

    def do_GET(self) -> None:
        self.send_response(302 if self.path.startswith("/login/") else 200)
        self.send_header("Location", "//me:hunter2@127.0.0.1:1/sso\x1b[2J?token=hunter2")
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    with ExitStack() as servers:

        def start_server(certificate: Path | None = None) -> str:
            server = ThreadingHTTPServer(("127.0.0.1", 0), NoDashboard)
            if certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate.with_suffix(".pem"), certificate.with_suffix(".key"))
                server.socket = context.wrap_socket(server.socket, server_side=True)
            servers.enter_context(serving(server))
            return f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"

        yield start_server


def button(hook: RayHook) -> str:
    ok, text = hook.test_connection()
    assert not ok
    assert TOKEN not in text
    return text


@pytest.mark.slow
def test_button_names_problem_of_certificate(connected: Any, serve: Any, certificates: Path) -> None:
    right, other = serve(certificates / "right"), serve(certificates / "other")
    assert "is self-signed: name it as 'CA bundle'" in button(connected(right, password=TOKEN))
    trusting = str(certificates / "other.pem")
    assert "is for another host name" in button(connected(other, password=TOKEN, ca=trusting))
    assert "answers, but not as a Ray dashboard" in button(connected(right, ca=str(certificates / "right.pem")))
    assert "answers, but not as a Ray dashboard" in button(connected(other, verify=False))


def test_button_names_wrong_scheme_missing_and_foreign_server(connected: Any, serve: Any) -> None:
    assert "answers, but not as a Ray dashboard does" in button(connected(serve(), password=TOKEN))
    address = serve().replace("http:", "https:")
    assert "it does not speak TLS: write http:// instead of https://" in button(connected(address, password=TOKEN))
    hook = connected(f"{serve()}/login", password=TOKEN)
    told = button(hook)
    assert "answers with a redirect (302) to //127.0.0.1:1/sso?[2J. It was not followed: correct the host" in told

    async def ask() -> None:
        async with JobsApi(hook.cluster()) as api:
            await api.get_json("/api/version")

    for call in (hook.get_conn, lambda: asyncio.run(ask())):
        with pytest.raises(RayUnreachableError, match=re.escape(told)):
            call()
    address = f"http://127.0.0.1:{free_port()}"
    assert "does not answer (ConnectionError)" in button(connected(address, password=TOKEN))


@pytest.mark.parametrize(
    ("host", "fields", "expected"),
    [
        ("10.0.0.2", {"port": 8265}, "http://10.0.0.2:8265"),
        (" http://10.0.0.2:8265/ ", {"port": 8265}, "http://10.0.0.2:8265"),
        ("10.0.0.2/", {"port": 8265, "schema": "https"}, "https://10.0.0.2:8265"),
        ("https://gateway/ray/", {"port": 8265}, "https://gateway:8265/ray"),
        ("gateway:/ray", {"port": 80}, "http://gateway:80/ray"),
        ("::1", {"port": 8265}, "http://[::1]:8265"),
        ("http://[::1]", {"port": 8265}, "http://[::1]:8265"),
        ("10.0.0.2:8265", {"port": 6379}, "its host names port 8265, and its port field 6379: empty one"),
        ("http://me:hunter2@10.0.0.2", {"port": 8265}, "its address has a user name, a query or a fragment"),
        ("http://10.0.0.2?a=hunter2", {"port": 8265}, "its address has a user name, a query or a fragment"),
        ("10.0.0.2:82:65", {"port": 8265}, "is no dashboard address"),
        ("http://a\0b", {}, "is no dashboard address"),
        *((host, {"port": 8265}, "is no dashboard address") for host in ("http://", "https:/", "..")),
        ("http://a b", {}, "is no dashboard address"),
        ("a" * 3000, {}, "is no dashboard address"),
        ("a", {"slice_types": ["v4-9"] * 100}, "'slice_types' is ['v4-9', 'v4-9', "),
    ],
)
def test_fields_of_connection_make_one_address(
    connected: Any, host: str, fields: dict[str, Any], expected: str
) -> None:
    hook = connected(host, **fields)
    if expected.startswith("http"):
        assert hook.cluster().address == expected
    else:
        assert expected in (told := button(hook)) and "hunter2" not in told


@pytest.mark.parametrize("extra", ["[1]", "5", "{", '{"a": ' + "1" * 5000 + "}", "[" * 9000, '{"a": ' * 9000])
def test_extras_that_are_no_object_are_refused_by_connection(extra: str) -> None:
    with pytest.raises(BadAddressError, match=r"Connection 'mine': its extra fields .* are no JSON object"):
        extras_of(Connection(conn_id="mine", conn_type="ray", extra=extra))
    for empty in (None, "", "{}", "null"):
        assert extras_of(Connection(conn_id="mine", conn_type="ray", extra=empty)) == {}


@pytest.mark.parametrize(
    ("extra", "setting", "expected"),
    [
        ({}, None, JobStart("auto")),
        ({"ship": "", "python": " /opt/ray/bin/python "}, "never", JobStart("never", "/opt/ray/bin/python")),
        ({"ship": "always", "python": ""}, "never", JobStart("always")),
        ({"ship": "Auto"}, None, "ship, here or in [tradewind], must be one of auto, always, never, but is 'Auto'"),
        ({}, "sometimes", "must be one of auto, always, never, but is 'sometimes'"),
        ({"ship": True}, None, "'ship' must be text, but is True"),
        ({"python": ["a"] * 100}, None, "'python' must be text, but is ['a', 'a', "),
        ({"python": "/bin/python\nrm"}, None, r"'python' is '/bin/python\nrm', which is no path"),
        ({"python": "/" + "p" * 5000}, None, "which is no path of an interpreter: name one such as"),
    ],
)
def test_start_of_jobs_is_that_of_extras_else_of_settings(
    connected: Any, extra: dict[str, Any], setting: str | None, expected: JobStart | str, monkeypatch: Any
) -> None:
    if setting is not None:
        monkeypatch.setenv("AIRFLOW__TRADEWIND__SHIP", setting)
    hook = connected("http://127.0.0.1:1", **extra)
    if isinstance(expected, JobStart):
        assert hook.job_start() == expected
    else:
        with pytest.raises(BadAddressError, match=f"^Connection 'mine': .*{re.escape(expected)}") as refused:
            hook.job_start()
        assert button(hook) == str(refused.value) and len(str(refused.value)) < 300


def test_button_names_wrong_token_source_and_address(connected: Any, token_file: Path) -> None:
    token_file.chmod(0o644)
    assert "run 'chmod 600' on it" in button(connected("http://127.0.0.1:1", token_file=str(token_file)))
    assert "is no dashboard address" in button(connected("ray://127.0.0.1:10001", password=TOKEN))
    assert "There is no connection 'nowhere'" in button(RayHook("nowhere"))
