"""Runtime environment of a job: known fields, plain types, and local folders that can be uploaded.

Ray's own walk selects the files of a folder, with the ``.gitignore`` and ``.rayignore`` files that it honours, so the
measured size is the uploaded size. Only names and sizes are read.

That walk follows links, and a folder may come from another user. A link may not add files that the walk would not
upload anyway: one that leads out of the folder, or to an excluded file, is refused by its name. So is what Ray would
wait for without end (a named pipe) or fail at: devices, sockets, unreadable files, names that are not UTF-8.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.secret_patterns import redacted_name
from tradewind.storage.bounded_read import SMALL, read_local
from tradewind.text import single_line

FIELDS: Final = frozenset({
    "conda", "config", "container", "env_vars", "excludes", "image_uri", "java_jars", "nsight", "pip",
    "py_executable", "py_modules", "rocprof_sys", "uv", "working_dir", "worker_process_setup_hook",
})  # fmt: skip
"""Fields that Ray knows. It accepts others, for plugins, so a misspelt one would have no effect."""
URI_SCHEMES: Final = ("abfss", "azure", "file", "gcs", "gs", "http", "https", "local", "s3")
_INSTALLERS: Final = ("pip", "uv", "conda")
ALWAYS_EXCLUDED: Final = (
    ".git", ".hg", ".svn",
    "__pycache__", "*.pyc", "*.pyo", ".venv", "venv", "node_modules", "*.egg-info",
    ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints",
    ".env", "*.pack", ".DS_Store", ".idea", ".vscode", ".rehearsal", ".drill", ".demo",
)  # fmt: skip
"""Excluded at any depth: history, environments, caches, and this package's tokens and growing logs.

``.env`` often holds secrets.
"""
EXCLUDED_AT_TOP: Final = ("/logs", "/outputs", "/wandb", "/mlruns", "/dist", "/docs")
"""Excluded directly below the working directory: outputs of runs, and documentation."""
_NO_LOG: Final = logging.Logger("tradewind.walk", logging.CRITICAL + 1)  # Ray's walk logs each ignore file
PACKAGE_SUFFIXES: Final = (".zip", ".tar.gz", ".tgz", ".tar.xz")
_MAX_DEPTH: Final = 100
"""Folders below each other that are uploaded; Ray's walk calls itself for each."""
_MAX_PATTERNS: Final = 5_000
"""Patterns of one list or ignore file: Ray compares each name with all of them."""
_MAX_STARS: Final = (3, 5)
"""Stars in one part of a pattern and in all: the time of a comparison has their number as its exponent."""
MAX_ARGUMENT_BYTES: Final = 128 << 10
"""Exclusive limit of Linux for a variable, or for an argument such as the entrypoint of Ray's shell."""
_MAX_VARIABLES_BYTES: Final = 1 << 20
_ZIP_END_BYTES: Final = 22
_ZIP_ENTRY_BYTES: Final = 30 + 46  # local header and central directory entry


@dataclass(frozen=True)
class PackagedFile:
    """One entry of the package: a file, or an empty folder."""

    path: str
    """Relative to the folder."""
    size: int


@dataclass(frozen=True)
class WorkingDirPackage:
    """A folder on this machine that is uploaded as a package.

    Attributes:
        path: The folder.
        excludes: Patterns in the language of ``.gitignore``; the last matching one decides.
        field: The field that names it, for messages.
        keeps_name: Whether the package holds the folder itself (``py_modules``) or its contents (``working_dir``).
    """

    path: Path
    excludes: Sequence[str]
    field: str = "working_dir"
    keeps_name: bool = False

    def files(self) -> Iterator[PackagedFile]:
        """Yield the uploaded files, as Ray's walk finds them.

        Raises:
            BadRequestError: A link adds files that would not be uploaded otherwise, an entry cannot be uploaded, or
                patterns are invalid.
        """
        from ray._private import ray_constants
        from ray._private.runtime_env import packaging

        root = self.path.absolute()
        ignore_files = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
        excludes = list(self.excludes)
        if self.field == "working_dir" and hasattr(ray_constants, "get_runtime_env_default_excludes"):
            excludes = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
        what = f"{self.field} {self.path}"
        check_patterns(excludes, f"excludes of {what}")
        walk = _Walk(root, what, (".gitignore", ".rayignore") if ignore_files else (".rayignore",))
        try:
            packaging._dir_travel(root, [packaging._get_excludes(root, excludes)], walk.visit, ignore_files, _NO_LOG)
        except OSError as error:
            raise BadRequestError(f"{what} cannot be read: {error.filename!r}: {error.strerror}.") from None
        walk.check()
        for path in walk.found:
            is_empty_folder = path != root and path.is_dir() and next(path.iterdir(), None) is None
            if path.is_file() or is_empty_folder:
                yield PackagedFile(str(path.relative_to(root)), path.stat().st_size if path.is_file() else 0)

    def _exclusion(self, file: str) -> str:
        """Name a pattern that excludes the file."""
        from ray._private.runtime_env import packaging

        places = [(self.path, f"excludes pattern {each!r}", each) for each in self.excludes]
        for folder in (self.path, *reversed((self.path / file).relative_to(self.path).parents[:-1])):
            for ignore in (self.path / folder / name for name in (".gitignore", ".rayignore")):
                lines = read_local(ignore, SMALL).text.splitlines() if ignore.is_file() else []
                places += [
                    (ignore.parent, f"line {number} of {ignore}, {each!r},", each)
                    for number, each in enumerate(lines, 1)
                ]
        path = self.path.absolute() / file
        found = (where for folder, where, each in places if packaging._get_excludes(folder, [each])(path))
        return next(found, "a pattern")

    def package_bytes(self, files: Sequence[PackagedFile]) -> int:
        """Return the size of the package, an uncompressed zip file."""
        prefix = len(self.path.name.encode()) + 1 if self.keeps_name else 0
        names = sum(prefix + len(file.path.encode()) for file in files)
        return _ZIP_END_BYTES + sum(file.size for file in files) + _ZIP_ENTRY_BYTES * len(files) + 2 * names

    def check(self, needed: Iterable[str] = ()) -> None:
        """Refuse a repository's history, and what Ray would refuse after reading all of it.

        Raises:
            BadRequestError: The folder does not exist, is too large, holds a ``.git``, or leaves out a file of
                ``needed``, whose names are relative to it.
        """
        _check_is_folder(self.path, self.field)
        files = list(self.files())
        if missing := sorted({*needed} - {file.path for file in files}):
            raise BadRequestError(
                f"{self.field} {self.path} leaves out {missing[0]!r}, which the job imports: "
                f"{self._exclusion(missing[0])} excludes it. Remove the pattern, or move the file."
            )
        history = next((file.path for file in files if ".git" in Path(file.path).parts), None)
        if history is not None:
            parts = Path(history).parts
            where = Path(*parts[: parts.index(".git") + 1])
            raise BadRequestError(
                f"{self.field} {self.path} would include {str(where)!r}, the history of a repository: remove the "
                "pattern that includes it ('!.git') from excludes."
            )
        check_size(f"{self.field} {self.path}", self.package_bytes(files), _largest(files))


class _Walk:
    """Entries that Ray's walk through a folder finds, parents first; links are checked as they are found.

    Args:
        what: The folder, for messages.
        ignore_names: Names of the ignore files that Ray's walk reads.
    """

    def __init__(self, root: Path, what: str, ignore_names: Sequence[str]) -> None:
        self.found: list[Path] = []
        self._root = root
        self._real_root = os.path.realpath(root)
        self._what = what
        self._ignore_names = ignore_names
        self._links: set[Path] = set()
        self._check_ignore_files(root)

    def visit(self, path: Path) -> None:
        """Add ``path``.

        Raises:
            BadRequestError: It cannot be uploaded, or is a link out of the folder, or to a folder reached through
                another such link.
        """
        self.found.append(path)
        if why := self._why_not_uploadable(path):
            raise self._refusal(path, why)
        if path.is_dir():
            for entry in os.scandir(path):
                if not entry.is_file(follow_symlinks=False):
                    self._check_ignore_files(Path(entry.path))
        if path != self._root and path.is_symlink() and path.exists():  # dangling links are not uploaded
            self._check_link(path)

    def _why_not_uploadable(self, path: Path) -> str | None:
        """Explain why Ray could not pack the entry; None if it could."""
        if why_no_text(path.name) is not None:
            return "has a name that is not UTF-8"
        if len(path.parts) - len(self._root.parts) > _MAX_DEPTH:
            return f"is below more than {_MAX_DEPTH} folders"
        try:
            mode = path.stat().st_mode
        except OSError:  # it leads nowhere, or was just removed: Ray skips it too
            return None
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return "is a named pipe, a socket or a device"
        needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
        if not os.access(path, needed, effective_ids=os.access in os.supports_effective_ids):
            return "may not be read by this user"
        return None

    def _check_ignore_files(self, folder: Path) -> None:
        """Refuse ignore files that Ray's walk, which reads them before it calls ``visit``, could not read."""
        for file in (folder / name for name in self._ignore_names):
            if file.is_file():
                content = read_local(file, SMALL)
                if content.flaw is not None:
                    raise BadRequestError(f"{self._what}: {file} cannot be used: {content.flaw}.")
                check_patterns(content.text.splitlines(), str(file))

    def _check_link(self, path: Path) -> None:
        place = os.path.realpath(path)
        if not _is_below(place, self._real_root):
            raise self._refusal(path, f"leads out of it, to {place}", "the link")
        # Otherwise two links could contain each other without end, twice as many at each level.
        is_around = _is_below(os.path.realpath(path.parent), place) or self._is_by_link(path)
        if path.is_dir() and is_around:
            raise self._refusal(path, "leads to a folder around it, or from one link to another", "the link")
        self._links.add(path)

    def check(self) -> None:
        """Require that targets of links are also uploaded without the links.

        Raises:
            BadRequestError: A target is not.
        """
        if not self._links:
            return
        by_link = [path for path in self.found if path in self._links or self._is_by_link(path)]
        itself = {str(path.relative_to(self._root)) for path in self.found}.difference(
            str(path.relative_to(self._root)) for path in by_link
        )
        for path in by_link:
            place = os.path.relpath(os.path.realpath(path), self._real_root)
            if place not in itself:
                raise self._refusal(path, f"leads to {place}, which is not uploaded", "the link")

    def _is_by_link(self, path: Path) -> bool:
        return not self._links.isdisjoint(path.parents)

    def _refusal(self, path: Path, why: str, kind: str = "the entry") -> BadRequestError:
        name = str(path.relative_to(self._root))
        return BadRequestError(
            f"{self._what}: {kind} {name!r} {why}: exclude it with excludes, .gitignore or .rayignore, or replace it "
            "by files that the job needs."
        )


def _is_below(place: str, folder: str) -> bool:
    """Return whether ``place`` is ``folder`` or below it."""
    return os.path.commonpath([place, folder]) == folder


def check_patterns(patterns: Sequence[str], where: str) -> None:
    """Refuse lines that are no patterns of ``.gitignore``, and too many of them.

    Raises:
        BadRequestError: The first wrong line.
    """
    from ray._private.runtime_env import packaging

    if len(patterns) > _MAX_PATTERNS:
        raise BadRequestError(f"{where} has {len(patterns):,} patterns, at most {_MAX_PATTERNS:,} are allowed.")
    for number, pattern in enumerate(patterns, 1):
        stars = [1 if part == "**" else part.count("*") for part in pattern.split("/")]
        try:
            if max(stars) > _MAX_STARS[0] or sum(stars) > _MAX_STARS[1]:
                raise ValueError
            packaging._get_excludes(Path("/"), [pattern])
        except (ValueError, IndexError, re.error):
            shown = single_line(pattern, 60)
            raise BadRequestError(
                f"{where}: line {number}, {shown!r}, is no pattern as in a .gitignore file, or has too many stars."
            ) from None


def check_size(what: str, size: int, largest: Sequence[tuple[str, int]] = ()) -> None:
    """Refuse a package above the limit.

    Raises:
        BadRequestError: The package is above it.
    """
    limit = package_limit()
    if size < limit:
        return
    names = ", ".join(f"{name} ({_mib(each)})" for name, each in largest)
    raise BadRequestError(
        f"{what} would be a package of {_mib(size)}, and Ray's Jobs API takes less than {_mib(limit)}"
        + (f"; the largest in it are {names}" if names else "")
        + ": exclude files that the job does not read, with excludes, .gitignore or .rayignore, or give the URI of an "
        "archive in a bucket."
    )


def package_limit() -> int:
    """Return the exclusive size limit of a package, from Ray's store and one dashboard request."""
    from ray._private import ray_constants
    from ray._private.runtime_env import packaging

    request: int = getattr(ray_constants, "DASHBOARD_CLIENT_MAX_SIZE", packaging.GCS_STORAGE_MAX_SIZE)
    return min(request, packaging.GCS_STORAGE_MAX_SIZE)


def _check_is_folder(path: Path, field: str) -> None:
    if path.is_file():
        raise BadRequestError(f"{field} {path} is a file: give the folder that holds it.")
    if not path.is_dir():
        raise BadRequestError(f"{field} {path} is a named pipe, a socket or a device: give a folder.")


def _largest(files: Sequence[PackagedFile], count: int = 5) -> list[tuple[str, int]]:
    """Return the largest entries directly below the folder, with their contents."""
    sizes: Counter[str] = Counter()
    for file in files:
        first, *rest = Path(file.path).parts
        sizes[f"{first}/" if rest else first] += file.size
    return sizes.most_common(count)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def check_fields(runtime_env: Mapping[str, Any]) -> None:
    """Refuse mistakes that are visible without disk access.

    Raises:
        BadRequestError: There is a mistake.
    """
    if not isinstance(runtime_env, Mapping):
        raise BadRequestError(f"runtime_env is a {type(runtime_env).__name__}: give a dictionary.")
    for name in runtime_env:
        if name not in FIELDS and not str(name).startswith("_"):
            near = difflib.get_close_matches(str(name), FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(FIELDS))}."
            raise BadRequestError(f"runtime_env has no field {redacted_name(name, FIELDS)}: {hint}")
    installers = [name for name in _INSTALLERS if runtime_env.get(name)]
    if len(installers) > 1:
        raise BadRequestError(f"runtime_env has {' and '.join(installers)}: Ray takes only one of them.")
    _check_is_json(runtime_env)
    _check_env_vars(runtime_env.get("env_vars") or {})
    excludes = runtime_env.get("excludes") or []
    if not isinstance(excludes, (list, tuple)) or not all(isinstance(each, str) for each in excludes):
        raise BadRequestError("runtime_env['excludes'] must be a list of patterns as in a .gitignore file.")


def _check_is_json(runtime_env: Mapping[str, Any]) -> None:
    try:
        # Variables have their own check.
        json.dumps({**runtime_env, "env_vars": None}, default=_as_json, allow_nan=False)
    except RecursionError:
        raise BadRequestError("runtime_env nests too deep: write its values flatter.") from None
    except ValueError as error:  # a circle, or a number that Python does not write
        raise BadRequestError(f"runtime_env cannot be sent as JSON ({error}): write its values out.") from None
    except TypeError as error:
        raise BadRequestError(f"runtime_env cannot be sent as JSON ({error}): give texts, numbers and lists.") from None


def _as_json(value: object) -> str:
    if isinstance(value, Path):  # of a folder or file, which is sent as a package
        return str(value)
    raise TypeError(f"it holds a {type(value).__name__}")


def why_no_text(text: str) -> str | None:
    """Explain why no process can have the text as a variable or an argument; None if one can."""
    if "\0" in text:
        return "holds a NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not UTF-8 (it holds a lone surrogate)"
    return None


def prepare_runtime_env(runtime_env: Mapping[str, Any], needed: Iterable[str] = ()) -> dict[str, Any]:
    """Return the runtime_env to submit, with checked folders and without excluded files.

    This package's excludes precede the caller's, whose patterns therefore win: ``excludes=["!/docs"]`` includes
    ``docs``.

    Raises:
        BadRequestError: A field is unknown or of the wrong type, or a folder cannot be uploaded; or a local
            ``working_dir`` leaves out a file of ``needed``.
    """
    check_fields(runtime_env)
    ready = {name: value for name, value in runtime_env.items() if value is not None}
    working_dir = _local(ready.get("working_dir"), "working_dir")
    modules = [local for module in _modules(ready) if (local := _local(module, "py_modules")) is not None]
    folders = [path for path in (working_dir, *modules) if path is not None and not path.is_file()]
    if folders:
        # Ray has one list of excludes for all folders, and a module may contain a folder named logs.
        at_top = [each for each in EXCLUDED_AT_TOP if not any((module / each[1:]).exists() for module in modules)]
        ours = (*ALWAYS_EXCLUDED, *at_top)
        ready["excludes"] = [*ours, *_with_contents(ready.get("excludes") or [])]
    if working_dir is not None:
        ready["working_dir"] = str(working_dir)
        _check_working_dir(working_dir, ready.get("excludes") or [], needed)
    if "py_modules" in ready:
        ready["py_modules"] = [str(module) for module in _modules(ready)]
    for module in modules:
        _check_module(module, ready.get("excludes") or [])
    for field in ("pip", "uv"):
        if isinstance(ready.get(field), str):
            ready[field] = _requirements(_existing(Path(ready[field]), field), field)
    return ready


def _with_contents(excludes: Sequence[str]) -> Iterator[str]:
    """Yield the patterns, with contents: in Ray, unlike git, ``!folder`` does not include them."""
    for pattern in excludes:
        yield pattern
        if pattern.startswith("!") and not pattern.endswith("*"):
            yield f"{pattern.rstrip('/')}/**"


def _requirements(file: Path, field: str) -> list[str]:
    """Return the lines of a requirements file, as Ray would send them, so that the checks of secrets see them."""
    content = read_local(file, SMALL)
    if content.flaw is not None:
        raise BadRequestError(f"{field} {file} cannot be used: {content.flaw}.")
    return content.text.strip().split("\n")


def _check_working_dir(path: Path, excludes: Sequence[str], needed: Iterable[str]) -> None:
    if path.is_file() and path.name.endswith(PACKAGE_SUFFIXES):
        check_size(f"working_dir {path}", path.stat().st_size)
    else:
        WorkingDirPackage(path, excludes).check(needed)


def _check_module(path: Path, excludes: Sequence[str]) -> None:
    if not path.is_file():
        WorkingDirPackage(path, excludes, "py_modules", keeps_name=True).check()
    elif path.suffix not in (".py", ".whl"):
        raise BadRequestError(f"py_modules {path} is neither a folder nor a .py or .whl file: give one of these.")
    else:
        check_size(f"py_modules {path}", path.stat().st_size)


def _modules(runtime_env: Mapping[str, Any]) -> list[Any]:
    modules = runtime_env.get("py_modules") or []
    if not isinstance(modules, (list, tuple)):
        raise BadRequestError("runtime_env['py_modules'] must be a list of folders, files or URIs.")
    return list(modules)


def _local(value: Any, field: str) -> Path | None:
    """Return a local path, or None for a URI, which the cluster fetches itself."""
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value):
        raise BadRequestError(
            f"{field} is no path (it is {'empty' if value == '' else f'a {type(value).__name__}'}): give a folder, or "
            "the URI of an archive."
        )
    scheme, mark, rest = str(value).partition("://")
    if not mark:
        return _existing(Path(value), field)
    if scheme not in URI_SCHEMES:
        raise BadRequestError(
            f"{field} is a URI (not shown, as it may hold a secret) of another kind: Ray can fetch only from "
            f"{', '.join(URI_SCHEMES)}."
        )
    is_archive = rest.partition("?")[0].endswith((*PACKAGE_SUFFIXES, ".whl"))
    if scheme not in ("gcs", "local") and not is_archive:
        raise BadRequestError(
            f"{field} is a URI (not shown, as it may hold a secret) that is no archive: Ray fetches whole archives "
            f"({', '.join(PACKAGE_SUFFIXES)}), not folders."
        )
    return None


def _existing(path: Path, field: str) -> Path:
    """Return the path of a file or folder that exists and that Ray could read."""
    try:
        os.stat(os.fsencode(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        why = "does not exist on this machine"
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except ValueError:
        why = "is no path: it holds a NUL, or is not UTF-8"
    else:
        if os.access(path, os.R_OK):
            return path
        why = "may not be read by this user"
    raise BadRequestError(
        f"{field} {single_line(path)} {why}: give a folder that this user may read, or the URI of an archive."
    )


def _check_env_vars(env_vars: Any) -> None:
    if not isinstance(env_vars, Mapping):
        raise BadRequestError("runtime_env['env_vars'] must be a dictionary of names and texts.")
    size = 0
    for number, (name, value) in enumerate(env_vars.items(), 1):
        if not isinstance(name, str) or not name or "=" in name or why_no_text(name):
            raise BadRequestError(
                f"runtime_env['env_vars']: variable {number} (not shown, as it may hold a secret) has no valid name."
            )
        if not isinstance(value, str):
            raise BadRequestError(
                f"The environment variable {redacted_name(name)} is of type {type(value).__name__}: Ray takes only "
                "text."
            )
        size += len(name) + len(value)
        if len(value) >= MAX_ARGUMENT_BYTES or size > _MAX_VARIABLES_BYTES:
            raise BadRequestError(
                f"The environment variable {redacted_name(name)} makes runtime_env['env_vars'] too large: a variable "
                f"has less than {MAX_ARGUMENT_BYTES >> 10} KiB, all have at most {_MAX_VARIABLES_BYTES >> 20} MiB: "
                "write the rest into a file."
            )
        if why := why_no_text(value):
            raise BadRequestError(
                f"The value of the environment variable {redacted_name(name)} {why}, which no variable can: remove it."
            )
