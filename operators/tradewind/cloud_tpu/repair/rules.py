"""Decide which slices are dead and what to do about each, from reports of Google Cloud and Ray only.

Working slices are never touched: a slice with all hosts registered with Ray is left alone, whatever Google reports.
Reserved capacity is never deleted. While Ray does not answer, only slices that Google reports as dead are dead. A slice
in transition (being repaired, created, or just up) gets a grace period. A node is judged only if it is expected by name
or has the labels of the cluster, because a project's zone may contain other users' nodes. A node of a queued resource
is never judged by itself: the queued resource is, if it is expected or all of its nodes belong to the cluster. While a
creation is refused in a way that waiting does not mend, nothing more is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tradewind.cloud_tpu.repair.records import KEEP_S, Deletion, SliceRecord
from tradewind.cloud_tpu.repair.terms import Action, Finding, RepairSettings, Scope, SliceHealth, Snapshot
from tradewind.cloud_tpu.resources import (
    ANY_KIND,
    QueuedTpu,
    TpuNode,
    body_kind,
    is_name,
    is_queue_body,
    labelled_body,
    node_names,
)

_CERTAIN: Final = frozenset({"PREEMPTED", "TERMINATED"})
_GONE: Final = frozenset({"PREEMPTED", "TERMINATED", "STOPPED", "UNKNOWN"})
_ON_ITS_WAY: Final = frozenset({"CREATING", "STARTING", "STOPPING", "RESTARTING", "REIMAGING", "REPAIRING"})
_QUEUE_GONE: Final = frozenset({"SUSPENDING", "SUSPENDED", "FAILED"})
_QUEUED: Final = frozenset({"CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"})


def decide(snapshot: Snapshot, scope: Scope, settings: RepairSettings) -> list[Finding]:
    """Return the state of every slice of the cluster and its action within the limits, by name."""
    findings = []
    nodes_of = _nodes_by_queue(snapshot)
    queued = {node.name for nodes in nodes_of.values() for node in nodes}
    for queue in snapshot.queues:
        if (others := _foreign_nodes(queue, nodes_of[queue.name], scope)) is not None:
            findings.append(_queue_finding(queue, nodes_of[queue.name], others, snapshot, scope, settings))
    findings += [
        _node_finding(node, snapshot, scope, settings)
        for node in snapshot.nodes
        if node.name not in queued and not node.is_head and scope.has([node.name], node.labels)
    ]
    existing = {name for finding in findings for name in (finding.name, *finding.slices)}
    existing |= snapshot.nodes_by_name.keys() | snapshot.queues_by_name.keys()
    wanted = {name for name, record in snapshot.records.items() if record.is_wanted and _is_in_scope(record, scope)}
    findings += [_absent(name, snapshot, scope) for name in {*scope.expected, *wanted} - existing]
    findings = _under_refusals(sorted(findings, key=lambda finding: finding.name), snapshot)
    return _within_limits(findings, snapshot, settings)


def is_back(deletion: Deletion, snapshot: Snapshot) -> bool:
    """Return whether the deleted slice exists again and is READY, so that its record can go.

    The same identity being READY means that it was not deleted. Another repair may be just about to, so that counts
    only once the deletion is long over.
    """
    found = snapshot.queues_by_name.get(deletion.name) or snapshot.nodes_by_name.get(deletion.name)
    if found is None or found.state not in ("READY", "ACTIVE"):
        return False
    if isinstance(found, QueuedTpu) and any(
        name not in snapshot.nodes_by_name or snapshot.nodes_by_name[name].state != "READY" for name in found.nodes
    ):
        return False
    return found.identity != deletion.identity or deletion.at <= snapshot.now - KEEP_S


@dataclass(frozen=True)
class _State:
    """State of one node."""

    verdict: SliceHealth
    reason: str
    trouble: str = ""


def _node_state(node: TpuNode, unit: str, snapshot: Snapshot, settings: RepairSettings) -> _State:
    """Return the state of ``node``; ``unit`` names its unit of repair: itself, or its queued resource."""
    alive = None if snapshot.hosts is None else snapshot.hosts.get(node.name, 0)
    if alive and alive >= (node.hosts or 1):
        if node.state == "READY":
            return _State(SliceHealth.WORKS, f"READY, and all {alive} hosts are registered with Ray")
        reason = f"Google says {node.state}, but all of its hosts are still registered with Ray"
        return _State(SliceHealth.GRACE, reason, "LEAVING")
    if node.state in _GONE:
        if node.state == "UNKNOWN" and alive is None:
            return _State(SliceHealth.GRACE, "Google says UNKNOWN, and Ray does not answer", "UNKNOWN")
        return _State(SliceHealth.DEAD, f"Google says {node.state}", node.state)
    if node.state in _ON_ITS_WAY:
        return _waiting(unit, node.state, f"Google says {node.state}", settings.transition_grace_s, snapshot)
    if node.state == "READY":
        return _ready_without_hosts(node, unit, snapshot, settings)
    return _State(SliceHealth.GRACE, f"Google says {node.state}", node.state)


def _ready_without_hosts(node: TpuNode, unit: str, snapshot: Snapshot, settings: RepairSettings) -> _State:
    if snapshot.hosts is None:
        return _State(SliceHealth.GRACE, "Google says READY, and Ray does not answer", "RAY")
    total = node.hosts or 1
    words = f"READY, but {total - snapshot.hosts.get(node.name, 0)} of {total} hosts have no live Ray node"
    if node.created_at is not None and snapshot.now < node.created_at + settings.start_grace_s:
        return _State(SliceHealth.GRACE, f"{words}; it is new", "HOSTS")
    grace_s = settings.host_grace_s if any(snapshot.hosts.values()) else settings.start_grace_s
    return _waiting(unit, "HOSTS", words, grace_s, snapshot)


def _waiting(unit: str, trouble: str, words: str, grace_s: float, snapshot: Snapshot) -> _State:
    """Return dead once the recorded trouble has lasted for longer than ``grace_s``, else waiting."""
    record = snapshot.records.get(unit)
    since = record.since if record is not None and record.trouble == trouble else None
    lasts_s = 0.0 if since is None else snapshot.now - since
    if snapshot.hosts is None:
        return _State(SliceHealth.GRACE, f"{words}, and Ray does not answer", trouble)
    if lasts_s <= grace_s:
        return _State(SliceHealth.GRACE, f"{words} (for {lasts_s:.0f} s; it has {grace_s:.0f} s)", trouble)
    return _State(SliceHealth.DEAD, f"{words}, for {lasts_s:.0f} s now", trouble)


def _node_finding(node: TpuNode, snapshot: Snapshot, scope: Scope, settings: RepairSettings) -> Finding:
    state = _node_state(node, node.name, snapshot, settings)
    if node.queue and state.verdict is SliceHealth.DEAD:
        words = f"{state.reason}, and its queued resource {node.queue} does not exist"
        state = _waiting(node.name, "ORPHAN", words, settings.transition_grace_s, snapshot)
    finding = Finding(
        node.name,
        state.verdict,
        state.reason,
        slices=(node.name,),
        slice_type=node.slice_type,
        hosts=_hosts([node], snapshot),
        trouble=state.trouble,
        identity=node.identity,
        body=scope.expected.get(node.name) or node.body,
        is_certain=state.verdict is SliceHealth.DEAD and node.state in _CERTAIN and not node.queue,
    )
    return _with_action(finding, node.is_reserved, node.is_of_autoscaler and node.name not in scope.expected)


def _queue_finding(
    queue: QueuedTpu,
    nodes: Sequence[TpuNode],
    others: Sequence[str],
    snapshot: Snapshot,
    scope: Scope,
    settings: RepairSettings,
) -> Finding:
    state = _queue_state(queue, nodes, snapshot, settings)
    [first, *_] = (queue.body.get("tpu") or {}).get("nodeSpec") or [{}]
    finding = Finding(
        queue.name,
        state.verdict,
        state.reason,
        slices=tuple(dict.fromkeys([*queue.nodes, *(node.name for node in nodes)])),
        slice_type=nodes[0].slice_type if nodes else str((first.get("node") or {}).get("acceleratorType", "")),
        hosts=_hosts(nodes, snapshot),
        trouble=state.trouble,
        is_queue=True,
        identity=queue.identity,
        body=scope.expected.get(queue.name) or labelled_body(queue, nodes),
        is_certain=state.verdict is SliceHealth.DEAD and _is_certainly_gone(queue, nodes),
    )
    if others and finding.verdict is SliceHealth.DEAD:
        reason = f"{finding.reason}; it also has {', '.join(others)} of others: repair it by hand"
        return replace(finding, reason=reason, needs_person=True)
    is_reserved = queue.is_reserved or any(node.is_reserved for node in nodes)
    return _with_action(finding, is_reserved, is_left_to_autoscaler=False)


def _queue_state(queue: QueuedTpu, nodes: Sequence[TpuNode], snapshot: Snapshot, settings: RepairSettings) -> _State:
    states = {node.name: _node_state(node, queue.name, snapshot, settings) for node in nodes}
    troubled = {name: state for name, state in states.items() if state.verdict is not SliceHealth.WORKS}
    missing = [name for name in queue.nodes if name not in states]
    if queue.state == "ACTIVE" and not troubled and not missing:
        return _State(
            SliceHealth.WORKS, "; ".join(dict.fromkeys(state.reason for state in states.values())) or "ACTIVE"
        )
    working = [node.name for node in nodes if _may_work(node, snapshot)]
    working += [name for name in missing if (snapshot.hosts or {}).get(name)]
    if working:
        return _state_beside(working[0], queue, troubled, missing)
    if queue.state in _QUEUE_GONE:
        return _State(
            SliceHealth.DEAD, f"Google says {queue.state}{f' ({queue.why})' if queue.why else ''}", queue.state
        )
    if queue.state in _QUEUED:
        return _State(SliceHealth.GRACE, f"Google says {queue.state}: it waits for capacity", queue.state)
    if queue.state != "ACTIVE":
        return _State(SliceHealth.GRACE, f"Google says {queue.state}", queue.state)
    if missing:
        words = f"Google says ACTIVE, but there is no node {', '.join(missing)}"
        return _waiting(queue.name, "MISSING", words, settings.transition_grace_s, snapshot)
    return next(
        (state for state in troubled.values() if state.verdict is SliceHealth.DEAD), next(iter(troubled.values()))
    )


def _is_certainly_gone(queue: QueuedTpu, nodes: Sequence[TpuNode]) -> bool:
    """Return whether Google reports all of it as gone; one that FAILED may fail repeatedly."""
    if not nodes:
        return queue.state == "SUSPENDED"
    return queue.state != "FAILED" and all(node.state in _CERTAIN for node in nodes)


def _state_beside(working: str, queue: QueuedTpu, troubled: Mapping[str, _State], missing: Sequence[str]) -> _State:
    """Return the state of a queued resource with a working node: it is deleted whole or not at all."""
    others = [f"its slice {name} does not work: {state.reason}" for name, state in troubled.items() if name != working]
    others += [f"its slice {name} does not exist" for name in missing if name != working]
    words = "; ".join(others) or f"Google says {queue.state}"
    return _State(SliceHealth.GRACE, f"{words}; left alone while its slice {working} may work", "SIBLING")


def _may_work(node: TpuNode, snapshot: Snapshot) -> bool:
    """Return whether all of its hosts are registered with Ray, or may be."""
    if snapshot.hosts is None:
        return node.state not in _GONE - {"UNKNOWN"}
    return snapshot.hosts.get(node.name, 0) >= (node.hosts or 1)


def _nodes_by_queue(snapshot: Snapshot) -> dict[str, list[TpuNode]]:
    """Return the nodes of each queued resource in the snapshot."""
    found: dict[str, list[TpuNode]] = {queue.name: [] for queue in snapshot.queues}
    by_name = {name: queue.name for queue in snapshot.queues for name in queue.nodes}
    for node in snapshot.nodes:
        queue = node.queue or by_name.get(node.name)
        if queue in found:
            found[queue].append(node)
    return found


def _foreign_nodes(queue: QueuedTpu, nodes: Sequence[TpuNode], scope: Scope) -> list[str] | None:
    """Return the nodes that belong to others; None if all of them do, or the resource has a cluster's head.

    Labels may be on the nodes only.
    """
    if any(node.is_head for node in nodes):
        return None
    if scope.has([queue.name, *queue.nodes, *(node.name for node in nodes)], queue.labels):
        return []
    others = [node.name for node in nodes if not scope.has([], node.labels)]
    return others if len(others) < len(nodes) else None


def _absent(name: str, snapshot: Snapshot, scope: Scope) -> Finding:
    record = snapshot.records.get(name) or SliceRecord(name)
    body = scope.expected.get(name) or (record.body if record.is_wanted else None)
    why = "deleted for repair, and not created again yet" if record.is_wanted else "expected, but missing"
    if body is None:
        reason = f"{why}, and its body is unknown: create it by hand, or give its body in `expected`"
        return Finding(name, SliceHealth.DEAD, reason, trouble="ABSENT", slices=(name,), needs_person=True)
    if not is_name(name):
        reason = f"{why}; Google does not accept the name {name[:80]!r}: lower-case letters, digits, hyphens, up to 63"
        return Finding(name, SliceHealth.DEAD, reason, trouble="ABSENT", slices=(name,), needs_person=True)
    is_queue = is_queue_body(body)
    finding = Finding(
        name,
        SliceHealth.DEAD,
        why,
        Action.CREATE,
        slices=node_names(name, body) if is_queue else (name,),
        slice_type=str(body.get("acceleratorType", "")),
        trouble="ABSENT",
        is_queue=is_queue,
        body=body,
    )
    if record.retry_at > snapshot.now and not is_corrected(record, body):
        pause = f"; {record.refusal} Next try in {record.retry_at - snapshot.now:.0f} s"
        if record.denied:
            return replace(finding, reason=why + pause, action=Action.NOTHING, needs_person=True)
        return replace(finding, verdict=SliceHealth.GRACE, reason=why + pause, action=Action.NOTHING)
    return finding


def _is_in_scope(record: SliceRecord, scope: Scope) -> bool:
    body = record.body or {}
    specs = (body.get("tpu") or {}).get("nodeSpec") or [{"node": body}]
    return all(scope.has([record.name], (spec.get("node") or {}).get("labels") or {}) for spec in specs)


def _with_action(finding: Finding, is_reserved: bool, is_left_to_autoscaler: bool) -> Finding:
    if finding.verdict is not SliceHealth.DEAD:
        return finding
    if is_reserved:
        reason = f"{finding.reason}; it is reserved capacity, which is never deleted: repair it by hand"
        return replace(finding, reason=reason, needs_person=True)
    if is_left_to_autoscaler:
        return replace(finding, action=Action.DELETE, reason=f"{finding.reason}; Ray's autoscaler created it")
    return replace(finding, action=Action.REPLACE)


def is_corrected(record: SliceRecord, body: Mapping[str, Any]) -> bool:
    """Return whether ``body`` differs from what was refused."""
    return bool(record.denied) and record.denied not in (ANY_KIND, body_kind(body))


def _under_refusals(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Prevent deletions of slices whose recreation would be refused, too."""
    standing: dict[str, str] = {}
    for finding in findings:
        record, body = snapshot.records.get(finding.name), finding.body
        if record and record.denied and body and finding.trouble == "ABSENT" and not is_corrected(record, body):
            standing.setdefault(record.denied, finding.name)
    if not standing:
        return list(findings)
    return [_unless_refused(finding, standing, snapshot) for finding in findings]


def _unless_refused(finding: Finding, standing: Mapping[str, str], snapshot: Snapshot) -> Finding:
    record = snapshot.records.get(finding.name)
    is_probe = record is not None and record.denied and finding.action is Action.CREATE
    if is_probe or finding.body is None or finding.action not in (Action.CREATE, Action.REPLACE):
        return finding
    if (refused := standing.get(ANY_KIND) or standing.get(body_kind(finding.body))) is None:
        return finding
    reason = f"{finding.reason}; put off: the creation of {refused} is refused, and this one's would be"
    return replace(finding, action=Action.NOTHING, reason=reason, needs_person=True)


def _within_limits(findings: Sequence[Finding], snapshot: Snapshot, settings: RepairSettings) -> list[Finding]:
    """Keep the first actions that the limits allow, and defer the others."""
    recent = sum(at > snapshot.now - KEEP_S for record in snapshot.records.values() for at in record.deleted_at)
    left = min(settings.max_deletes_per_pass, settings.max_deletes_per_hour - recent)
    limited = []
    for finding in findings:
        why = ""
        if finding.is_deletion and not finding.is_certain:
            if wait_s := _pause_s(finding, snapshot, settings):
                why = f"deleted before in the last hour; next deletion in {wait_s:.0f} s at the earliest"
            elif (left := left - 1) < 0:
                why = f"{recent} were deleted in the last hour, or enough in this pass"
        if why:
            finding = replace(finding, action=Action.NOTHING, reason=f"{finding.reason}; put off: {why}")
        limited.append(finding)
    return limited


def _pause_s(finding: Finding, snapshot: Snapshot, settings: RepairSettings) -> float:
    """Return the remaining wait: repeated deaths wait longer each time, and leave the limits to others."""
    record = snapshot.records.get(finding.name)
    deleted_at = [at for at in record.deleted_at if at > snapshot.now - KEEP_S] if record else []
    if not deleted_at:
        return 0.0
    pause = min(settings.stock_out_pause_s * 2.0 ** (len(deleted_at) - 1), settings.max_stock_out_pause_s)
    return max(0.0, max(deleted_at) + pause - snapshot.now)


def _hosts(nodes: Sequence[TpuNode], snapshot: Snapshot) -> str:
    alive = "?" if snapshot.hosts is None else str(sum(snapshot.hosts.get(node.name, 0) for node in nodes))
    total = "?" if any(node.hosts is None for node in nodes) else str(sum(node.hosts or 0 for node in nodes))
    return f"{alive}/{total}"
