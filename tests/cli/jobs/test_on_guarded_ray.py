"""``tradewind jobs`` with a real Ray head that requires a token: where the command finds the token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.jobs.test_on_ray import PRINTING, Ended
from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import write_fleet
from tests.fleet.sshd import running_sshd
from tests.support.google import LocalCompute
from tests.support.shared_clusters import TOKEN, shared_cluster
from tradewind.cli.main import main
from tradewind.fleet.doctor import Health, running_diagnoses
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = pytest.mark.ray

OTHER = "an0ther-token-of-the-test-01"
RAY_TOKEN = "projects/my-project/secrets/RAY_AUTH_TOKEN"
NAMED = ("--cluster", "here")
Run = Callable[..., Ended]


@pytest.fixture
def ray() -> LocalRay:
    return shared_cluster("guarded")


@pytest.fixture
def run(ray: LocalRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run ``tradewind jobs`` in an empty folder and home; assert that its output never shows the token."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))

    def command(*words: str, where: tuple[str, ...] = ()) -> Ended:
        with pytest.raises(SystemExit) as end:
            main(["jobs", words[0], *(where or ("--address", ray.address)), *words[1:]])
        said = capfd.readouterr()
        assert TOKEN not in said.out + said.err
        return Ended(int(end.value.code or 0), said.out, said.err)

    return command


def listed(done: Ended, job: str) -> list[str]:
    """Return the listed jobs whose ID begins with ``job``."""
    assert done.code == 0, done.err
    return [one["job"] for one in json.loads(done.out) if one["job"].startswith(job)]


def test_cluster_token_is_read_from_environment(
    ray: LocalRay, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    without = run("list")
    assert without.code == 1 and "requires a token: put it into RAY_AUTH_TOKEN" in without.err
    monkeypatch.setenv("RAY_AUTH_TOKEN", OTHER)
    wrong = run("submit", "--", "true")
    assert wrong.code == 1 and "refuses the token" in wrong.err
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    done = run("submit", "--submission-id", "let-in", "--", *PRINTING, "print('let in')")
    assert (done.code, done.lines) == (0, ["let in"]), done.err
    assert listed(run("list", "--all", "--json"), "let-in") == ["let-in"]
    assert run("stop", "let-in").lines == ["let-in: SUCCEEDED"]
    kept = RayJobs(RayCluster("here", ray.address, TOKEN))._get("/api/jobs/let-in")
    assert TOKEN not in json.dumps(kept)


@contextmanager
def reached_by_name(ray: LocalRay, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSecretManager]:
    """Set up a fleet file, a Google Cloud and an ``sshd`` that make ``ray`` the cluster ``here``."""
    manager = LocalSecretManager()
    manager.start()
    manager.put(RAY_TOKEN, TOKEN)
    with running_sshd(folder / "sshd") as sshd, served(LocalCompute(), "compute") as compute:
        put_head(compute, ip="127.0.0.1", host_keys=dict([sshd.host_key]))
        fleet = write_fleet(folder, f"ssh_user: {sshd.user}\nssh_private_key: {sshd.private_key}\n")
        settings = {
            "TRADEWIND_FLEET": str(fleet),
            "TRADEWIND_SSH_PORT": str(sshd.port),
            "TRADEWIND_HEAD_DASHBOARD": ray.address.removeprefix("http://"),
            "TRADEWIND_SECRET_MANAGER_ENDPOINT": manager.endpoint,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # monkeypatch restores it after the test
        yield manager
    manager.stop()


def test_a_cluster_of_the_fleet_gets_its_token_by_its_name(
    ray: LocalRay, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reached_by_name(ray, tmp_path, monkeypatch) as manager:
        done = run("submit", "--submission-id", "by-name", "--", *PRINTING, "print('by name')", where=NAMED)
        assert (done.code, done.lines) == (0, ["by name"]), done.err
        assert "submitted on here." in done.err and "ray job submit" not in done.err, "of a tunnel that ends now"
        assert listed(run("list", "--all", "--json", where=NAMED), "by-name") == ["by-name"]
        assert len(manager.accesses) == 1, "the token is kept"
        fleet = tmp_path / "fleet.yaml"
        cluster = load_fleet(fleet).cluster()
        found = [next(running_diagnoses([cluster], here)).health for here in (version("ray"), "2.50.0")]
        assert found == [Health.WELL, Health.WRONG]
        check_owner(run, fleet)
        check_renewed_token(run, manager, tmp_path)
        unknown = run("list", where=("--cluster", "her"))
        assert unknown.code == 1 and "did you mean here?" in unknown.err


def check_owner(run: Run, fleet: Path) -> None:
    """Check that a cluster with an owner accepts only that owner's jobs."""
    fleet.write_text(fleet.read_text() + "    owner: hero\n")
    refused = run("submit", "--", "true", where=NAMED)
    assert refused.code == 2 and "Cluster here takes only jobs of hero" in refused.err
    his = run("submit", "--metadata", "user=hero", "--", "true", where=NAMED)
    assert his.code == 0, his.err


def check_renewed_token(run: Run, manager: LocalSecretManager, home: Path) -> None:
    """Check that the command replaces a refused cached token and names one changed since the start."""
    kept = home / ".cache/tradewind/tokens/my-project/RAY_AUTH_TOKEN"
    kept.write_text(OTHER)
    assert run("list", where=NAMED).code == 0 and len(manager.accesses) == 2
    manager.put(RAY_TOKEN, "an0ther-token-of-the-test-02")
    kept.unlink()
    refused = run("list", where=NAMED)
    assert refused.code == 1 and "it was changed since the cluster started" in refused.err
