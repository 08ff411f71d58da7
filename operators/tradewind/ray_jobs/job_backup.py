"""Jobs saved over a cluster restart: each job's whole submission, as the head had stored it.

Ray reports everything about a job but the labels that its node needed. ``LABEL_SELECTOR`` in the metadata holds those
of jobs that this package submitted.

A head accepts jobs from any client with the token, so each job is input. An invalid job does not stop the backup of
other jobs.

A backup is a folder that only its owner can access, either complete or absent. It holds the variables of jobs in clear
text, so it is deleted once the jobs are restored, and none of it is printed.
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
"""Packages that the head itself stores, and loses with its memory."""
MAX_JOB_ID_CHARS: Final = 500
"""Limit in characters: a cluster's lock object holds job IDs."""
_JOBS: Final = "jobs.json"
_PACKAGES: Final = "packages"
_ENDING: Final = "ending"
_MAX_NAME_BYTES: Final = 200
_MAX_DEPTH: Final = 100


class InvalidJobError(ValueError):
    """The head's record of a job cannot be saved; the text follows "because"."""


@dataclass(frozen=True)
class SavedJob:
    """A job that can be restored.

    Attributes:
        job: Its submission ID.
        status: ``PENDING`` or ``RUNNING``, at the time of the backup.
        runtime_env: As submitted; its variables may hold secrets.
        node_id: The node of its entrypoint.
        on_head: That was the head's own node, which a restart ends.
        missing: Packages of its environment that the head had lost before the backup.
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
        """Parse Ray's ``JobInfo`` of a job, whose environment is JSON within the JSON.

        Raises:
            InvalidJobError: Ray would not accept a part of it again.
        """
        resources = info.get("entrypoint_resources") or {}
        cpus, gpus, memory = (info.get(f"entrypoint_{what}") for what in ("num_cpus", "num_gpus", "memory"))
        if not isinstance(resources, dict) or not all(map(_is_amount, [*resources.values(), cpus, gpus, memory])):
            raise InvalidJobError("the resources of its entrypoint are no amounts")
        if not isinstance(info.get("entrypoint"), str):
            raise InvalidJobError("its entrypoint is no text")
        if not (0 < len(job) <= MAX_JOB_ID_CHARS and job.isprintable()):
            raise InvalidJobError(f"its id is empty, longer than {MAX_JOB_ID_CHARS} characters, or not printable")
        saved = SavedJob(
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
        if invalid := [uri for uri in saved.packages if not _is_package(uri)]:
            raise InvalidJobError(
                f"its environment names {invalid[0][:_MAX_NAME_BYTES]!r}, which is no package of Ray's"
            )
        return saved

    @property
    def packages(self) -> list[str]:
        """Packages of its environment that only the head has."""
        return sorted(set(_packages_in(self.runtime_env)))

    @property
    def has_readable_labels(self) -> bool:
        """Whether its metadata hold valid labels, or none: jobs of other packages may hold any text there."""
        try:
            labels = json.loads(self.metadata.get(LABEL_SELECTOR) or "{}")
        except (ValueError, RecursionError):
            return False
        return isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())

    def submission(self, restart: str) -> dict[str, Any]:
        """Return the fields of Ray's Jobs API that restore it."""
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
        """Return the job that ``to_json`` wrote."""
        return SavedJob(**{**fields, "missing": tuple(fields["missing"])})


@dataclass(frozen=True)
class SkippedJob:
    """A job that cannot be saved, and the reason, which follows "because"."""

    job: str
    why: str

    @property
    def sentence(self) -> str:
        """Return a sentence about it for users."""
        return f"Job {self.job[:MAX_JOB_ID_CHARS]!r} is not backed up and will not be restored, because {self.why}."


def jobs_to_back_up(infos: Mapping[str, Any]) -> tuple[list[SavedJob], list[SkippedJob]]:
    """Split the head's unmanaged jobs that have not ended into saved and skipped ones.

    Args:
        infos: Ray's ``JobInfo`` by job ID; None for an unreadable one.

    Returns:
        Jobs that can be saved, and the others.
    """
    saved: list[SavedJob] = []
    skipped: list[SkippedJob] = []
    for job, info in sorted(infos.items()):
        try:
            if _needs_backup(info):
                saved.append(SavedJob.from_info(job, info))
        except InvalidJobError as error:
            skipped.append(SkippedJob(job, str(error)))
    return saved, skipped


def _needs_backup(info: Any) -> bool:
    if not isinstance(info, dict) or not isinstance(info.get("status"), str):
        raise InvalidJobError("the head's record of it cannot be parsed")
    if info["status"] in TERMINAL:
        return False
    metadata = info.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise InvalidJobError("its metadata are no texts")
    return not is_managed(metadata)


def restored_id(job: str, restart: str) -> str:
    """Return the ID under which ``job`` is restored after ``restart``; it is unique per job.

    It keeps the whole former ID, even a suffix of an earlier restart, because users choose such names as well.
    """
    return f"{job}-r-{restart}"


def _environment(text: Any) -> dict[str, Any]:
    """Parse a job's runtime environment.

    Raises:
        InvalidJobError: It is invalid, or nested too deeply to be serialized.
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
    """Return whether recursion through ``value`` could exhaust the stack."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [one for values in inner for one in values]
    return bool(level)


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and 0 <= value < float("inf"))


def _is_package(uri: str) -> bool:
    """Return whether ``uri`` is a package address as Ray makes them, whose name is a valid file name."""
    name = uri.removeprefix(PACKAGE_SCHEME)
    is_name = name.isprintable() and "/" not in name and name not in ("", ".", "..")
    return is_name and len(name.encode()) <= _MAX_NAME_BYTES


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


class BadBackupError(ValueError):
    """A backup does not exist, or cannot be read."""


@dataclass(frozen=True)
class JobBackup:
    """One backup.

    Attributes:
        folder: Its folder, named by the ID of its restart.
    """

    folder: Path

    @property
    def restart(self) -> str:
        """ID of the restart, and suffix of the restored jobs' IDs."""
        return self.folder.name

    @property
    def exists(self) -> bool:
        """Whether it was written."""
        return (self.folder / _JOBS).is_file()

    def jobs(self) -> list[SavedJob]:
        """Return its jobs.

        Raises:
            BadBackupError: It does not exist, or is damaged.
        """
        try:
            found = json.loads((self.folder / _JOBS).read_text())
            return [SavedJob.from_json(fields) for fields in found]
        except OSError as error:
            raise BadBackupError(f"There is no backup of jobs in {self.folder} ({error.strerror}).") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadBackupError(f"The backup of jobs in {self.folder} cannot be read: it was changed.") from None

    def add(self, jobs: Iterable[SavedJob], packages: Mapping[str, Path], without: Collection[str] = ()) -> None:
        """Add ``jobs``, replacing those with the same IDs; move ``packages`` into the backup.

        Args:
            without: IDs of jobs to remove.
        """
        kept = {job.job: job for job in (self.jobs() if self.exists else []) if job.job not in without}
        kept |= {job.job: job for job in jobs}
        private_folder(self.folder)
        private_folder(self.folder / _PACKAGES)
        for uri, file in packages.items():
            file.chmod(0o600)
            os.replace(file, self.package(uri))
        write_private_file(self.folder / _JOBS, json.dumps([job.to_json() for job in kept.values()]))

    def package(self, uri: str) -> Path:
        """Return the path of a package's file, which may not exist.

        Raises:
            BadBackupError: Ray does not make such addresses.
        """
        name = uri.removeprefix(PACKAGE_SCHEME)
        if "/" in name or name in ("", ".", ".."):
            raise BadBackupError(f"A job names {uri!r}, which is no package of Ray's.")
        return self.folder / _PACKAGES / name

    def note_ending(self, job: str) -> None:
        """Record that this process ends ``job``, which waits on the new head, for its successor."""
        private_folder(self.folder / _ENDING)
        write_private_file(self._ending(job), "")

    def has_noted_ending(self, job: str) -> bool:
        """Return whether ``note_ending`` recorded it."""
        return self._ending(job).exists()

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Remove all jobs but ``jobs``; without any, remove the whole backup."""
        if wanted := set(jobs):
            kept = [job.to_json() for job in self.jobs() if job.job in wanted]
            write_private_file(self.folder / _JOBS, json.dumps(kept))
        else:
            self.delete()

    def delete(self) -> None:
        """Delete the whole backup."""
        if self.folder.exists():
            gone = self.folder.with_name(f"{self.folder.name}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            self.folder.rename(gone)
            shutil.rmtree(gone)

    def _ending(self, job: str) -> Path:
        return self.folder / _ENDING / sha256(job.encode(errors="surrogatepass")).hexdigest()


def backups_of(folder: Path) -> list[JobBackup]:
    """Return the backups below ``folder``, the newest last."""
    found = [JobBackup(path) for path in folder.iterdir()] if folder.is_dir() else []
    complete = [one for one in found if one.exists and not one.folder.name.endswith(".gone")]
    return sorted(complete, key=lambda one: (one.folder / _JOBS).stat().st_mtime)


def private_folder(folder: Path) -> None:
    """Create ``folder`` if needed; only its owner can access it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
