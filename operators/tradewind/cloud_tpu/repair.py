"""Which slices are dead, and what may be done about each: decided from what Google Cloud and Ray say, and nothing else.

What works is never touched: a slice of which all hosts are registered with Ray is left alone, whatever Google says of
it. Reserved capacity is never deleted. Where Ray does not answer, nothing is dead that Google does not call dead. A
slice on its way (being repaired, created, or just up) gets a grace period. A node is judged only if it is expected by
name or has the labels of the cluster, because a project's zone also holds what belongs to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tradewind.cloud_tpu.repair_terms import Deed, Finding, RepairSettings, Scope, Sight, Verdict
from tradewind.cloud_tpu.slice_records import SliceRecord
from tradewind.cloud_tpu.tpu_resources import QueuedTpu, TpuNode, is_queue_body, node_names

HOUR_S: Final = 3600.0
_GONE: Final = frozenset({"PREEMPTED", "TERMINATED", "STOPPED", "UNKNOWN"})
_ON_ITS_WAY: Final = frozenset({"CREATING", "STARTING", "STOPPING", "RESTARTING", "REIMAGING", "REPAIRING"})
_QUEUE_GONE: Final = frozenset({"SUSPENDING", "SUSPENDED", "FAILED"})
_QUEUED: Final = frozenset({"CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"})


def decide(sight: Sight, scope: Scope, settings: RepairSettings) -> list[Finding]:
    """How every slice of the cluster is and what is to be done about it, within the limits; by name."""
    findings = []
    queues = [queue for queue in sight.queues if _queue_is_ours(queue, sight, scope)]
    queued = {node.name for queue in queues for node in _nodes_of(queue, sight)}
    findings += [_queue_finding(queue, sight, scope, settings) for queue in queues]
    findings += [
        _node_finding(node, sight, scope, settings)
        for node in sight.nodes
        if node.name not in queued and not node.is_head and scope.has([node.name], node.labels)
    ]
    there = {name for finding in findings for name in (finding.name, *finding.slices)}
    wanted = {name for name, one in sight.records.items() if one.is_wanted and _record_is_ours(one, scope)}
    heads = {node.name for node in sight.nodes if node.is_head}
    findings += [_absent(name, sight, scope) for name in {*scope.expected, *wanted} - there - heads]
    return _within_limits(sorted(findings, key=lambda one: one.name), sight, settings)


# ---- one slice


@dataclass(frozen=True)
class _State:
    """How one node is."""

    verdict: Verdict
    reason: str
    trouble: str = ""


def _node_state(node: TpuNode, unit: str, sight: Sight, settings: RepairSettings) -> _State:
    """How ``node`` is; ``unit`` is what it is repaired with: itself, or its queued resource."""
    alive = None if sight.hosts is None else sight.hosts.get(node.name, 0)
    if alive and alive >= (node.hosts or 1):
        return _all_hosts_live(node, alive)
    if node.state in _GONE:
        if node.state == "UNKNOWN" and alive is None:
            return _State(Verdict.GRACE, "Google lost sight of it (UNKNOWN), and Ray does not answer", "UNKNOWN")
        return _State(Verdict.DEAD, f"Google says {node.state}", node.state)
    if node.state in _ON_ITS_WAY:
        return _waiting(unit, node.state, f"Google says {node.state}", settings.transition_grace_s, sight)
    if node.state == "READY":
        return _ready_without_hosts(node, unit, sight, settings)
    return _State(Verdict.GRACE, f"Google says {node.state}", node.state)


def _all_hosts_live(node: TpuNode, alive: int) -> _State:
    if node.state == "READY":
        return _State(Verdict.WORKS, f"READY, and all {alive} hosts are registered with Ray")
    return _State(Verdict.GRACE, f"Google says {node.state}, but all of its hosts are still with Ray", "LEAVING")


def _ready_without_hosts(node: TpuNode, unit: str, sight: Sight, settings: RepairSettings) -> _State:
    if sight.hosts is None:
        return _State(Verdict.GRACE, "Google says READY, and Ray does not answer", "RAY")
    total = node.hosts or 1
    words = f"READY, but {total - sight.hosts.get(node.name, 0)} of {total} hosts have no live Ray node"
    if node.created_at is not None and sight.now < node.created_at + settings.start_grace_s:
        return _State(Verdict.GRACE, f"{words}; it is new", "HOSTS")
    grace_s = settings.host_grace_s if any(sight.hosts.values()) else settings.start_grace_s
    return _waiting(unit, "HOSTS", words, grace_s, sight)


def _waiting(unit: str, trouble: str, words: str, grace_s: float, sight: Sight) -> _State:
    """Dead if it has been in the same trouble for longer than ``grace_s``, as far as the records know."""
    lasts_s = sight.now - _since(unit, trouble, sight)
    if sight.hosts is None:
        return _State(Verdict.GRACE, f"{words}, and Ray does not answer", trouble)
    if lasts_s <= grace_s:
        return _State(Verdict.GRACE, f"{words} (for {lasts_s:.0f} s; it has {grace_s:.0f} s)", trouble)
    return _State(Verdict.DEAD, f"{words}, for {lasts_s:.0f} s now", trouble)


def _since(name: str, trouble: str, sight: Sight) -> float:
    record = sight.records.get(name)
    return record.since if record and record.trouble == trouble and record.since is not None else sight.now


def _node_finding(node: TpuNode, sight: Sight, scope: Scope, settings: RepairSettings) -> Finding:
    state = _node_state(node, node.name, sight, settings)
    finding = Finding(
        node.name,
        state.verdict,
        state.reason,
        slices=(node.name,),
        slice_type=node.slice_type,
        hosts=_hosts([node], sight),
        trouble=state.trouble,
        identity=node.identity,
        body=scope.expected.get(node.name) or node.body,
    )
    return _with_deed(finding, node.is_reserved, _is_left_to_autoscaler(node, scope))


def _is_left_to_autoscaler(node: TpuNode, scope: Scope) -> bool:
    return node.is_of_autoscaler and node.name not in scope.expected


# ---- one queued resource


def _queue_finding(queue: QueuedTpu, sight: Sight, scope: Scope, settings: RepairSettings) -> Finding:
    nodes = _nodes_of(queue, sight)
    state = _queue_state(queue, nodes, sight, settings)
    finding = Finding(
        queue.name,
        state.verdict,
        state.reason,
        slices=tuple(dict.fromkeys([*queue.nodes, *(node.name for node in nodes)])),
        slice_type=nodes[0].slice_type if nodes else _queue_type(queue),
        hosts=_hosts(nodes, sight),
        trouble=state.trouble,
        is_queue=True,
        identity=queue.identity,
        body=scope.expected.get(queue.name) or queue.body,
    )
    is_reserved = queue.is_reserved or any(node.is_reserved for node in nodes)
    return _with_deed(finding, is_reserved, is_left_to_autoscaler=False)


def _queue_state(queue: QueuedTpu, nodes: Sequence[TpuNode], sight: Sight, settings: RepairSettings) -> _State:
    states = {node.name: _node_state(node, queue.name, sight, settings) for node in nodes}
    troubled = {name: one for name, one in states.items() if one.verdict is not Verdict.WORKS}
    missing = [name for name in queue.nodes if name not in states]
    if queue.state == "ACTIVE" and not troubled and not missing:
        return _State(Verdict.WORKS, "; ".join(dict.fromkeys(one.reason for one in states.values())) or "ACTIVE")
    if keeper := next((node.name for node in nodes if _may_work(node, sight)), None):
        return _kept(queue, keeper, troubled, missing)
    if queue.state in _QUEUE_GONE:
        return _State(Verdict.DEAD, f"Google says {queue.state}{f' ({queue.why})' if queue.why else ''}", queue.state)
    if queue.state in _QUEUED:
        return _State(Verdict.GRACE, f"Google says {queue.state}: it waits for capacity", queue.state)
    if queue.state != "ACTIVE":
        return _State(Verdict.GRACE, f"Google says {queue.state}", queue.state)
    if missing:
        return _missing(queue, missing, sight, settings)
    return next((one for one in troubled.values() if one.verdict is Verdict.DEAD), next(iter(troubled.values())))


def _kept(queue: QueuedTpu, keeper: str, troubled: Mapping[str, _State], missing: Sequence[str]) -> _State:
    """A queued resource is deleted whole or not at all."""
    others = [f"slice {name} of it is not well: {one.reason}" for name, one in troubled.items() if name != keeper]
    others += [f"slice {name} of it is not there" for name in missing]
    words = "; ".join(others) or f"Google says {queue.state}"
    return _State(Verdict.GRACE, f"{words}; left alone while slice {keeper} of it may be at work", "SIBLING")


def _missing(queue: QueuedTpu, missing: Sequence[str], sight: Sight, settings: RepairSettings) -> _State:
    words = f"Google says ACTIVE, but there is no node {', '.join(missing)}"
    return _waiting(queue.name, "MISSING", words, settings.transition_grace_s, sight)


def _may_work(node: TpuNode, sight: Sight) -> bool:
    """Whether all of its hosts are with Ray, or may be, as far as anyone knows."""
    if sight.hosts is None:
        return node.state not in _GONE - {"UNKNOWN"}
    return sight.hosts.get(node.name, 0) >= (node.hosts or 1)


def _nodes_of(queue: QueuedTpu, sight: Sight) -> list[TpuNode]:
    return [node for node in sight.nodes if node.queue == queue.name or (not node.queue and node.name in queue.nodes)]


def _queue_is_ours(queue: QueuedTpu, sight: Sight, scope: Scope) -> bool:
    nodes = _nodes_of(queue, sight)
    names = [queue.name, *queue.nodes, *(node.name for node in nodes)]
    return not any(node.is_head for node in nodes) and scope.has(names, queue.labels)


def _queue_type(queue: QueuedTpu) -> str:
    specs = (queue.body.get("tpu") or {}).get("nodeSpec") or [{}]
    return str((specs[0].get("node") or {}).get("acceleratorType", ""))


# ---- what is not there


def _absent(name: str, sight: Sight, scope: Scope) -> Finding:
    record = sight.records.get(name)
    body = scope.expected.get(name) or (record.body if record and record.is_wanted else None)
    why = "deleted for repair, and not created again yet" if record and record.is_wanted else "expected, but not there"
    if body is None:
        reason = f"{why}, and nothing says what creates it: create it by hand, or give its body in `expected`"
        return Finding(name, Verdict.DEAD, reason, trouble="ABSENT", slices=(name,), needs_person=True)
    is_queue = is_queue_body(body)
    finding = Finding(
        name,
        Verdict.DEAD,
        why,
        Deed.CREATE,
        slices=node_names(name, body) if is_queue else (name,),
        slice_type=str(body.get("acceleratorType", "")),
        trouble="ABSENT",
        is_queue=is_queue,
        body=body,
    )
    if record and record.retry_at > sight.now:
        pause = f"; {record.refusal} Next try in {record.retry_at - sight.now:.0f} s"
        return replace(finding, verdict=Verdict.GRACE, reason=why + pause, deed=Deed.NOTHING)
    return finding


def _record_is_ours(record: SliceRecord, scope: Scope) -> bool:
    body = record.body or {}
    specs = (body.get("tpu") or {}).get("nodeSpec") or [{"node": body}]
    return all(scope.has([record.name], (spec.get("node") or {}).get("labels") or {}) for spec in specs)


# ---- deeds


def _with_deed(finding: Finding, is_reserved: bool, is_left_to_autoscaler: bool) -> Finding:
    if finding.verdict is not Verdict.DEAD:
        return finding
    if is_reserved:
        reason = f"{finding.reason}; it is reserved capacity, which is never deleted: repair it by hand"
        return replace(finding, reason=reason, needs_person=True)
    if is_left_to_autoscaler:
        return replace(finding, deed=Deed.DELETE, reason=f"{finding.reason}; Ray's autoscaler made it")
    return replace(finding, deed=Deed.REPLACE)


def _within_limits(findings: Sequence[Finding], sight: Sight, settings: RepairSettings) -> list[Finding]:
    """The first deeds that the limits allow; the others are put off."""
    lately = sum(at > sight.now - HOUR_S for one in sight.records.values() for at in one.deleted_at)
    left = min(settings.max_deletes_per_pass, settings.max_deletes_per_hour - lately)
    kept = []
    for finding in findings:
        if finding.deletes:
            left -= 1
            if left < 0:
                reason = f"{finding.reason}; put off: {lately} were deleted in the last hour, or enough in this pass"
                finding = replace(finding, deed=Deed.NOTHING, reason=reason)
        kept.append(finding)
    return kept


def _hosts(nodes: Sequence[TpuNode], sight: Sight) -> str:
    alive = "?" if sight.hosts is None else str(sum(sight.hosts.get(node.name, 0) for node in nodes))
    total = "?" if any(node.hosts is None for node in nodes) else str(sum(node.hosts or 0 for node in nodes))
    return f"{alive}/{total}"
