"""A job as it is kept while its cluster is restarted: all that its submission said, as the head had written it down.

Ray tells everything of a job but the labels that its entrypoint's node had to have: ``LABEL_SELECTOR`` in the metadata
holds those of jobs that this package submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tradewind.ray_jobs.details import TERMINAL
from tradewind.ray_jobs.keeping.owners import is_gone_on_with

LABEL_SELECTOR: Final = "tradewind_label_selector"
PACKAGE_SCHEME: Final = "gcs://"
"""Of packages that the head itself keeps, and loses with its memory."""


@dataclass(frozen=True)
class KeptJob:
    """A job that is brought back.

    Attributes:
        job: Its submission id.
        status: What it was doing when it was kept: ``PENDING`` or ``RUNNING``.
        runtime_env: As it was given; its variables may hold what nobody else may see.
        node_id: The node that its entrypoint ran on.
        on_head: Whether that was the head's own, which a restart ends.
        missing: Packages of its environment that the head had lost before it could be kept.
    """

    job: str
    status: str
    entrypoint: str
    runtime_env: Mapping[str, Any] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    resources: Mapping[str, float] | None = None
    node_id: str | None = None
    on_head: bool = False
    missing: tuple[str, ...] = ()

    @staticmethod
    def from_info(job: str, info: Mapping[str, Any]) -> KeptJob:
        """From what Ray's head keeps of a job: its ``JobInfo``, whose environment is JSON within the JSON."""
        return KeptJob(
            job,
            str(info["status"]),
            str(info["entrypoint"]),
            json.loads(info.get("runtime_env_json") or "{}") or {},
            dict(info.get("metadata") or {}),
            info.get("entrypoint_num_cpus"),
            info.get("entrypoint_num_gpus"),
            info.get("entrypoint_memory"),
            dict(info.get("entrypoint_resources") or {}) or None,
            info.get("driver_node_id"),
        )

    @property
    def packages(self) -> list[str]:
        """The packages of its environment that only the head has."""
        return sorted(set(_packages_in(self.runtime_env)))

    @property
    def has_readable_labels(self) -> bool:
        """Whether its metadata hold labels, or none: a job of somebody else may have anything there."""
        try:
            labels = json.loads(self.metadata.get(LABEL_SELECTOR) or "{}")
        except (ValueError, RecursionError):
            return False
        return isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())

    def submission(self, restart: str) -> dict[str, Any]:
        """What brings it back, in the fields of Ray's Jobs API."""
        labels = self.metadata.get(LABEL_SELECTOR)
        return {
            "submission_id": returned_id(self.job, restart),
            "entrypoint": self.entrypoint,
            "runtime_env": dict(self.runtime_env),
            "metadata": dict(self.metadata),
            "entrypoint_num_cpus": self.num_cpus,
            "entrypoint_num_gpus": self.num_gpus,
            "entrypoint_memory": self.memory_bytes,
            "entrypoint_resources": dict(self.resources) if self.resources else None,
            "entrypoint_label_selector": json.loads(labels) if labels else None,
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> KeptJob:
        """The job that ``to_json`` wrote down."""
        return KeptJob(**{**fields, "missing": tuple(fields["missing"])})


def jobs_to_keep(infos: Mapping[str, Mapping[str, Any]]) -> list[KeptJob]:
    """Of all that a head knows, by id, those that have not ended and that nobody else goes on with."""
    return [
        KeptJob.from_info(job, info)
        for job, info in sorted(infos.items())
        if info["status"] not in TERMINAL and not is_gone_on_with(info.get("metadata") or {})
    ]


def returned_id(job: str, restart: str) -> str:
    """The id under which ``job`` comes back after ``restart``: no two jobs have the same.

    So nothing is taken from an id, not even the ending of a restart before: people end names like that, too.
    """
    return f"{job}-r-{restart}"


def _packages_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.startswith(PACKAGE_SCHEME):
            yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "env_vars":
                yield from _packages_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _packages_in(inner)
