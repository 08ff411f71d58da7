"""A step on a slice of two hosts: Airflow's plan, one Ray job, JAX across both hosts."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import Environment
from tradewind.runtime.pods.timeline import read_timeline

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def test_a_step_on_a_slice_computes_across_both_hosts(env: Environment) -> None:
    run = env.run("two_hosts")
    assert run.state == "success", run.log("two_hosts_sum")
    output = env.output("two_hosts/sum")
    assert sorted(file.read_text() for file in output.glob("process-*")) == [
        f"process {number} of 2 on host {number}: 11.0" for number in (0, 1)
    ]
    events = read_timeline(str(output / ".attempts" / "1" / "timeline.json"))
    [hosts] = [event.hosts for event in events if event.name == "started"]
    assert len(set(hosts)) == 2, "each process has a host of its own"
