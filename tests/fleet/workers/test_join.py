"""A host joins the current head of its cluster, and does not leave one that is only unresponsive."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.fleet.fleets import SHIPPED
from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.workers.join import MISSING_TIMEOUT_S, HostJoin, JoinOrder, Membership, run_commands, start_script

IN, OUT, REFUSED, SILENT = Membership.IN, Membership.OUT, Membership.REFUSED, Membership.SILENT


@dataclass
class Host:
    """The events around one host; ``joins`` records its actions."""

    head: str | None = None
    membership: Membership = IN
    now: float = 0.0
    may_join: bool = True
    joins: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.join = HostJoin(
            lambda: self.head, lambda head: self.membership, self._joined, clock=lambda: self.now, tell=str
        )

    def _joined(self, head: str) -> bool:
        self.joins.append(head)
        return self.may_join

    def step(self, membership: Membership = IN, *, head: str | None = "10.0.0.1", after_s: float = 20.0) -> int:
        """Poll once, ``after_s`` later, and return the number of joins."""
        self.membership, self.head, self.now = membership, head, self.now + after_s
        self.join.step()
        return len(self.joins)


@pytest.fixture
def joined() -> Host:
    host = Host()
    assert host.step(head=None) == 0
    assert host.step() == 1 and host.step() == 1
    return host


def test_host_joins_again_after_a_failed_join() -> None:
    host = Host(may_join=False)
    assert host.step() == 1 and host.step() == 2


def test_unresponsive_head_is_awaited(joined: Host) -> None:
    assert [joined.step(SILENT, after_s=3600.0) for _ in range(3)] == [1, 1, 1]
    assert joined.step(SILENT, head=None, after_s=3600.0) == 1


def test_another_head_or_token_is_joined_at_once(joined: Host) -> None:
    assert joined.step(REFUSED) == 2
    joined.step(SILENT, head="10.0.0.2")
    assert joined.joins == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]


def test_host_unknown_to_head_rejoins_only_after_timeout(joined: Host) -> None:
    assert joined.step(OUT) == 1 and joined.step(OUT, after_s=MISSING_TIMEOUT_S - 1) == 1
    assert joined.step(OUT, after_s=2.0) == 2
    assert joined.step(OUT) == 2 and joined.step(IN) == 2
    assert joined.step(OUT, after_s=MISSING_TIMEOUT_S) == 2, "it was a member in between"


def test_commands_get_the_head_and_the_resources_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write = f'echo "$RAY_HEAD_IP $RAY_OVERRIDE_RESOURCES" > {tmp_path}/output'
    order = JoinOrder("here", "my-project", "us-central2-b", ["true", write], {"TPU": 4})
    assert run_commands(order, "10.0.0.1") and (tmp_path / "output").read_text() == '10.0.0.1 {"TPU": 4}\n'
    assert not run_commands(JoinOrder("here", "p", "z", ["false", f"rm {tmp_path}/output"], {}), "10.0.0.1")
    assert (tmp_path / "output").exists(), "no command runs after one that failed"


@pytest.mark.parametrize("has_docker", [True, False])
def test_start_script_follows_cluster_file_like_autoscaler_hosts(tmp_path: Path, has_docker: bool) -> None:
    cluster = load_fleet(SHIPPED).cluster("us-central2")
    config = yaml.safe_load((SHIPPED.parent / "clusters" / "us-central2.yaml").read_text())
    if not has_docker:
        config["docker"] = {}
    script = start_script(cluster, config, slice_type("v4-128"))
    file = tmp_path / "script"
    file.write_text(script)
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    order = json.loads(script.partition("<<'END_OF_ORDER'\n")[2].partition("\nEND_OF_ORDER\n")[0])
    assert JoinOrder(**order).commands == config["worker_start_ray_commands"]
    assert order["resources"] == {"CPU": 120, "TPU": 4}
    assert all(command in script for command in config["initialization_commands"])
    last = script.splitlines()[-1]
    assert "tradewind.fleet.workers.join /run/tradewind/join.json" in last
    assert last.startswith("docker run") == has_docker
    assert ("--privileged" in last and "TRADEWIND_PREFIX=gs://my-project-us-central2" in last) == has_docker
