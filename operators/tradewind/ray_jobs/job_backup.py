"""A job as it is kept while its cluster is restarted: all that its submission said, as the head had written it down.

Ray tells everything of a job but the labels that its entrypoint's node had to have: ``LABEL_SELECTOR`` in the metadata
holds those of jobs that this package submitted.

A head takes jobs from anybody who has the token, so each is input, and one that is odd keeps no other from being kept.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tradewind.machine import write_private_file
from tradewind.ray_jobs.details import TERMINAL, is_managed

LABEL_SELECTOR: Final = "tradewind_label_selector"
PACKAGE_SCHEME: Final = "gcs://"
"""Of packages that the head itself keeps, and loses with its memory."""
MAX_JOB_ID_CHARS: Final = 500
"""Of a job, in characters: ids stand in a cluster's marker."""
_LONGEST_NAME_BYTES: Final = 200
_MOST_DEEP: Final = 100


class InvalidJobError(ValueError):
    """What a head knows of a job is nothing that can be kept; the text follows "because"."""


@dataclass(frozen=True)
class SavedJob:
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
    def from_info(job: str, info: Mapping[str, Any]) -> SavedJob:
        """From what Ray's head keeps of a job: its ``JobInfo``, whose environment is JSON within the JSON.

        Raises:
            InvalidJobError: Something of it is nothing that Ray would take again.
        """
        resources = info.get("entrypoint_resources") or {}
        cpus, gpus, memory = (info.get(f"entrypoint_{what}") for what in ("num_cpus", "num_gpus", "memory"))
        if not isinstance(resources, dict) or not all(map(_is_amount, [*resources.values(), cpus, gpus, memory])):
            raise InvalidJobError("what its entrypoint asks for are no amounts")
        if not isinstance(info.get("entrypoint"), str):
            raise InvalidJobError("its entrypoint is no text")
        if not (0 < len(job) <= MAX_JOB_ID_CHARS and job.isprintable()):
            raise InvalidJobError(f"its id has more than {MAX_JOB_ID_CHARS} characters, or some that nobody can see")
        kept = SavedJob(
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
            raise InvalidJobError(
                f"its environment names {odd[0][:_LONGEST_NAME_BYTES]!r}, which is no package of Ray's"
            )
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
            "submission_id": restored_id(self.job, restart),
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
    def from_json(fields: Mapping[str, Any]) -> SavedJob:
        """The job that ``to_json`` wrote down."""
        return SavedJob(**{**fields, "missing": tuple(fields["missing"])})


@dataclass(frozen=True)
class SkippedJob:
    """A job that cannot be kept, and why, in words that follow "because"."""

    job: str
    why: str

    @property
    def sentence(self) -> str:
        """The same for people."""
        return f"Job {self.job[:MAX_JOB_ID_CHARS]!r} is not kept and will not be brought back, because {self.why}."


def jobs_to_back_up(infos: Mapping[str, Any]) -> tuple[list[SavedJob], list[SkippedJob]]:
    """Of all that a head knows, by id, those that have not ended and that nobody else goes on with.

    Args:
        infos: Ray's ``JobInfo`` of each; None of one that cannot be read.

    Returns:
        Those that can be kept, and the others.
    """
    kept: list[SavedJob] = []
    unkept: list[SkippedJob] = []
    for job, info in sorted(infos.items()):
        try:
            if _is_kept(info):
                kept.append(SavedJob.from_info(job, info))
        except InvalidJobError as error:
            unkept.append(SkippedJob(job, str(error)))
    return kept, unkept


def _is_kept(info: Any) -> bool:
    if not isinstance(info, dict) or not isinstance(info.get("status"), str):
        raise InvalidJobError("what the head has written down of it cannot be read")
    if info["status"] in TERMINAL:
        return False
    metadata = info.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise InvalidJobError("its metadata are no texts")
    return not is_managed(metadata)


def restored_id(job: str, restart: str) -> str:
    """The id under which ``job`` comes back after ``restart``: no two jobs have the same.

    So nothing is taken from an id, not even the ending of a restart before: people end names like that, too.
    """
    return f"{job}-r-{restart}"


def _environment(text: Any) -> dict[str, Any]:
    """A job's runtime environment from its JSON.

    Raises:
        InvalidJobError: It is none, or nested so deeply that it could not be written down.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, TypeError):
        raise InvalidJobError("its runtime environment is no JSON") from None
    except RecursionError:
        raise InvalidJobError("its runtime environment is nested too deeply") from None
    if value is not None and not isinstance(value, dict):
        raise InvalidJobError("its runtime environment is no JSON object")
    if _is_deep(value):
        raise InvalidJobError("its runtime environment is nested too deeply")
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


# The backup of a cluster's jobs: a folder for its owner alone, which is there whole or not at all.
#
# It holds the variables of jobs in clear, so it is deleted once the jobs are back, and nothing of it is ever printed.

_JOBS: Final = "jobs.json"
_PACKAGES: Final = "packages"
_ENDING: Final = "ending"


class BadBackupError(ValueError):
    """A backup is not there, or cannot be read."""


@dataclass(frozen=True)
class JobBackup:
    """One backup.

    Attributes:
        folder: Where it lies; its name is the id of the restart that it is for.
    """

    folder: Path

    @property
    def restart(self) -> str:
        """The id of the restart, which the ids of the jobs that come back end with."""
        return self.folder.name

    @property
    def is_there(self) -> bool:
        """Whether it was written."""
        return (self.folder / _JOBS).is_file()

    def jobs(self) -> list[SavedJob]:
        """The jobs in it.

        Raises:
            BadBackupError: It is not there, or not as it was written.
        """
        try:
            found = json.loads((self.folder / _JOBS).read_text())
            return [SavedJob.from_json(fields) for fields in found]
        except OSError as error:
            raise BadBackupError(f"There is no backup of jobs in {self.folder} ({error.strerror}).") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadBackupError(f"The backup of jobs in {self.folder} cannot be read: it was changed.") from None

    def add(self, jobs: Iterable[SavedJob], packages: Mapping[str, Path], without: Collection[str] = ()) -> None:
        """Put ``jobs`` into it, in the place of those with the same ids; ``packages`` are moved there.

        Args:
            without: Ids of jobs that are not to be in it any more.
        """
        kept = {job.job: job for job in (self.jobs() if self.is_there else []) if job.job not in without}
        kept |= {job.job: job for job in jobs}
        private_folder(self.folder)
        private_folder(self.folder / _PACKAGES)
        for uri, file in packages.items():
            file.chmod(0o600)
            os.replace(file, self.package(uri))
        write_private_file(self.folder / _JOBS, json.dumps([job.to_json() for job in kept.values()]))

    def package(self, uri: str) -> Path:
        """The file of a package, which need not be there.

        Raises:
            BadBackupError: The address is none that Ray makes.
        """
        name = uri.removeprefix(PACKAGE_SCHEME)
        if "/" in name or name in ("", ".", ".."):
            raise BadBackupError(f"A job names {uri!r}, which is no package of Ray's.")
        return self.folder / _PACKAGES / name

    def note_ending(self, job: str) -> None:
        """Write down that ``job``, which waits on the new head, is ended for its successor."""
        private_folder(self.folder / _ENDING)
        write_private_file(self._ending(job), "")

    def is_ended_by_us(self, job: str) -> bool:
        """Whether that was written down."""
        return self._ending(job).exists()

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forget all but ``jobs``; the whole backup, if there are none."""
        if wanted := set(jobs):
            kept = [job.to_json() for job in self.jobs() if job.job in wanted]
            write_private_file(self.folder / _JOBS, json.dumps(kept))
        else:
            self.delete()

    def delete(self) -> None:
        """Have nothing of it left."""
        if self.folder.exists():
            gone = self.folder.with_name(f"{self.folder.name}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            self.folder.rename(gone)
            shutil.rmtree(gone)

    def _ending(self, job: str) -> Path:
        return self.folder / _ENDING / sha256(job.encode(errors="surrogatepass")).hexdigest()


def backups_of(folder: Path) -> list[JobBackup]:
    """The backups below ``folder``, the newest last."""
    found = [JobBackup(one) for one in folder.iterdir()] if folder.is_dir() else []
    there = [one for one in found if one.is_there and not one.folder.name.endswith(".gone")]
    return sorted(there, key=lambda one: (one.folder / _JOBS).stat().st_mtime)


def private_folder(folder: Path) -> None:
    """Have ``folder``, for its owner alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
