"""Repair decisions for every state that Google and Ray can report.

The repair leaves healthy slices alone, deletes no reserved slice and keeps its limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.cloud_tpu.repair.actions import waves
from tradewind.cloud_tpu.repair.records import KEEP_S as HOUR_S
from tradewind.cloud_tpu.repair.records import Deletion, SliceRecord
from tradewind.cloud_tpu.repair.rules import decide, is_back
from tradewind.cloud_tpu.repair.terms import Action, Finding, RepairSettings, Scope, SliceHealth, Snapshot
from tradewind.cloud_tpu.resources import ANY_KIND, QueuedTpu, TpuNode, body_kind

NOW = 1_000_000.0
STATES = [
    "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED", "STOPPING", "STARTING",
    "PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "STATE_UNSPECIFIED",
]  # fmt: skip
QUEUE_STATES = [
    "CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES", "ACTIVE", "FAILED", "SUSPENDING", "SUSPENDED",
    "DELETING",
]  # fmt: skip
NAMES = ["a", "b", "c", "d"]
LABELS = {"cluster": "one"}
BODY = {"acceleratorType": "v4-16", "runtimeVersion": "x"}
NO_HOSTS: Mapping[str, int] = {}
times = st.sampled_from([0.0, NOW - 2 * HOUR_S, NOW - 1000.0, NOW - 10.0, NOW])


@st.composite
def nodes_and_queues(draw: st.DrawFn) -> tuple[list[TpuNode], list[QueuedTpu]]:
    queues = [
        QueuedTpu(
            name=f"q{name}",
            state=draw(st.sampled_from(QUEUE_STATES)),
            nodes=tuple(names),
            is_reserved=draw(st.booleans()),
            labels=draw(st.sampled_from([LABELS, {}])),
            body={"tpu": {"nodeSpec": [{"nodeId": one} for one in names]}},
        )
        for name, names in [("1", ["a", "b"]), ("2", ["c"])]
        if draw(st.booleans())
    ]
    of_queue = {name: queue.name for queue in queues for name in queue.nodes}
    nodes = [
        TpuNode(
            name=name,
            state=draw(st.sampled_from(STATES)),
            hosts=draw(st.sampled_from([1, 2, None])),
            queue=of_queue.get(name),
            is_reserved=draw(st.booleans()),
            labels=draw(st.sampled_from([LABELS, {}, {**LABELS, "ray-node-type": "worker"}])),
            created_at=draw(st.none() | times),
            body=BODY,
        )
        for name in NAMES
        if draw(st.booleans())
    ]
    return nodes, queues


records = st.builds(
    SliceRecord,
    name=st.just(""),
    trouble=st.sampled_from(["", "HOSTS", "REPAIRING", "CREATING", "MISSING", "PREEMPTED"]),
    since=st.none() | times,
    is_wanted=st.booleans(),
    body=st.sampled_from([None, BODY]),
    deleted_at=st.lists(times, max_size=2).map(tuple),
    retry_at=times,
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes, queues = draw(nodes_and_queues())
    hosts = draw(st.none() | st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)))
    found = draw(st.dictionaries(st.sampled_from([*NAMES, "q1", "q2"]), records))
    named = {name: SliceRecord(**{**vars(one), "name": name}) for name, one in found.items()}
    return Snapshot(nodes, queues, hosts, named, NOW)


scopes = st.builds(
    Scope,
    expected=st.dictionaries(st.sampled_from([*NAMES, "q1", "new"]), st.sampled_from([None, BODY])),
    labels=st.sampled_from([{}, LABELS]),
)
limits = st.builds(RepairSettings, max_deletes_per_pass=st.integers(0, 3), max_deletes_per_hour=st.integers(0, 6))


def nodes_behind(finding: Finding, snapshot: Snapshot) -> list[TpuNode]:
    if finding.is_queue:
        return [node for node in snapshot.nodes if node.queue == finding.name]
    return [node for node in snapshot.nodes if node.name == finding.name]


@pytest.mark.slow
@given(snapshots(), scopes, limits)
def test_working_reserved_or_foreign_slices_are_never_deleted(
    snapshot: Snapshot, scope: Scope, settings: RepairSettings
) -> None:
    deleted = [one for one in decide(snapshot, scope, settings) if one.is_deletion]
    for finding in deleted:
        nodes = nodes_behind(finding, snapshot)
        queue = next((one for one in snapshot.queues if one.name == finding.name), None)
        assert not any(node.is_reserved for node in nodes) and not (queue and queue.is_reserved)
        for node in nodes:
            alive = None if snapshot.hosts is None else snapshot.hosts.get(node.name, 0)
            assert alive is None or alive < (node.hosts or 1)
            assert alive is not None or node.state in ("PREEMPTED", "TERMINATED", "STOPPED")
        names = {finding.name, *finding.slices}
        is_labelled = any(scope.labels and scope.labels.items() <= one.labels.items() for one in [*nodes, queue] if one)
        assert names & set(scope.expected) or is_labelled
    recent = sum(at > NOW - HOUR_S for one in snapshot.records.values() for at in one.deleted_at)
    limited = [one for one in deleted if not one.is_certain]
    assert len(limited) <= settings.max_deletes_per_pass
    assert not limited or len(limited) + recent <= settings.max_deletes_per_hour
    for finding in deleted:
        states = {node.state for node in nodes_behind(finding, snapshot)}
        assert not finding.is_certain or states <= {"PREEMPTED", "TERMINATED"}


@pytest.mark.slow
@given(snapshots(), scopes)
def test_each_slice_has_one_finding_and_only_absent_are_created(snapshot: Snapshot, scope: Scope) -> None:
    found = decide(snapshot, scope, RepairSettings())
    assert len({one.name for one in found}) == len(found)
    assert set(scope.expected) <= {name for one in found for name in (one.name, *one.slices)}
    existing = {one.name for one in [*snapshot.nodes, *snapshot.queues]}
    for finding in found:
        assert finding.action is not Action.CREATE or (finding.name not in existing and finding.body)
        assert finding.action is Action.NOTHING or finding.verdict is SliceHealth.DEAD
        assert finding.reason and (finding.verdict is SliceHealth.WORKS) == (finding.trouble == "")


def findings(
    nodes: Sequence[TpuNode] = (),
    queues: Sequence[QueuedTpu] = (),
    records: Sequence[SliceRecord] = (),
    *,
    hosts: Mapping[str, int] | None = NO_HOSTS,
    expected: Sequence[str] = (),
) -> list[Finding]:
    snapshot = Snapshot(nodes, queues, hosts, {one.name: one for one in records}, NOW)
    return decide(snapshot, Scope(dict.fromkeys(expected), LABELS), RepairSettings())


def one_node(state: str, alive: int | None, *records: SliceRecord, created_at: float = 0.0, others: int = 1) -> Finding:
    """Return the decision about slice ``a`` of two hosts; the other slice has ``others`` hosts in Ray."""
    node = TpuNode("a", state, hosts=2, labels=LABELS, created_at=created_at, body=BODY)
    [finding] = findings([node], (), records, hosts=None if alive is None else {"a": alive, "z": others})
    return finding


def lasting(trouble: str, seconds: float) -> SliceRecord:
    return SliceRecord("a", trouble=trouble, since=NOW - seconds)


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "STOPPED", "UNKNOWN"])
def test_google_dead_node_is_replaced_unless_all_hosts_live(state: str) -> None:
    assert [one_node(state, alive).action for alive in (0, 1, 2)] == [Action.REPLACE, Action.REPLACE, Action.NOTHING]


@pytest.mark.parametrize("state", ["CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING"])
def test_node_in_transition_has_half_an_hour(state: str) -> None:
    for records in ([], [lasting(state, 1700.0)], [lasting("HOSTS", 1900.0)]):
        assert one_node(state, 0, *records).verdict is SliceHealth.GRACE
    assert one_node(state, 0, lasting(state, 1900.0)).action is Action.REPLACE


def test_missing_hosts_have_short_grace_unless_node_or_head_new() -> None:
    assert one_node("READY", 2).verdict is SliceHealth.WORKS
    assert one_node("READY", 1, lasting("HOSTS", 100.0)).verdict is SliceHealth.GRACE
    assert one_node("READY", 1, lasting("HOSTS", 200.0)).action is Action.REPLACE
    assert one_node("READY", 0, lasting("HOSTS", 200.0), created_at=NOW - 900.0).verdict is SliceHealth.GRACE
    assert one_node("READY", 0, lasting("HOSTS", 200.0), others=0).verdict is SliceHealth.GRACE
    assert one_node("READY", 0, lasting("HOSTS", 1300.0), others=0).action is Action.REPLACE


def test_without_ray_response_time_alone_kills_nothing() -> None:
    for state, trouble in itertools.product(["READY", "REPAIRING", "UNKNOWN"], ["HOSTS", "REPAIRING", "UNKNOWN"]):
        assert one_node(state, None, lasting(trouble, 100_000.0)).verdict is SliceHealth.GRACE
    assert one_node("PREEMPTED", None).action is Action.REPLACE


def test_missing_node_of_active_queued_resource_is_noticed() -> None:
    queue = QueuedTpu("q", "ACTIVE", nodes=("a",), labels=LABELS, body={"tpu": {"nodeSpec": [{"nodeId": "a"}]}})
    missing = SliceRecord("q", trouble="MISSING", since=NOW - 1900.0)
    assert [one.verdict for one in findings([], [queue])] == [SliceHealth.GRACE]
    assert [one.action for one in findings([], [queue], [missing])] == [Action.REPLACE]


def test_recreation_body_is_kept_until_replacement_is_ready() -> None:
    deletion = Deletion("a", "old", NOW - 10.0, BODY)

    def back(state: str, identity: str, at: float = NOW - 10.0) -> bool:
        snapshot = Snapshot([TpuNode("a", state, identity=identity)], [], None, {}, NOW)
        return is_back(replace(deletion, at=at), snapshot)

    assert not is_back(deletion, Snapshot([], [], None, {}, NOW))
    assert [back(state, "new") for state in ("CREATING", "PREEMPTED", "READY")] == [False, False, True]
    assert not back("READY", "old"), "another repair may be just about to delete it"
    assert back("READY", "old", at=NOW - 2 * HOUR_S)


def test_queued_resource_is_back_when_all_slices_are_ready() -> None:
    def back(*states: str) -> bool:
        nodes = [TpuNode(name, state, queue="q") for name, state in zip("ab", states, strict=False)]
        queue = QueuedTpu("q", "ACTIVE", identity="new", nodes=("a", "b"))
        return is_back(Deletion("q", "old", NOW, BODY), Snapshot(nodes, [queue], None, {}, NOW))

    assert [back("READY"), back("READY", "CREATING"), back("READY", "READY")] == [False, False, True]


def dead(*names: str, body: dict[str, str] = BODY) -> list[TpuNode]:
    bodies = {name: {**body, "labels": {"name": name}} for name in names}
    return [TpuNode(name, "PREEMPTED", hosts=2, labels=LABELS, body=one) for name, one in bodies.items()]


def test_permanent_refusal_blocks_deletion_of_same_kind() -> None:
    other = {**BODY, "acceleratorType": "v4-8"}

    def actions(denied: str, retry_at: float) -> dict[str, Action]:
        record = SliceRecord("gone", is_wanted=True, body=BODY, denied=denied, retry_at=retry_at)
        found = findings([*dead("a"), *dead("b", body=other)], [], [record], expected=["gone"])
        return {one.name: one.action for one in found}

    wait, now = NOW + 10.0, NOW - 10.0
    assert actions(body_kind(BODY), wait) == {"a": Action.NOTHING, "b": Action.REPLACE, "gone": Action.NOTHING}
    assert actions(ANY_KIND, wait) == {"a": Action.NOTHING, "b": Action.NOTHING, "gone": Action.NOTHING}
    assert actions(ANY_KIND, now) == {"a": Action.NOTHING, "b": Action.NOTHING, "gone": Action.CREATE}
    corrected = actions(body_kind(other), wait)
    assert corrected == {"a": Action.REPLACE, "b": Action.REPLACE, "gone": Action.CREATE}


def test_one_dead_slice_of_each_kind_goes_first() -> None:
    nodes = [*dead("a", "b"), *dead("c", "d", body={**BODY, "acceleratorType": "v4-8"})]
    first, others = waves(findings(nodes))
    assert [[one.name for one in wave] for wave, _ in (first, others)] == [["a", "c"], ["b", "d"]]


def test_queued_resource_is_judged_whole_not_per_node() -> None:
    def judged(queues: list[QueuedTpu], *nodes: TpuNode) -> list[tuple[str, Action, bool]]:
        return [(one.name, one.action, one.needs_person) for one in findings(nodes, queues)]

    body = {"tpu": {"nodeSpec": [{"nodeId": "a"}, {"nodeId": "b"}]}}
    queue = QueuedTpu("q", "SUSPENDED", nodes=("a", "b"), body=body)
    own, own_second = (TpuNode(name, "PREEMPTED", queue="q", labels=LABELS) for name in "ab")
    assert judged([queue], own, own_second) == [("q", Action.REPLACE, False)]
    assert judged([queue], own, TpuNode("b", "PREEMPTED", queue="q")) == [("q", Action.NOTHING, True)]
    assert judged([queue], own, TpuNode("b", "READY", queue="q", labels={"ray-node-type": "head"})) == []
    assert judged([], own) == [("a", Action.NOTHING, False)], "its queued resource is being replaced"
