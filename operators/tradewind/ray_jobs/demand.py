"""Resource demand of a job's entrypoint, and whether the cluster could ever satisfy it.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tradewind.cloud_tpu.slice_types import RAY_LABELS, is_head_resource
from tradewind.ray_jobs.nodes import NodeInfo, NodeType, fetch_node_types, fetch_nodes, head_of
from tradewind.ray_jobs.request import JobRequest

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

CACHE_TTL_S = 60.0
GRACE_S = 15 * 60.0
_ADDED_BY_RAY = re.compile(r"memory|object_store_memory|node:.*|accelerator_type:.*")
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
        labels = ", ".join(f"label {key}={value}" for key, value in self.label_selector.items())
        return ", ".join(part for part in (_amounts(self.resources), labels) if part) or "no resources"


@dataclass(frozen=True)
class PendingReason:
    """Why a job waits, in a few words, and whether its demand is infeasible."""

    text: str
    is_infeasible: bool = False


async def explain_pending_job(
    api: JobsApi, demand: Demand, *, waited_s: float = 0.0, grace_s: float = GRACE_S
) -> PendingReason:
    """Explain why a job with ``demand``, which has waited for ``waited_s``, is pending.

    Raises:
        RayUnreachableError: No response.
    """
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
        return PendingReason(_waiting_for(demand, able))
    if gone := [node for node in nodes if not node.is_alive and demand.fits(node.total, node.labels)]:
        return PendingReason(
            f"no node can serve {demand} now: {_names(gone)} could, but is gone "
            f"({gone[-1].why or 'Ray gives no reason'}); waiting for it or for a similar one."
        )
    missing = f"no node of the cluster can serve {demand}; {_largest(demand, alive)}"
    if kinds is not None:
        if addable := [kind for kind in kinds if demand.may_fit(kind)]:
            types = " or ".join(kind.name for kind in addable)
            return PendingReason(f"the autoscaler can add {types} for {demand}; waiting for a node.")
        offers = "; ".join(f"{kind.name} with {_amounts(kind.resources)}" for kind in kinds if kind.max_count != 0)
        return PendingReason(f"{missing}; the autoscaler can add {offers or 'nothing'}.", is_infeasible=True)
    if waited_s < grace_s:
        return PendingReason(f"{missing}; waiting, since a node may still join.")
    return PendingReason(f"{missing}; none has joined in {waited_s / 60:.0f} min.", is_infeasible=True)


def _waiting_for(demand: Demand, able: Sequence[NodeInfo]) -> str:
    """Explain why a job waits although these nodes could run it."""
    if not demand.resources:
        return "Ray is starting it: its environment is being built."
    if any(node.free is not None and demand.fits(node.free, node.labels) for node in able):
        return f"{_names(able)} has {demand} free: Ray is starting it, or its environment is being built."
    if all(node.free is None for node in able):
        return f"{_names(able)} can serve {demand}, but Ray has not started it: it probably waits for free resources."
    shares = "; ".join(f"{node.name}: {_shares(demand, node)}" for node in able[:_MAX_SHOWN])
    return f"every node that can serve {demand} is busy ({shares}{_more(able)}); waiting for free resources."


def _shares(demand: Demand, node: NodeInfo) -> str:
    free = node.free or {}
    return ", ".join(
        f"{_amount(name, free.get(name, 0.0))} of {_amount(name, node.total[name])} {name} free"
        for name in demand.resources
    )


def _largest(demand: Demand, alive: Sequence[NodeInfo]) -> str:
    """Return the largest available amount of each requested resource."""
    most = {name: max((node.total.get(name, 0.0) for node in alive), default=0.0) for name in demand.resources}
    largest = f"the most that one node has is {_amounts(most)}" if most else "its nodes differ"
    if not demand.label_selector:
        return largest
    values = {key: sorted({node.labels[key] for node in alive if key in node.labels}) for key in demand.label_selector}
    return largest + "".join(f", label {key} is {' or '.join(found) or 'nowhere'}" for key, found in values.items())


def _selects(wanted: str, value: str | None) -> bool:
    """Evaluate one of Ray's label operators: ``v``, ``!v``, ``in(a, b)``, ``!in(a, b)``."""
    positive = wanted.removeprefix("!")
    listed = re.fullmatch(r"in\((.*)\)", positive)
    choices = [choice.strip() for choice in listed[1].split(",")] if listed else [positive]
    return (value in choices) == (positive == wanted)


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{_amount(name, amount)} {name}" for name, amount in amounts.items())


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if "memory" in name else f"{amount:g}"


def _names(nodes: Sequence[NodeInfo]) -> str:
    return ", ".join(node.name for node in nodes[:_MAX_SHOWN]) + _more(nodes)


def _more(nodes: Sequence[NodeInfo]) -> str:
    return f" and {len(nodes) - _MAX_SHOWN} more" if len(nodes) > _MAX_SHOWN else ""
