"""What waits for room on a cluster, and what holds its resources, by job: from Ray's State API."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.text import single_line

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

MAX_ROWS: Final = 1000
"""Rows that are read of each table, which may have many more."""
DRIVER: Final = "driver"
ACTOR: Final = "actor"
TASK: Final = "Ray task"
GROUP: Final = "placement group"
_KINDS: Final = (DRIVER, ACTOR, TASK, GROUP)
_MAX_HOLDERS: Final = 5
_SUPERVISOR: Final = "_ray_internal_job_actor_"
"""Prefix of the name of the actor that runs a job's entrypoint and holds its resources."""
_IN_GROUP: Final = re.compile(r"(.+)_group_(?:\d+_)?[0-9a-f]+")
"""Ray's name of a resource of a placement group. Ray adds one named ``bundle``."""
_Filter = tuple[str, str, str]
_Row = Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """One part of a job that holds resources, or waits for them.

    Attributes:
        job: Submission ID of the job, or Ray's own ID of a driver that was not submitted.
        kind: ``DRIVER``, ``ACTOR``, ``TASK`` or ``GROUP``.
        resources: Amounts by Ray's names.
        label_selector: Labels that its node must have.
        in_group: Whether its resources are those of a placement group.
        since_ms: Unix time of its submission by the cluster's clock; 0 if unknown.
    """

    job: str
    kind: str
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    in_group: bool = False
    since_ms: float = 0.0


@dataclass(frozen=True)
class Usage:
    """What waits for resources, and what holds them."""

    waiting: Sequence[Work] = ()
    holding: Sequence[Work] = ()

    def holders(self, resources: Collection[str]) -> str:
        """Name the largest holders of each of the resources in a sentence; those without a known one are left out."""
        return " ".join(text for name in sorted(resources) if (text := self._holders(name)))

    def _holders(self, resource: str) -> str:
        amounts: dict[tuple[str, str], float] = defaultdict(float)
        for work in self.holding:
            if amount := work.resources.get(resource):
                amounts[work.kind, work.job] += amount
        largest = sorted(amounts, key=lambda holder: (-amounts[holder], holder))
        parts = []
        for kind in _KINDS:
            found = [holder for holder in largest[:_MAX_HOLDERS] if holder[0] == kind]
            jobs = [f"{single_line(job, 60)} ({format_amount(resource, amounts[kind, job])})" for _, job in found]
            if jobs:
                ending = "" if kind == DRIVER and len(jobs) == 1 else "s"
                parts.append(f"the {kind}{ending} of {', '.join(jobs)}")
        more = f" and {len(largest) - _MAX_HOLDERS} more" if len(largest) > _MAX_HOLDERS else ""
        return f"{resource} is held by {', '.join(parts)}{more}." if parts else ""

    def only_drivers_hold(self, resources: Collection[str]) -> bool:
        """Return whether drivers alone hold any of these resources."""
        return {work.kind for work in self.holding if any(map(work.resources.get, resources))} == {DRIVER}


def format_amount(resource: str, amount: float) -> str:
    """Format an amount of one of Ray's resources, without its name."""
    return f"{amount / 2**30:.1f} GiB" if "memory" in resource else f"{amount:g}"


async def may_wait(api: JobsApi) -> bool:
    """Return whether work may wait for room on the cluster, by one small request.

    Raises:
        RayUnreachableError: No response.
    """
    status = await api.get_json("/api/cluster_status")
    try:
        load = status["data"]["clusterStatus"]["loadMetricsReport"]
        return bool(load["resourceDemand"] or load["pgDemand"])
    except (LookupError, TypeError):  # no autoscaler reports it
        return True


async def fetch_usage(api: JobsApi) -> Usage:
    """Return what waits and what holds.

    Raises:
        RayUnreachableError: No response.
    """
    jobs = await _rows(api, "jobs", ("status", "=", "RUNNING"))
    # A call of an actor waits for the actor, not for room.
    waiting = await _rows(api, "tasks", ("state", "=", "PENDING_NODE_ASSIGNMENT"), ("type", "!=", "ACTOR_TASK"))
    running = await _rows(api, "tasks", ("state", "=", "RUNNING"), ("type", "=", "NORMAL_TASK"))
    actors = await _rows(api, "actors", ("state", "=", "ALIVE"))
    groups = await _rows(api, "placement_groups", ("state", "!=", "REMOVED"))
    try:
        names = {str(row.get("job_id")): str(row["submission_id"]) for row in jobs if row.get("submission_id")}
        reserved = [*(_task(row, names) for row in running), *(_actor(row, names) for row in actors)]
        return Usage(
            [*(_task(row, names) for row in waiting), *_bundles(groups, names, placed=False)],
            [*(work for work in reserved if not work.in_group), *_bundles(groups, names, placed=True)],
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _invalid(api) from None


async def _rows(api: JobsApi, table: str, *filters: _Filter) -> list[_Row]:
    query = [("detail", "1"), ("limit", str(MAX_ROWS))]
    for key, predicate, value in filters:
        query += [("filter_keys", key), ("filter_predicates", predicate), ("filter_values", value)]
    answer = await api.get_json(f"/api/v0/{table}", query)
    try:
        return [dict(row) for row in answer["data"]["result"]["result"]]
    except (LookupError, TypeError, ValueError):
        raise _invalid(api) from None


def _invalid(api: JobsApi) -> RayUnreachableError:
    return RayUnreachableError(f"{api.cluster} sent invalid tasks or actors, as Ray never does: correct its address.")


def _task(row: _Row, names: Mapping[str, str]) -> Work:
    amounts, in_group = _amounts(row.get("required_resources")), row.get("placement_group_id") is not None
    return Work(
        names.get(row["job_id"], str(row["job_id"])),
        ACTOR if row.get("type") == "ACTOR_CREATION_TASK" else TASK,
        _names_of_user(amounts) if in_group else amounts,
        dict(row.get("label_selector") or {}),
        in_group,
        float(row.get("creation_time_ms") or 0.0),
    )


def _actor(row: _Row, names: Mapping[str, str]) -> Work:
    name = str(row.get("name") or "")
    is_driver = name.startswith(_SUPERVISOR)
    job = name.removeprefix(_SUPERVISOR) if is_driver else names.get(row["job_id"], str(row["job_id"]))
    in_group = row.get("placement_group_id") is not None
    return Work(job, DRIVER if is_driver else ACTOR, _amounts(row.get("required_resources")), in_group=in_group)


def _bundles(rows: Sequence[_Row], names: Mapping[str, str], *, placed: bool) -> list[Work]:
    """Return the bundles of placement groups that have a node, or those that wait for one: also if theirs was lost."""
    return [
        Work(
            names.get(row["creator_job_id"], str(row["creator_job_id"])),
            GROUP,
            _amounts(bundle.get("unit_resources")),
            dict(bundle.get("label_selector") or {}),
        )
        for row in rows
        for bundle in row.get("bundles") or []
        if bool(bundle.get("node_id")) is placed
    ]


def _amounts(resources: Any) -> dict[str, float]:
    return {name: float(amount) for name, amount in (resources or {}).items()}


def _names_of_user(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return the amounts that were requested of a placement group; Ray gives them other names, once or twice."""
    found = {name: match[1] for name in amounts if (match := _IN_GROUP.fullmatch(name))}
    return {found.get(name, name): amount for name, amount in amounts.items() if found.get(name) != "bundle"}
