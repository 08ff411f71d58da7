"""A local folder that travels with a job: what of it goes, how large that is, and whether Ray's API takes it.

What goes is decided by Ray's own walk, with the ``.gitignore`` and ``.rayignore`` files that it honours, so what is
measured here is what is sent. Nothing is read but names and sizes.

That walk follows links. A folder may come from somebody else, so a link takes nothing along that would not go anyway:
one that leads out of the folder, or to what stays here, is refused by its name.
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
        """What goes, as Ray will find it.

        Raises:
            BadWorkingDirError: A link would take along what does not go by itself.
        """
        from ray._private import ray_constants
        from ray._private.runtime_env import packaging

        root = self.path.absolute()
        ignore_files = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
        excludes = list(self.excludes)
        if self.field == "working_dir" and hasattr(ray_constants, "get_runtime_env_default_excludes"):
            excludes = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
        walk = _Walk(root, f"{self.field} {self.path}")
        packaging._dir_travel(root, [packaging._get_excludes(root, excludes)], walk.visit, ignore_files, _NO_LOG)
        walk.check()
        for path in walk.found:
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


class _Walk:
    """What Ray's walk through a folder finds, each entry before what is below it; links are looked at as they come.

    Args:
        what: The folder, for messages.
    """

    def __init__(self, root: Path, what: str) -> None:
        self.found: list[Path] = []
        self._root = root
        self._place = os.path.realpath(root)
        self._what = what
        self._links: set[Path] = set()

    def visit(self, path: Path) -> None:
        """Take ``path``.

        Raises:
            BadWorkingDirError: It is a link out of the folder, or to a folder by way of another such link.
        """
        self.found.append(path)
        if path == self._root or not path.is_symlink() or not path.exists():  # what leads nowhere does not go
            return
        place = os.path.realpath(path)
        if not _is_below(place, self._place):
            raise self._refused(path, f"leads out of it, to {place}")
        # Else two links could have each other below them without end, twice as many at each level.
        is_around = _is_below(os.path.realpath(path.parent), place) or self._is_by_link(path)
        if path.is_dir() and is_around:
            raise self._refused(path, "leads to a folder around it, or from one link to another")
        self._links.add(path)

    def check(self) -> None:
        """See that what links take along goes by itself, too.

        Raises:
            BadWorkingDirError: Something of it does not.
        """
        if not self._links:
            return
        by_link = [path for path in self.found if path in self._links or self._is_by_link(path)]
        itself = {str(path.relative_to(self._root)) for path in self.found}.difference(
            str(path.relative_to(self._root)) for path in by_link
        )
        for path in by_link:
            place = os.path.relpath(os.path.realpath(path), self._place)
            if place not in itself:
                raise self._refused(path, f"leads to {place}, which stays here")

    def _is_by_link(self, path: Path) -> bool:
        return not self._links.isdisjoint(path.parents)

    def _refused(self, path: Path, why: str) -> BadWorkingDirError:
        name = str(path.relative_to(self._root))
        return BadWorkingDirError(
            f"{self._what}: the link {name!r} {why}: leave it out with excludes, .gitignore or .rayignore, or put what "
            "is needed in its place."
        )


def _is_below(place: str, folder: str) -> bool:
    """Whether a place is ``folder`` or below it."""
    return os.path.commonpath([place, folder]) == folder


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
