"""A local folder that travels with a job: what of it goes, how large that is, and whether Ray's API takes it.

What goes is decided by Ray's own walk, with the ``.gitignore`` and ``.rayignore`` files that it honours, so what is
measured here is what is sent. Nothing is read but names and sizes.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tradewind.ray_jobs.errors import BadWorkingDirError

NEVER_NEEDED: Final = (
    ".git", ".hg", ".svn",
    "__pycache__", "*.pyc", "*.pyo", ".venv", "venv", "node_modules", "*.egg-info",
    ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints",
    ".env", "*.pack", ".DS_Store", ".idea", ".vscode", ".rehearsal", ".drill", ".demo",
)  # fmt: skip
"""Left out wherever they lie: history, environments, caches, ``.env``, which tends to hold secrets, and the tokens and
growing logs of what this package has running beside the code."""

SELDOM_NEEDED: Final = ("/logs", "/outputs", "/wandb", "/mlruns", "/dist", "/docs")
"""Left out right below the working directory, where they hold what runs have left or what only people read."""

_NO_LOG: Final = logging.Logger("tradewind.walk", logging.CRITICAL + 1)  # Ray's walk names each ignore file it finds
PACKAGE_SUFFIXES: Final = (".zip", ".tar.gz", ".tgz", ".tar.xz")
_ZIP_END_BYTES: Final = 22
_ZIP_ENTRY_BYTES: Final = 30 + 46  # its header before the contents, and its line in the table at the end


@dataclass(frozen=True)
class TravellingFile:
    """One entry of the package: a file, or a folder without contents."""

    path: str
    """Relative to the folder."""
    size: int


@dataclass(frozen=True)
class TravellingFolder:
    """A folder on this machine that goes to the cluster as a package.

    Attributes:
        path: The folder.
        excludes: What stays, in the language of ``.gitignore``; the last pattern that fits decides.
        field: Where it was given, for messages.
        keeps_name: Whether the package holds the folder itself (``py_modules``) or what is in it (``working_dir``).
    """

    path: Path
    excludes: Sequence[str]
    field: str = "working_dir"
    keeps_name: bool = False

    def files(self) -> Iterator[TravellingFile]:
        """What goes, as Ray will find it."""
        from ray._private import ray_constants
        from ray._private.runtime_env import packaging

        root = self.path.absolute()
        ignore_files = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
        excludes = list(self.excludes)
        if self.field == "working_dir" and hasattr(ray_constants, "get_runtime_env_default_excludes"):
            excludes = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
        found: list[Path] = []
        packaging._dir_travel(root, [packaging._get_excludes(root, excludes)], found.append, ignore_files, _NO_LOG)
        for path in found:
            is_empty_folder = path != root and path.is_dir() and next(path.iterdir(), None) is None
            if path.is_file() or is_empty_folder:
                yield TravellingFile(str(path.relative_to(root)), path.stat().st_size if path.is_file() else 0)

    def package_bytes(self, files: Sequence[TravellingFile]) -> int:
        """The size of the package, which is a zip file without compression."""
        prefix = len(self.path.name.encode()) + 1 if self.keeps_name else 0
        names = sum(prefix + len(file.path.encode()) for file in files)
        return _ZIP_END_BYTES + sum(file.size for file in files) + _ZIP_ENTRY_BYTES * len(files) + 2 * names

    def check(self) -> None:
        """Refuse what Ray would refuse after reading all of it, and a repository's history.

        Raises:
            BadWorkingDirError: The folder is not there, is too large, or holds a ``.git``.
        """
        _check_is_folder(self.path, self.field)
        files = list(self.files())
        history = next((file.path for file in files if ".git" in Path(file.path).parts), None)
        if history is not None:
            parts = Path(history).parts
            where = Path(*parts[: parts.index(".git") + 1])
            raise BadWorkingDirError(
                f"{self.field} {self.path} would carry {str(where)!r}, the history of a repository: take the pattern "
                "that brings it back ('!.git') out of excludes."
            )
        check_size(f"{self.field} {self.path}", self.package_bytes(files), _largest(files))


def check_size(what: str, size: int, largest: Sequence[tuple[str, int]] = ()) -> None:
    """Refuse a package above the limit.

    Raises:
        BadWorkingDirError: It is.
    """
    limit = package_limit()
    if size < limit:
        return
    names = ", ".join(f"{name} ({_mib(each)})" for name, each in largest)
    raise BadWorkingDirError(
        f"{what} would be a package of {_mib(size)}, and Ray's Jobs API takes less than {_mib(limit)}"
        + (f"; the largest in it are {names}" if names else "")
        + ": leave out what the job does not read, with excludes, .gitignore or .rayignore, or give the URI of an "
        "archive in a bucket."
    )


def package_limit() -> int:
    """The size that a package must stay below: of Ray's store, and of one request to its dashboard."""
    from ray._private import ray_constants
    from ray._private.runtime_env import packaging

    request: int = getattr(ray_constants, "DASHBOARD_CLIENT_MAX_SIZE", packaging.GCS_STORAGE_MAX_SIZE)
    return min(request, packaging.GCS_STORAGE_MAX_SIZE)


def _check_is_folder(path: Path, field: str) -> None:
    if not path.exists():
        raise BadWorkingDirError(
            f"{field} {path} does not exist on this machine: give a folder that does, or the URI of an archive."
        )
    if not path.is_dir():
        raise BadWorkingDirError(f"{field} {path} is a file: give the folder that holds it.")


def _largest(files: Sequence[TravellingFile], count: int = 5) -> list[tuple[str, int]]:
    """The largest entries right below the folder, with all that is in them."""
    sizes: Counter[str] = Counter()
    for file in files:
        first, *rest = Path(file.path).parts
        sizes[f"{first}/" if rest else first] += file.size
    return sizes.most_common(count)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
