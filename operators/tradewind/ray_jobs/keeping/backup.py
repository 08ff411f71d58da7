"""The backup of a cluster's jobs: a folder for its owner alone, which is there whole or not at all.

It holds the variables of jobs in clear, so it is deleted once the jobs are back, and nothing of it is ever printed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tradewind.ray_jobs.keeping.kept_job import PACKAGE_SCHEME, KeptJob

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

    def jobs(self) -> list[KeptJob]:
        """The jobs in it.

        Raises:
            BadBackupError: It is not there, or not as it was written.
        """
        try:
            found = json.loads((self.folder / _JOBS).read_text())
            return [KeptJob.from_json(fields) for fields in found]
        except OSError as error:
            raise BadBackupError(f"There is no backup of jobs in {self.folder} ({error.strerror}).") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadBackupError(f"The backup of jobs in {self.folder} cannot be read: it was changed.") from None

    def add(self, jobs: Iterable[KeptJob], packages: Mapping[str, Path], without: Collection[str] = ()) -> None:
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
        _write_private(self.folder / _JOBS, json.dumps([job.to_json() for job in kept.values()]))

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
        _write_private(self._ending(job), "")

    def is_ended_by_us(self, job: str) -> bool:
        """Whether that was written down."""
        return self._ending(job).exists()

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forget all but ``jobs``; the whole backup, if there are none."""
        if wanted := set(jobs):
            kept = [job.to_json() for job in self.jobs() if job.job in wanted]
            _write_private(self.folder / _JOBS, json.dumps(kept))
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


def _write_private(file: Path, text: str) -> None:
    aside = file.with_name(f".{os.getpid()}.new")  # within the folder, so that nobody else can put one there
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(aside, file)
