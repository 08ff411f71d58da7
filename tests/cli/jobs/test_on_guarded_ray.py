"""``tradewind jobs`` with a real Ray head that requires a token: where the command finds the token."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, Run
from tests.cli.guarded_fleet import RAY_TOKEN, guarded_fleet
from tests.cli.jobs.test_on_ray import PRINTING, lines
from tests.support.shared_clusters import TOKEN, shared_cluster
from tradewind.fleet.doctor import Health, running_diagnoses
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = pytest.mark.ray

OTHER = "an0ther-token-of-the-test-01"
NAMED = ("--cluster", "here")


@pytest.fixture
def ray() -> LocalRay:
    return shared_cluster("guarded")


@pytest.fixture
def run(ray: LocalRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    """Run ``tradewind jobs`` in an empty folder and home; assert that its output never shows the token."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))

    def command(*words: str, where: tuple[str, ...] = ()) -> Ended:
        ended = run("jobs", words[0], *(where or ("--address", ray.address)), *words[1:])
        assert TOKEN not in ended.out + ended.err
        return ended

    return command


def listed(done: Ended, job: str) -> list[str]:
    """Return the listed jobs whose ID begins with ``job``."""
    assert done.code == 0, done.err
    return [one["job"] for one in done.json if one["job"].startswith(job)]


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
    assert (done.code, lines(done)) == (0, ["let in"]), done.err
    assert listed(run("list", "--all", "--json"), "let-in") == ["let-in"]
    assert lines(run("stop", "let-in")) == ["let-in: SUCCEEDED"]
    stored = RayJobs(RayCluster("here", ray.address, TOKEN))._get("/api/jobs/let-in")
    assert TOKEN not in json.dumps(stored)


def test_cluster_of_fleet_gets_its_token_by_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    with guarded_fleet(tmp_path) as manager:
        done = run("submit", "--submission-id", "by-name", "--", *PRINTING, "print('by name')", where=NAMED)
        assert (done.code, lines(done)) == (0, ["by name"]), done.err
        assert "submitted on here." in done.err and "ray job submit" not in done.err, "of a tunnel that ends now"
        assert listed(run("list", "--all", "--json", where=NAMED), "by-name") == ["by-name"]
        assert len(manager.accesses) == 1, "the token is cached"
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
    cached = home / "cache/tradewind/tokens/my-project/RAY_AUTH_TOKEN"
    cached.write_text(OTHER)
    assert run("list", where=NAMED).code == 0 and len(manager.accesses) == 2
    manager.put(RAY_TOKEN, "an0ther-token-of-the-test-02")
    cached.unlink()
    refused = run("list", where=NAMED)
    assert refused.code == 1 and "it was changed since the cluster started" in refused.err
