"""Cluster token: where commands send it, created once, and never changed under a running cluster."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import many_clusters, write_fleet
from tests.support.google import LocalCompute
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.fleet.cloud.token_secret import TokenSecret, TokenSecretError
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager

CACHED = "cache/tradewind/tokens/my-project/RAY_AUTH_TOKEN"
COMMAND = ("cluster",)
SECRET = "projects/my-project/secrets/RAY_AUTH_TOKEN"
TOKEN = "t0ken-of-the-test-0123456789"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    """Set up an empty Secret Manager, two clusters with one token, no clipboard and an empty home."""
    server = LocalSecretManager()
    server.start()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path, many_clusters(1), inside=False)))
    yield server
    server.stop()


@pytest.fixture
def compute() -> Iterator[LocalCompute]:
    with served(LocalCompute(), "compute") as server:
        yield server


def test_auth_copies_token_and_prints_nothing(manager: LocalSecretManager, tmp_path: Path, run: Run) -> None:
    manager.put(SECRET, TOKEN)
    clipboard = tmp_path / "bin" / "xclip"
    clipboard.write_text(f'#!/bin/sh\nread -r line; echo "$* $line" > {tmp_path}/copied\nread -r line\ntrue\n')
    clipboard.chmod(0o755)
    code, out, err = run("auth", "here", "--no-open")
    assert (code, out) == (0, "") and TOKEN not in err and "is in the clipboard" in err
    assert (tmp_path / "copied").read_text() == f"-selection clipboard {TOKEN}\n"


@pytest.mark.parametrize("option", ["--copy", "--no-copy"])
def test_auth_prints_no_token_without_terminal(manager: LocalSecretManager, run: Run, option: str) -> None:
    manager.put(SECRET, TOKEN)
    code, out, err = run("auth", option, "--no-open")
    assert (code, out) == (1, "") and TOKEN not in err
    assert "printed only on a terminal" in err and "auth-env here" in err


def test_a_terminal_shows_it(manager: LocalSecretManager, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    manager.put(SECRET, "0ther-token-0123456789")
    manager.put("projects/my-project/secrets/STAGING", TOKEN)
    reader, writer = os.openpty()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert run("auth", "--no-copy", "--no-open", "--secret", "STAGING")[0] == 0
        assert os.read(reader, 1000).decode().strip() == TOKEN
    os.close(reader)


def test_a_shell_gets_the_files_name_and_no_token(
    manager: LocalSecretManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    manager.put(SECRET, TOKEN)
    code, out, err = run("auth-env")
    assert code == 0 and TOKEN not in out + err
    assert out == f"export RAY_AUTH_MODE=token\nexport RAY_AUTH_TOKEN_PATH={(tmp_path / CACHED)}\n"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").symlink_to(tmp_path / "fleet.yaml")
    code, out, err = run("auth-env", "--home")
    assert code == 0 and TOKEN not in out + err and out.endswith(f"RAY_AUTH_TOKEN_PATH={tmp_path}/.ray/auth_token\n")
    for name in (CACHED, ".ray/auth_token"):
        assert (tmp_path / name).read_text().strip() == TOKEN
        assert stat.S_IMODE((tmp_path / name).lstat().st_mode) == 0o600, "a file of its own, not a link"


@pytest.mark.slow
def test_dev_setup_leaves_token_where_ray_looks(
    manager: LocalSecretManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.write_text('#!/bin/sh\nfor word; do case $word in --out-file=*) echo key > "${word#*=}";; esac; done\n')
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    script = Path(__file__).parents[3] / "scripts" / "dev_setup.sh"
    words = ["bash", str(script), sys.executable, os.environ["TRADEWIND_FLEET"]]

    def ended() -> tuple[int, str]:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert TOKEN not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    code, said = ended()
    assert code == 0 and "There is no token yet: 'make init_ray_auth_token_secret' creates it" in said
    manager.put(SECRET, TOKEN)
    file = tmp_path / ".ray" / "auth_token"
    assert ended()[0] == 0 and file.read_text() == TOKEN and stat.S_IMODE(file.stat().st_mode) == 0o600
    manager.put(SECRET, "0ther-token-0123456789")
    code, said = ended()
    assert code == 0 and f"{file} is there." in said and file.read_text() == TOKEN


@pytest.mark.slow
def test_init_token_creates_once_and_rotates_on_request(
    manager: LocalSecretManager, compute: LocalCompute, tmp_path: Path, run: Run
) -> None:
    code, out, err = run("init-token")
    first = (tmp_path / CACHED).read_text().strip()
    assert code == 0 and f"{SECRET}/versions/1 is the token of here, extra-0 from their next start." in err
    assert len(first) == 64 and first not in out + err
    code, _, err = run("init-token")
    assert code == 1 and "has a token (version 1), which is never written over unasked" in err and "--rotate" in err
    assert run("init-token", "--rotate")[0] == 0
    assert (tmp_path / CACHED).read_text().strip() != first
    assert [version.number for version in TokenSecret("my-project", "RAY_AUTH_TOKEN").versions()] == [2, 1]


@pytest.mark.slow
def test_init_token_resumes_secret_without_enabled_version(
    manager: LocalSecretManager, compute: LocalCompute, run: Run
) -> None:
    manager.refused.add("secretmanager.versions.add")
    code, _, err = run("init-token")
    assert code == 1 and "'secretmanager.versions.add' denied" in err
    manager.refused.clear()
    assert run("init-token")[0] == 0
    manager.disabled.add(f"{SECRET}/versions/1")
    assert run("init-token")[0] == 0, "what is switched off is no token"


def test_first_of_two_concurrent_tokens_counts(manager: LocalSecretManager, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = TokenSecret("my-project", "RAY_AUTH_TOKEN")
    add = TokenSecret.add

    def later(self: TokenSecret, token: str) -> object:
        manager.put(SECRET, "theirs-0123456789")
        return add(self, token)

    monkeypatch.setattr(TokenSecret, "add", later)
    with pytest.raises(TokenSecretError, match="just made by another user"):
        secret.create(TOKEN)
    assert manager.state(f"{SECRET}/versions/1") == "ENABLED" and manager.state(f"{SECRET}/versions/2") == "DESTROYED"


@pytest.mark.slow
def test_token_is_unchanged_while_a_sharing_cluster_runs(
    manager: LocalSecretManager, compute: LocalCompute, run: Run
) -> None:
    manager.put(SECRET, TOKEN)
    labels = {"ray-cluster-name": "extra-0", "ray-node-type": "head"}
    compute.put("my-project", "us-east5-a", "head-of-extra", labels=labels, internal_ip="10.0.0.9")
    for words in (["init-token", "here", "--rotate"], ["set-token", "here", "--rotate"]):
        code, _, err = run(*words)
        assert code == 1 and "Cluster extra-0 runs (head-of-extra)" in err and "rotate-token extra-0" in err
    compute.remove("my-project", "us-east5-a", "head-of-extra")
    put_head(compute)
    put_head(compute, name="another")
    assert "Cluster here runs (more than one head)" in run("init-token", "--rotate")[2]
    compute.denied.add("compute.instances.list")
    assert run("init-token", "--rotate")[0] == 1
    assert len(TokenSecret("my-project", "RAY_AUTH_TOKEN").versions()) == 1


@pytest.mark.slow
def test_set_token_reads_pipe_or_file(
    manager: LocalSecretManager, compute: LocalCompute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}\n"))
    assert run("set-token")[0] == 0 and (tmp_path / CACHED).read_text().strip() == TOKEN
    file = tmp_path / "own"
    file.write_text("0ther-token-0123456789")
    assert run("set-token", "--rotate", "--file", str(file))[0] == 0
    code, _, err = run("set-token", "--rotate", "--file", str(tmp_path / "none"))
    assert code == 2 and "cannot be read" in err
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run("set-token", "--rotate", "--file", str(tmp_path / "pipe"))
    assert code == 2 and "cannot be used: it is no regular file" in err


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "short", "two words of a token", "täken-with-an-umlaut-0123", "a" * 5000])
def test_set_token_refuses_invalid_token_without_showing_it(
    manager: LocalSecretManager, compute: LocalCompute, monkeypatch: pytest.MonkeyPatch,
    run: Run, text: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code, out, err = run("set-token")
    assert code == 1 and "is no token (it is not shown)" in err and (not text or text not in out + err)
    assert not TokenSecret("my-project", "RAY_AUTH_TOKEN").versions()
