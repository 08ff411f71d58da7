"""How a command chooses its cluster, which token it sends there, and how it words errors."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.fleets import many_clusters, write_fleet
from tests.fleet.lifecycle.fleet_environment import update
from tests.support.http_server import serving
from tradewind.cli.jobs.clusters import chosen_cluster, explain_error, options_for, token_in
from tradewind.cli.main import main
from tradewind.cli.output import CommandError, UsageError
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, RayTlsError, token_refused
from tradewind.ray_jobs.probe import tls_problem

COMMAND = ("jobs",)
TOKEN = "t0ken-of-the-test-0123456789"
OTHER = "an0ther-token-of-the-test-01"


def chosen(
    home: Path, address: str | None = None, connection: str | None = None, config: str | None = None, **env: str
) -> RayCluster:
    arguments = argparse.Namespace(address=address, cluster=connection, config=config, ca=None)
    with chosen_cluster(arguments, None, env, home) as cluster:
        if arguments.named is None:
            assert options_for(None, cluster) == ["--address", cluster.address]
        else:
            given = [word for word in (connection, config) if word]
            assert options_for(arguments.named, cluster)[1::2] == (given or ["here"])
        return cluster


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "auth_token"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_address_option_wins_over_environment_and_localhost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chosen(tmp_path, "http://a:1", RAY_ADDRESS="http://b:2").address == "http://a:1"
    assert chosen(tmp_path, RAY_ADDRESS="http://b:2").address == "http://b:2"
    assert chosen(tmp_path).address == "http://127.0.0.1:8265"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a fleet file whose clusters each have a connection and a written cluster file."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # monkeypatch restores it after the test
    for name in ("HERE", "EXTRA_0"):
        fields = {"conn_type": "ray", "host": f"http://{name.lower()}:3", "password": TOKEN}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    (tmp_path / "infra").mkdir()
    file = write_fleet(tmp_path / "infra", many_clusters(1).replace("{", "{connection: extra_0, ", 1), inside=False)
    update(file)
    monkeypatch.chdir(tmp_path)
    return file


def test_cluster_defaults_to_that_of_fleet_file_if_present(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen(tmp_path).address == "http://here:3"
    assert capsys.readouterr().err == "tradewind: Using cluster here, the default of infra/fleet.yaml.\n"
    assert chosen(tmp_path, RAY_ADDRESS="http://b:2").address == "http://b:2"
    assert chosen(tmp_path, "http://a:1").address == "http://a:1"
    fleet.write_text(fleet.read_text().replace("zone", "zonee", 1))
    with pytest.raises(CommandError, match=r"The fleet file cannot be used as it is: infra/fleet.yaml:8: .*zonee"):
        chosen(tmp_path)
    fleet.unlink()
    assert chosen(tmp_path).address == "http://127.0.0.1:8265" and capsys.readouterr().err == ""


def test_path_of_cluster_file_replaces_name_and_names_fleet(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "infra/clusters/extra-0.yaml"
    assert chosen(tmp_path, connection=file).address == "http://extra_0:3"
    assert chosen(tmp_path, config=file).address == "http://extra_0:3"
    assert chosen(tmp_path, config="infra/fleet.yaml").address == "http://here:3"
    assert chosen(tmp_path, connection="extra-0", config=str(fleet)).address == "http://extra_0:3"
    for words in ({"connection": "here", "config": file}, {"address": "http://a:1", "config": file}):
        with pytest.raises(UsageError, match="both name a cluster: give one of them"):
            chosen(tmp_path, **words)
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert chosen(tmp_path, connection=str(fleet.parent / "clusters" / "extra-0.yaml")).address == "http://extra_0:3"


def test_a_connection_is_a_cluster_with_its_own_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": "ray", "host": "http://c:3", "password": TOKEN}))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # monkeypatch restores it after the test
    cluster = chosen(tmp_path, connection="mine", RAY_AUTH_TOKEN=OTHER)
    assert (cluster.name, cluster.address, cluster.token) == ("mine", "http://c:3", TOKEN)


def test_token_variable_wins_over_named_file_and_home_file(tmp_path: Path) -> None:
    named = token_file(tmp_path / "named", f"{OTHER}\n")
    assert token_in({}, tmp_path) is None
    token_file(tmp_path / ".ray", f" {TOKEN}\n")
    assert token_in({}, tmp_path) == TOKEN
    assert token_in({"RAY_AUTH_TOKEN_PATH": str(named)}, tmp_path) == OTHER
    assert token_in({"RAY_AUTH_TOKEN_PATH": str(named), "RAY_AUTH_TOKEN": "third"}, tmp_path) == "third"
    with pytest.raises(CommandError, match="RAY_AUTH_TOKEN_PATH: the token file .* cannot be read"):
        token_in({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "gone")}, tmp_path)


@pytest.mark.parametrize(
    ("text", "mode", "says"), [(TOKEN, 0o640, "chmod 600"), (TOKEN, 0o604, "chmod 600"), ("\n", 0o600, "is empty")]
)
def test_shared_or_empty_token_file_is_refused(text: str, mode: int, says: str, tmp_path: Path) -> None:
    file = token_file(tmp_path / ".ray", text, mode)
    for env in ({}, {"RAY_AUTH_TOKEN_PATH": str(file)}):
        with pytest.raises(CommandError, match=says) as refused:
            token_in(env, tmp_path)
        assert TOKEN not in str(refused.value)


def test_a_token_that_no_header_can_carry_is_refused_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="RAY_AUTH_TOKEN") as refused:
        chosen(tmp_path, RAY_AUTH_TOKEN=f"{TOKEN} {OTHER}")
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(("token", "says"), [(None, "requires a token: put it"), (TOKEN, "refuses the token: put")])
def test_token_refusal_error_lists_token_sources(token: str | None, says: str) -> None:
    cluster = RayCluster("c:3", "http://c:3", token)
    text = explain_error(RayAuthenticationError(token_refused(cluster)), cluster)
    assert text.startswith(f"The Ray cluster at http://c:3 {says}")
    assert "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token" in text and "connection" not in text
    assert "password field of connection 'mine'" in explain_error(
        RayAuthenticationError(token_refused(RayCluster("mine", "http://c")))
    )


@pytest.mark.parametrize(
    "cause",
    ["self-signed", "mismatch", "has expired", "unable to get local issuer", "WRONG_VERSION_NUMBER", "something else"],
)
def test_tls_errors_without_airflow_mention_no_connection(cause: str) -> None:
    cluster = RayCluster("c:3", "https://c:3")
    text = explain_error(RayTlsError(f"{cluster}: {tls_problem(OSError(cause))}"), cluster)
    assert text.startswith("The Ray cluster at https://c:3: ")
    assert "of the connection" not in text and "of connection" not in text and "'CA bundle'" not in text


class _Recorder(BaseHTTPRequestHandler):
    """A dashboard that refuses every request and records the headers."""

    seen: list[str | None] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"Invalid authentication token")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refuser() -> Iterator[str]:
    _Recorder.seen = []
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Recorder)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


ON_A_CLUSTER = [["list"], ["logs", "a"], ["stop", "a"], ["wait", "a"], ["submit", "--", "true"]]


@pytest.mark.parametrize("words", ON_A_CLUSTER)
def test_every_command_sends_token_and_reports_refusal_once(
    words: list[str], refuser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    code, out, err = run(words[0], "--address", refuser, *words[1:])
    assert code == 1 and set(_Recorder.seen) == {f"Bearer {TOKEN}"}
    assert err.count("refuses the token: put the right one into RAY_AUTH_TOKEN") == 1
    assert err.count("\n") == 1 and TOKEN not in out + err


@pytest.mark.parametrize("words", ["list-jobs", "job-logs a -f", "stop-job a", "wait-job a --show-logs", "jobs list"])
def test_job_words_of_cluster_py_reach_the_jobs_commands(
    words: str, refuser: str, fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"conn_type": "ray", "host": refuser, "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_EXTRA_0", json.dumps(fields))
    group, rest = ("jobs", words.split()[1:]) if words.startswith("jobs") else ("cluster", words.split())
    for option in (["--config", "infra/clusters/extra-0.yaml"], ["--cluster", "extra-0"]):
        _Recorder.seen.clear()
        for before, after in ((option, []), ([], option)):
            with pytest.raises(SystemExit) as end:
                main([group, *before, *rest, *after])
            assert end.value.code == 1 and "refuses the token: put the right one into" in capsys.readouterr().err
        assert set(_Recorder.seen) == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("words", ON_A_CLUSTER)
def test_every_command_ends_if_cluster_does_not_exist(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    code, _, err = run(words[0], "--address", address, *words[1:])
    assert code == 1 and f"The Ray cluster at {address} does not answer" in err and "correct the address" in err
