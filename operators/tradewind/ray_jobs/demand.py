"""Resource demand of a job's entrypoint and of its Ray tasks, and whether the cluster could ever satisfy it.

Waiting is not failing: a demand is infeasible only if no present, former or possible node would satisfy it. An
autoscaler that lists its node types decides that at once. Without one, unknown nodes may still join, so the caller's
grace period must also have passed. A dead node counts as one that may return, as preempted slices do.

Cluster responses are cached for 60 s per cluster and question.
"""

from __future__ import annotations

import asyncio
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tradewind.cloud_tpu.slice_types import RAY_LABELS, is_head_resource
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError
from tradewind.ray_jobs.nodes import NodeInfo, NodeType, fetch_node_types, fetch_nodes, head_of
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.usage import GROUP, Work, fetch_usage, format_amount, may_wait
from tradewind.text import single_line

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

CACHE_TTL_S = 60.0
GRACE_S = 15 * 60.0
MIN_WAIT_S = 30.0
"""Ray tasks that have waited for a shorter time may be part of a steady stream."""
MAX_REASON_CHARS = 2000
_TYPE = "accelerator_type:"
_ADDED_BY_RAY = re.compile(rf"memory|object_store_memory|node:.*|{_TYPE}.*")
_LIST = re.compile(r"(!?)in\((.*)\)")
_MAX_SHOWN = 3
T = TypeVar("T")

_answers: weakref.WeakKeyDictionary[JobsApi, dict[str, tuple[float, asyncio.Task[Any]]]] = weakref.WeakKeyDictionary()


async def cached_answer(api: JobsApi, question: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the response of ``ask``, at most ``CACHE_TTL_S`` old; errors are not cached."""
    answers = _answers.setdefault(api, {})
    known = answers.get(question)
    if (
        known is None
        or time.monotonic() - known[0] > CACHE_TTL_S
        or (known[1].done() and (known[1].cancelled() or known[1].exception()))
    ):
        known = answers[question] = (time.monotonic(), asyncio.ensure_future(ask()))
    answer: T = await asyncio.shield(known[1])
    return answer


@dataclass(frozen=True)
class Demand:
    """Resources and labels that a job's entrypoint requires of its node.

    Attributes:
        resources: Amounts by Ray's names: ``CPU``, ``GPU``, ``memory`` in bytes, and custom ones.
        label_selector: Labels that the node must have, in Ray's syntax.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(request: JobRequest) -> Demand:
        """Return the demand of ``request``."""
        named = {"CPU": request.num_cpus, "GPU": request.num_gpus, "memory": request.memory_bytes}
        amounts = {**named, **(request.resources or {})}
        return Demand(
            {name: float(amount) for name, amount in amounts.items() if amount}, dict(request.label_selector or {})
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; ``from_json`` reads it."""
        return {"resources": dict(self.resources), "label_selector": dict(self.label_selector)}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Demand:
        """Return the demand that ``to_json`` wrote."""
        return Demand(dict(fields.get("resources") or {}), dict(fields.get("label_selector") or {}))

    def fits(self, amounts: Mapping[str, float], labels: Mapping[str, str]) -> bool:
        """Return whether a node with these resources and labels satisfies the demand."""
        enough = all(amounts.get(name, 0.0) >= amount for name, amount in self.resources.items())
        return enough and all(_selects(wanted, labels.get(key)) for key, wanted in self.label_selector.items())

    def may_fit(self, kind: NodeType) -> bool:
        """Return whether a node of this type may satisfy it: the configuration lacks what Ray adds at start."""
        amounts = {name: amount for name, amount in self.resources.items() if not self._is_added(name, kind.resources)}
        labels = {key: value for key, value in self.label_selector.items() if not self._is_added(key, kind.labels)}
        return kind.max_count != 0 and Demand(amounts, labels).fits(kind.resources, kind.labels)

    @staticmethod
    def _is_added(name: str, configured: Mapping[str, Any]) -> bool:
        by_ray = name.startswith(RAY_LABELS) or is_head_resource(name) or bool(_ADDED_BY_RAY.fullmatch(name))
        return by_ray and name not in configured

    def __str__(self) -> str:
        labels = ", ".join(f"label {key}={_selector_text(value)}" for key, value in self.label_selector.items())
        return ", ".join(part for part in (_amounts(self.resources), labels) if part) or "no resources"


@dataclass(frozen=True)
class PendingReason:
    """Why work waits.

    Attributes:
        cause: The cause, in a few words.
        outlook: What it waits for, if it may still run.
        is_infeasible: Whether the demand is infeasible.
        has_room: Whether a node has room for it now.
        lacking: Resources that are in use.
        holders: Who holds these, as sentences.
    """

    cause: str
    outlook: str = ""
    is_infeasible: bool = False
    has_room: bool = False
    lacking: frozenset[str] = frozenset()
    holders: str = ""

    @property
    def text(self) -> str:
        """The whole reason, as sentences."""
        reason = "; ".join(part for part in (self.cause, self.outlook) if part)
        return f"{reason}. {self.holders}".rstrip()


async def explain_pending_job(
    api: JobsApi, demand: Demand, *, waited_s: float = 0.0, grace_s: float = GRACE_S
) -> PendingReason:
    """Explain why a job with ``demand``, which has waited for ``waited_s``, is pending.

    Raises:
        RayUnreachableError: No response.
    """
    reason = await _explain(api, demand, waited_s, grace_s)
    if reason.lacking:
        with suppress(RayUnreachableError, RayAuthenticationError):  # the State API may be closed
            usage = await cached_answer(api, "usage", lambda: fetch_usage(api))
            return replace(reason, holders=usage.holders(reason.lacking))
    return reason


async def explain_waiting_work(api: JobsApi, job: str) -> str | None:
    """Explain what the Ray tasks, actors and placement groups of a running job wait for; None if they have room.

    Raises:
        RayUnreachableError: No response.
    """
    if not await cached_answer(api, "may wait", lambda: may_wait(api)):
        return None
    usage = await cached_answer(api, "usage", lambda: fetch_usage(api))
    latest_ms = (time.time() + (api.clock_ahead_s or 0.0) - MIN_WAIT_S) * 1000
    alike: dict[str, list[Work]] = {}
    for work in usage.waiting:
        if work.job == job and work.since_ms <= latest_ms:
            alike.setdefault(f"{work.kind} {work.in_group} {_demand(work)}", []).append(work)
    causes: list[str] = []
    lacking: set[str] = set()
    for works in sorted(alike.values(), key=len, reverse=True)[:_MAX_SHOWN]:
        reason = await _explain_work(api, works[0])
        if reason is not None:
            noun = f"{GROUP} bundle" if works[0].kind == GROUP else works[0].kind
            waits, each = ("waits", "") if len(works) == 1 else ("wait", " each")
            causes.append(f"{len(works)} of its {noun}s {waits} for {_demand(works[0])}{each}: {reason.cause}")
            lacking |= reason.lacking
    if not causes:
        return None
    advice = ""
    if usage.only_drivers_hold(lacking):
        advice = "Drivers hold theirs to their end: run fewer of these jobs at once, or request less for their drivers."
    return single_line(f"{'; '.join(causes)}. {usage.holders(lacking)} {advice}", MAX_REASON_CHARS)


def _demand(work: Work) -> Demand:
    return Demand(work.resources, work.label_selector)


async def _explain_work(api: JobsApi, work: Work) -> PendingReason | None:
    """Explain what ``work`` waits for; None if a node has room for it now."""
    if work.in_group:
        return PendingReason("its placement group has no room left")
    reason = await _explain(api, _demand(work), 0.0, GRACE_S)
    return None if reason.has_room else reason


async def _explain(api: JobsApi, demand: Demand, waited_s: float, grace_s: float) -> PendingReason:
    nodes = await cached_answer(api, "nodes", lambda: fetch_nodes(api))
    head = head_of(nodes)
    kinds = None
    if head and not any(demand.fits(node.total, node.labels) for node in nodes):
        kinds = await cached_answer(api, "node types", lambda: fetch_node_types(api, head.node_id))
    return explain_pending(demand, nodes, kinds, waited_s, grace_s)


def explain_pending(
    demand: Demand, nodes: Sequence[NodeInfo], kinds: Sequence[NodeType] | None, waited_s: float, grace_s: float
) -> PendingReason:
    """Explain why a job with ``demand`` waits; ``kinds`` is None for a cluster without an autoscaler."""
    alive = [node for node in nodes if node.is_alive]
    if able := [node for node in alive if demand.fits(node.total, node.labels)]:
        return _waiting_for(demand, able)
    if gone := [node for node in nodes if not node.is_alive and demand.fits(node.total, node.labels)]:
        return PendingReason(
            f"no node can serve {demand} now: {_names(gone)} could, but is gone "
            f"({gone[-1].why or 'Ray gives no reason'})",
            "waiting for it or for a similar one",
        )
    missing = _missing_type(demand, alive) or f"no node of the cluster can serve {demand}; {_largest(demand, alive)}"
    if kinds is not None:
        if addable := [kind for kind in kinds if demand.may_fit(kind)]:
            types = " or ".join(kind.name for kind in addable)
            return PendingReason(f"the autoscaler can add {types} for {demand}", "waiting for a node")
        offers = "; ".join(f"{kind.name} with {_amounts(kind.resources)}" for kind in kinds if kind.max_count != 0)
        return PendingReason(f"{missing}; the autoscaler can add {offers or 'nothing'}", is_infeasible=True)
    if waited_s < grace_s:
        return PendingReason(missing, "waiting, since a node may still join")
    return PendingReason(f"{missing}; none has joined in {waited_s / 60:.0f} min", is_infeasible=True)


def _waiting_for(demand: Demand, able: Sequence[NodeInfo]) -> PendingReason:
    """Explain why work waits although these nodes could run it."""
    if not demand.resources:
        return PendingReason("Ray is starting it: its environment is being built", has_room=True)
    if any(node.free is not None and demand.fits(node.free, node.labels) for node in able):
        cause = f"{_names(able)} has {demand} free: Ray is starting it, or its environment is being built"
        return PendingReason(cause, has_room=True)
    lacking = frozenset(
        name for node in able for name, amount in demand.resources.items() if (node.free or {}).get(name, 0.0) < amount
    )
    if all(node.free is None for node in able):
        cause = f"{_names(able)} can serve {demand}, but Ray has not started it: it probably waits for free resources"
        return PendingReason(cause, lacking=lacking)
    shares = "; ".join(f"{node.name}: {_shares(demand, node)}" for node in able[:_MAX_SHOWN])
    cause = f"every node that can serve {demand} is busy ({shares}{_more(able)})"
    return PendingReason(cause, "waiting for free resources", lacking=lacking)


def _shares(demand: Demand, node: NodeInfo) -> str:
    free = node.free or {}
    return ", ".join(
        f"{format_amount(name, free.get(name, 0.0))} of {format_amount(name, node.total[name])} {name} free"
        for name in demand.resources
        if not name.startswith(_TYPE)
    )


def _missing_type(demand: Demand, alive: Sequence[NodeInfo]) -> str | None:
    """Name the requested type of accelerator that no node has, if there is one."""
    for name in demand.resources:
        if name.startswith(_TYPE) and not any(node.total.get(name) for node in alive):
            noun = "a GPU" if "GPU" in demand.resources else "an accelerator"
            return f"no node has {noun} of type {name.removeprefix(_TYPE)}"
    return None


def _largest(demand: Demand, alive: Sequence[NodeInfo]) -> str:
    """Return the largest available amount of each requested resource, and the values of each label."""
    most = {name: max((node.total.get(name, 0.0) for node in alive), default=0.0) for name in demand.resources}
    parts = [f"the most that one node has is {_amounts(most)}"] if most else []
    for key in demand.label_selector:
        values = sorted({node.labels[key] for node in alive if key in node.labels})
        parts.append(f"its nodes have label {key}={' or '.join(values)}" if values else f"no node has a label {key}")
    return ", ".join(parts)


def _selects(wanted: str, value: str | None) -> bool:
    """Evaluate one of Ray's label operators: ``v``, ``!v``, ``in(a, b)``, ``!in(a, b)``."""
    listed = _LIST.fullmatch(wanted)
    choices = _choices(listed) if listed else [wanted.removeprefix("!")]
    return (value in choices) != wanted.startswith("!")


def _selector_text(wanted: str) -> str:
    """Return a selector as users write it: Ray's State API changes the order and the spaces of a list."""
    listed = _LIST.fullmatch(wanted)
    return f"{listed[1]}in({', '.join(_choices(listed))})" if listed else wanted


def _choices(listed: re.Match[str]) -> list[str]:
    return sorted(choice.strip() for choice in listed[2].split(","))


def _amounts(amounts: Mapping[str, float]) -> str:
    """Format amounts. Ray asks for a type of GPU by a tiny amount of a resource that is named for it."""
    types = [name.removeprefix(_TYPE) for name in amounts if name.startswith(_TYPE)]
    return ", ".join(
        f"{format_amount(name, amount)} {name}{f' of type {types[0]}' if types and name == 'GPU' else ''}"
        for name, amount in amounts.items()
        if not (types and name.startswith(_TYPE) and "GPU" in amounts)
    )


def _names(nodes: Sequence[NodeInfo]) -> str:
    return ", ".join(node.name for node in nodes[:_MAX_SHOWN]) + _more(nodes)


def _more(nodes: Sequence[NodeInfo]) -> str:
    return f" and {len(nodes) - _MAX_SHOWN} more" if len(nodes) > _MAX_SHOWN else ""
