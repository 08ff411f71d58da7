"""An unreadable lease blocks claims, is no result and does not end an attempt."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tradewind.attempts.renewal import LeaseRenewer
from tradewind.attempts.step_lease import StepLease
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below
from tradewind.plans.garbage.withdrawal import RecordsError
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.plans.selection import Selection
from tradewind.records.adoption import Adoption, adopt
from tradewind.records.attempts import Attempt
from tradewind.records.lease import Lease, Phase, UnreadableLeaseError, lease_path
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.records.lifecycle import InputChangedError, check_inputs_unchanged
from tradewind.records.record import Record, RecordState, read_record
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned

COMMITTED = Lease("w", 5.0, Phase.COMMITTED, 2, "job-2", digest="d", witness=None)


def with_field(name: str, value: Any) -> str:
    return json.dumps(json.loads(COMMITTED.to_json()) | {name: value})


FLAWS = {
    "empty": ("", "it is empty"),
    "cut off": (COMMITTED.to_json()[:70], "it holds no JSON"),
    "deep": ("[" * 100_000, "it is nested too deeply"),
    "a list": (f"[{COMMITTED.to_json()}]", "it holds no JSON object"),
    "no worker": ('{"timestamp": 5.0}', "its worker_id is missing"),
    "no time": ('{"worker_id": "w"}', "its timestamp is missing"),
    **{
        f"heartbeat {value!r:.4}": (with_field("heartbeat_s", value), "its heartbeat_s is not a number above 0")
        for value in (None, "30", -1, 0, float("nan"), float("inf"), 10**400, True)
    },
    "time NaN": (with_field("timestamp", float("nan")), "its timestamp is not a time"),
    "a later phase": (with_field("phase", "archived"), "its phase is not one of claimed"),
    "attempt text": (with_field("attempt", "2"), "its attempt is not a whole number"),
    "job null": (with_field("job", None), "its job is not text"),
    "by text": (with_field("by", "me"), "its by is not an object"),
    "digest number": (with_field("digest", 5), "its digest is not text"),
}


@pytest.mark.parametrize(("text", "flaw"), FLAWS.values(), ids=list(FLAWS))
def test_invalid_lease_states_reason_and_is_unreadable(text: str, flaw: str) -> None:
    lease = Lease.from_json(text)
    assert lease.flaw is not None and flaw in lease.flaw
    assert not lease.written_by_marin and lease.is_live
    for age_s in (0.0, 1e9):
        assert Record(lease=lease, lease_age_s=age_s, has_output=True).state is RecordState.UNREADABLE


def test_a_flaw_is_not_written() -> None:
    assert "flaw" not in json.loads(COMMITTED.to_json())
    assert Lease.from_json(with_field("flaw", "of another program")) == COMMITTED


# ---- unreadable leases in a store


@pytest.fixture(params=["cut off", "heartbeat -1", "a later phase", "no text"])
def text(request: pytest.FixtureRequest) -> bytes:
    return b"\xff\xfe\x00" if request.param == "no text" else FLAWS[request.param][0].encode()


@pytest.fixture
def steps(tmp_path: Path) -> list[ResolvedStep]:
    raw = ExecutorStep("raw", None, {"lines": versioned(1)})
    tidy = ExecutorStep("tidy", None, {"input": raw})
    return resolve([tidy], str(tmp_path)).steps


@pytest.fixture
def damaged(steps: list[ResolvedStep], text: bytes) -> Iterator[ResolvedStep]:
    """The first step, with an unreadable lease that must stay as it is."""
    damage(steps[0].output_path, text)
    yield steps[0]
    assert Path(lease_path(steps[0].output_path)).read_bytes() == text


def damage(path: str, text: bytes, age_s: float = 1e6) -> None:
    """Replace the file by ``text`` with an old date, so that no process takes it for a running attempt."""
    file = Path(lease_path(path))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    os.utime(file, (time.time() - age_s, time.time() - age_s))


def test_unreadable_lease_never_claimed_at_any_age(damaged: ResolvedStep) -> None:
    step_lease = StepLease(damaged, {"run": "r"})
    assert read_record(damaged.output_path).state is RecordState.UNREADABLE
    with pytest.raises(UnreadableLeaseError, match=r"executor_status.lock cannot be read, because it.* `rm /"):
        step_lease.read()
    store = step_lease.store
    seen = store.read()
    assert seen is not None
    with pytest.raises(UnreadableLeaseError):
        store.claim(seen, LeaseClaim(1, "job", "", {}, ""))
    with pytest.raises(UnreadableLeaseError):
        store.mark_removing(seen, {})
    assert store.claim(None, LeaseClaim(1, "job", "", {}, "")) is None


def test_unreadable_input_lease_reported_by_step(steps: list[ResolvedStep], damaged: ResolvedStep) -> None:
    with pytest.raises(UnreadableLeaseError, match=damaged.output_path):
        StepLease(steps[1], {"run": "r"}).claim(None, lambda: pytest.fail("no step may run"))
    attempt = Attempt(1, "job", "", {}, {}, inputs={damaged.output_path: "d"})
    with pytest.raises(InputChangedError, match="a lease that cannot be read"):
        check_inputs_unchanged(attempt)


@pytest.mark.parametrize("selection", [Selection(), Selection(force=("raw",)), Selection(force_run_failed=False)])
def test_plan_blocks_step_and_names_lease_and_remedy(
    steps: list[ResolvedStep], damaged: ResolvedStep, selection: Selection
) -> None:
    outputs = read_outputs([step.output_path for step in steps])
    plan = plan_now("/p", [(step.name, step) for step in steps], {"tidy"}, outputs, selection)
    assert [(step.name, step.decision.value) for step in plan.steps] == [("raw", "BLOCKED"), ("tidy", "BLOCKED")]
    assert plan.steps[0].reason.startswith("lease cannot be read: it")
    assert plan.steps[1].reason == "needs `raw`, whose lease cannot be read"
    [warning] = plan.warnings
    assert f"The lease {lease_path(damaged.output_path)} cannot be read" in warning and "remove it with `rm" in warning


def test_unreadable_lease_prevents_adoption_and_collection(damaged: ResolvedStep, tmp_path: Path) -> None:
    Path(damaged.output_path, "data").write_text("x")
    with pytest.raises(UnreadableLeaseError):
        adopt(Adoption(damaged, "fn", damaged.output_path, {}), LeaseRenewer)  # type: ignore[arg-type]
    with pytest.raises(RecordsError, match=r"cannot be read, because .* everything is kept"):
        find_garbage_below([str(tmp_path)], RequiredOutputs(), 0.0)


def test_owner_with_corrupted_lease_loses_it_without_repair(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    store = LeaseStore(path)
    assert store.claim(None, LeaseClaim(1, "job", "", {}, "", heartbeat_s=5.0)) is not None
    ends: list[str] = []
    renewer = LeaseRenewer(store, store.take_over("job", "me"), lambda end: ends.append(end.name))
    damage(path, b"{", age_s=0.0)
    renewer.check_lease()
    assert ends == ["LOST"]
    assert store.request_stop("job", {}) is None and not store.end_unstarted("job", Phase.STOPPED)
    assert Path(lease_path(path)).read_text() == "{"


@pytest.mark.parametrize(
    ("output_path", "command"),
    [
        ("gcs://b/o p", "`gcloud storage rm 'gs://b/o p/.executor_status.lock'`"),
        ("s3a://b/o", "`aws s3 rm s3://b/o/.executor_status.lock`"),
        ("file:///o", "`rm /o/.executor_status.lock`"),
        ("/o p", "`rm '/o p/.executor_status.lock'`"),
    ],
)
def test_removal_command_is_that_of_the_store(output_path: str, command: str) -> None:
    assert command in str(UnreadableLeaseError(output_path, Lease.as_unreadable("it is empty")))
