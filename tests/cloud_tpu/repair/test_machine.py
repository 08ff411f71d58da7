"""State machine: failures and kills during a repair lose no slice, and the cloud bills none twice.

It drives the real repair against the rehearsal's Cloud TPU. The cloud refuses calls, fails operations before or after
their effect, and loses answers after the action.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.cloud_tpu.cloud import AT_ONCE, TpuEnvironment, queued, serving
from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.cloud_tpu.repair.records import SliceRecords
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud

SLICES = ("bare-a", "bare-b", "queued-c")
OWNERS = {"bare-a": "bare-a", "bare-b": "bare-b", "queued-c": "queue"}
CODES = ("ABORTED", "INTERNAL", "UNAVAILABLE", "CANCELLED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "ALREADY_EXISTS")
CALLS = ("CreateNode", "DeleteNode", "CreateQueuedResource", "DeleteQueuedResource")


class RepairMachine(RuleBasedStateMachine):
    """Three slices, one of them from a queued resource; the cloud may preempt each at any time."""

    @initialize()
    def begin(self) -> None:
        self.resources = ExitStack()
        folder = Path(self.resources.enter_context(TemporaryDirectory()))
        self.cloud = self.resources.enter_context(serving(LocalTpuCloud()))
        self.env = TpuEnvironment(self.cloud, folder / "records")
        self.deaths = dict.fromkeys(SLICES, 0)
        self.came: dict[str, set[str]] = {name: set() for name in SLICES}
        for name in ("bare-a", "bare-b"):
            self.env.create(name)
        self.env.create("queue", queued("queued-c"))
        self._count()

    @rule(name=st.sampled_from(SLICES))
    def take(self, name: str) -> None:
        """Preempt a slice that exists."""
        if any(node.name == name and node.state == "READY" for node in self.env.api.nodes()):
            self._count()
            self.env.preempt(name)
            self.deaths[name] += 1

    @rule(call=st.sampled_from(CALLS), code=st.sampled_from(CODES), count=st.integers(1, 2))
    def refuse(self, call: str, code: str, count: int) -> None:
        self.cloud.service.refuse_next(count, code, "Refused by the test", call)

    @rule(verb=st.sampled_from(["create", "delete"]), code=st.sampled_from(CODES), is_done=st.booleans())
    def fail(self, verb: str, code: str, is_done: bool) -> None:
        self.cloud.service.fail_operations(1, verb, code, "Failed by the test", is_done=is_done)

    @rule(call=st.sampled_from(CALLS))
    def lose_an_answer(self, call: str) -> None:
        self.cloud.writes, self.cloud.lost_answers = frozenset({call}), 1

    @rule(lives=st.none() | st.integers(1, 6), seconds=st.sampled_from([1.0, 20.0, 4000.0]))
    def repair(self, lives: int | None, seconds: float) -> None:
        """Run one pass, which the machine may kill."""
        with suppress(KeyboardInterrupt, TpuApiError):
            self.env.repair(api=self.env.mortal_api(lives)).run_once()
        self.env.now += seconds

    @invariant()
    def each_slice_exists_or_is_recorded(self) -> None:
        self._count()
        records = SliceRecords(str(self.env.folder)).read()
        existing = {one.name for one in (*self.env.api.nodes(), *self.env.api.queued_resources())}
        for name, owner in OWNERS.items():
            wanted = owner in records and records[owner].is_wanted
            assert owner in existing or wanted, f"{name} is lost"
            assert len(self.came[name]) <= 1 + self.deaths[name], f"{name} was paid for twice"

    def teardown(self) -> None:
        """Check that the repair restores every slice once all failures end."""
        with self.resources:
            for call in CALLS:
                self.cloud.service.refuse_next(0, "INTERNAL", "", call)
            for verb in ("create", "delete"):
                self.cloud.service.fail_operations(0, verb, "INTERNAL", "")
            self.cloud.lost_answers = 0
            for _ in range(60):
                if self.env.repair().run_once().is_well:
                    break
                self.env.now += AT_ONCE.max_stock_out_pause_s
            nodes = {node.name: node.state for node in self.env.api.nodes()}
            assert nodes == dict.fromkeys(SLICES, "READY")
            self.each_slice_exists_or_is_recorded()

    def _count(self) -> None:
        """Record the READY nodes under each name: the cloud bills each of them."""
        for node in self.env.api.nodes():
            if node.state == "READY":
                self.came[node.name].add(node.identity)


RepairMachine.TestCase.settings = settings(
    max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
test_no_slice_is_lost_and_none_is_paid_for_twice = pytest.mark.slow(RepairMachine.TestCase)
