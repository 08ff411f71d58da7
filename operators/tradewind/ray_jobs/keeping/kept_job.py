"""A job as it is kept while its cluster is restarted: all that its submission said, as the head had written it down.

Ray tells everything of a job but the labels that its entrypoint's node had to have: ``LABEL_SELECTOR`` in the metadata
holds those of jobs that this package submitted.

A head takes jobs from anybody who has the token, so each is input, and one that is odd keeps no other from being kept.
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
LONGEST_ID: Final = 500
"""Of a job, in characters: ids stand in a cluster's marker."""
_LONGEST_NAME_BYTES: Final = 200
_MOST_DEEP: Final = 100


class OddJobError(ValueError):
    """What a head knows of a job is nothing that can be kept; the text follows "because"."""


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
        """From what Ray's head keeps of a job: its ``JobInfo``, whose environment is JSON within the JSON.

        Raises:
            OddJobError: Something of it is nothing that Ray would take again.
        """
        resources = info.get("entrypoint_resources") or {}
        cpus, gpus, memory = (info.get(f"entrypoint_{what}") for what in ("num_cpus", "num_gpus", "memory"))
        if not isinstance(resources, dict) or not all(map(_is_amount, [*resources.values(), cpus, gpus, memory])):
            raise OddJobError("what its entrypoint asks for are no amounts")
        if not isinstance(info.get("entrypoint"), str):
            raise OddJobError("its entrypoint is no text")
        if not (0 < len(job) <= LONGEST_ID and job.isprintable()):
            raise OddJobError(f"its id has more than {LONGEST_ID} characters, or some that nobody can see")
        kept = KeptJob(
            job,
            str(info["status"]),
            info["entrypoint"],
            _environment(info.get("runtime_env_json")),
            dict(info.get("metadata") or {}),
            cpus,
            gpus,
            memory,
            dict(resources) or None,
            info.get("driver_node_id"),
        )
        if odd := [uri for uri in kept.packages if not _is_package(uri)]:
            raise OddJobError(f"its environment names {odd[0][:_LONGEST_NAME_BYTES]!r}, which is no package of Ray's")
        return kept

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


@dataclass(frozen=True)
class UnkeptJob:
    """A job that cannot be kept, and why, in words that follow "because"."""

    job: str
    why: str

    @property
    def sentence(self) -> str:
        """The same for people."""
        return f"Job {self.job[:LONGEST_ID]!r} is not kept and will not be brought back, because {self.why}."


def jobs_to_keep(infos: Mapping[str, Any]) -> tuple[list[KeptJob], list[UnkeptJob]]:
    """Of all that a head knows, by id, those that have not ended and that nobody else goes on with.

    Args:
        infos: Ray's ``JobInfo`` of each; None of one that cannot be read.

    Returns:
        Those that can be kept, and the others.
    """
    kept: list[KeptJob] = []
    unkept: list[UnkeptJob] = []
    for job, info in sorted(infos.items()):
        try:
            if _is_kept(info):
                kept.append(KeptJob.from_info(job, info))
        except OddJobError as error:
            unkept.append(UnkeptJob(job, str(error)))
    return kept, unkept


def _is_kept(info: Any) -> bool:
    if not isinstance(info, dict) or not isinstance(info.get("status"), str):
        raise OddJobError("what the head has written down of it cannot be read")
    if info["status"] in TERMINAL:
        return False
    metadata = info.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise OddJobError("its metadata are no texts")
    return not is_gone_on_with(metadata)


def returned_id(job: str, restart: str) -> str:
    """The id under which ``job`` comes back after ``restart``: no two jobs have the same.

    So nothing is taken from an id, not even the ending of a restart before: people end names like that, too.
    """
    return f"{job}-r-{restart}"


def _environment(text: Any) -> dict[str, Any]:
    """A job's runtime environment from its JSON.

    Raises:
        OddJobError: It is none, or nested so deeply that it could not be written down.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, TypeError):
        raise OddJobError("its runtime environment is no JSON") from None
    except RecursionError:
        raise OddJobError("its runtime environment is nested too deeply") from None
    if value is not None and not isinstance(value, dict):
        raise OddJobError("its runtime environment is no JSON object")
    if _is_deep(value):
        raise OddJobError("its runtime environment is nested too deeply")
    return value or {}


def _is_deep(value: Any) -> bool:
    """Whether what goes through it by calling itself could run out of stack."""
    level = [value]
    for _ in range(_MOST_DEEP):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [one for values in inner for one in values]
    return bool(level)


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and 0 <= value < float("inf"))


def _is_package(uri: str) -> bool:
    """Whether it is the address of a package as Ray makes them, whose name can be that of a file."""
    name = uri.removeprefix(PACKAGE_SCHEME)
    is_name = name.isprintable() and "/" not in name and name not in ("", ".", "..")
    return is_name and len(name.encode()) <= _LONGEST_NAME_BYTES


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
