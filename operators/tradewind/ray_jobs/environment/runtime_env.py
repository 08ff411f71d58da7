"""A runtime_env that Ray will read as it was meant: known fields, plain types, and folders that can travel."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.ray_jobs.environment.secret_signs import shown_word
from tradewind.ray_jobs.environment.working_dir import (
    NEVER_NEEDED,
    PACKAGE_SUFFIXES,
    SELDOM_NEEDED,
    TravellingFolder,
    check_size,
)
from tradewind.ray_jobs.errors import BadRuntimeEnvError, BadWorkingDirError

FIELDS: Final = frozenset({
    "conda", "config", "container", "env_vars", "excludes", "image_uri", "java_jars", "nsight", "pip",
    "py_executable", "py_modules", "rocprof_sys", "uv", "working_dir", "worker_process_setup_hook",
})  # fmt: skip
"""What Ray knows. It takes others without a word, for plugins, so that a misspelt one would do nothing."""

URI_SCHEMES: Final = ("abfss", "azure", "file", "gcs", "gs", "http", "https", "local", "s3")
_ONE_INSTALLER: Final = ("pip", "uv", "conda")


def check_fields(runtime_env: Mapping[str, Any]) -> None:
    """Refuse what can be seen to be wrong without looking at the disk.

    Raises:
        BadRuntimeEnvError: Something is.
    """
    if not isinstance(runtime_env, Mapping):
        raise BadRuntimeEnvError(f"runtime_env is a {type(runtime_env).__name__}: give a dictionary.")
    for name in runtime_env:
        if name not in FIELDS and not str(name).startswith("_"):
            near = difflib.get_close_matches(str(name), FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(FIELDS))}."
            raise BadRuntimeEnvError(f"runtime_env has no field {shown_word(name, FIELDS)}: {hint}")
    installers = [name for name in _ONE_INSTALLER if runtime_env.get(name)]
    if len(installers) > 1:
        raise BadRuntimeEnvError(f"runtime_env has {' and '.join(installers)}: Ray takes only one of them.")
    _check_env_vars(runtime_env.get("env_vars") or {})
    excludes = runtime_env.get("excludes") or []
    if not isinstance(excludes, (list, tuple)) or not all(isinstance(each, str) for each in excludes):
        raise BadRuntimeEnvError("runtime_env['excludes'] must be a list of patterns as in a .gitignore file.")


def prepared(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime_env to submit: its folders are there and small enough, and what nobody needs stays here.

    Local folders get our excludes before the caller's, whose patterns therefore win: ``excludes=["!/docs"]`` brings
    ``docs`` back.

    Raises:
        BadRuntimeEnvError: A field is unknown or of the wrong kind.
        BadWorkingDirError: A folder cannot travel.
    """
    check_fields(runtime_env)
    ready = {name: value for name, value in runtime_env.items() if value is not None}
    working_dir = _local(ready.get("working_dir"), "working_dir")
    modules = [local for module in _modules(ready) if (local := _local(module, "py_modules")) is not None]
    folders = [path for path in (working_dir, *modules) if path is not None and not path.is_file()]
    if folders:
        # For Ray, one list of excludes serves all folders; a module may well have a folder named logs in it.
        ours = NEVER_NEEDED if modules else (*NEVER_NEEDED, *SELDOM_NEEDED)
        ready["excludes"] = [*ours, *_with_contents(ready.get("excludes") or [])]
    if working_dir is not None:
        ready["working_dir"] = str(working_dir)
        _check_working_dir(working_dir, ready.get("excludes") or [])
    if "py_modules" in ready:
        ready["py_modules"] = [str(module) for module in _modules(ready)]
    for module in modules:
        _check_module(module, ready.get("excludes") or [])
    return ready


def _with_contents(excludes: Sequence[str]) -> Iterator[str]:
    """The patterns; for Ray, unlike git, one that brings a folder back does not bring back what is in it."""
    for pattern in excludes:
        yield pattern
        if pattern.startswith("!") and not pattern.endswith("*"):
            yield f"{pattern.rstrip('/')}/**"


def _check_working_dir(path: Path, excludes: Sequence[str]) -> None:
    if path.is_file() and path.name.endswith(PACKAGE_SUFFIXES):
        check_size(f"working_dir {path}", path.stat().st_size)
    else:
        TravellingFolder(path, excludes).check()


def _check_module(path: Path, excludes: Sequence[str]) -> None:
    if not path.is_file():
        TravellingFolder(path, excludes, "py_modules", keeps_name=True).check()
    elif path.suffix not in (".py", ".whl"):
        raise BadWorkingDirError(f"py_modules {path} is neither a folder nor a .py or .whl file: give one of these.")
    else:
        check_size(f"py_modules {path}", path.stat().st_size)


def _modules(runtime_env: Mapping[str, Any]) -> list[Any]:
    modules = runtime_env.get("py_modules") or []
    if not isinstance(modules, (list, tuple)):
        raise BadRuntimeEnvError("runtime_env['py_modules'] must be a list of folders, files or URIs.")
    return list(modules)


def _local(value: Any, field: str) -> Path | None:
    """The path on this machine, or None for a URI, which the cluster fetches by itself."""
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value):
        raise BadWorkingDirError(
            f"{field} is no path (it is {'empty' if value == '' else f'a {type(value).__name__}'}): give a folder, or "
            "the URI of an archive."
        )
    scheme, mark, rest = str(value).partition("://")
    if not mark:
        return Path(value)
    if scheme not in URI_SCHEMES:
        raise BadWorkingDirError(
            f"{field} is a URI (not shown, for it may hold a secret) of another kind: Ray can fetch only from "
            f"{', '.join(URI_SCHEMES)}."
        )
    is_archive = rest.partition("?")[0].endswith((*PACKAGE_SUFFIXES, ".whl"))
    if scheme not in ("gcs", "local") and not is_archive:
        raise BadWorkingDirError(
            f"{field} is a URI (not shown, for it may hold a secret) that is no archive: Ray fetches whole archives "
            f"({', '.join(PACKAGE_SUFFIXES)}), not folders."
        )
    return None


def _check_env_vars(env_vars: Any) -> None:
    if not isinstance(env_vars, Mapping):
        raise BadRuntimeEnvError("runtime_env['env_vars'] must be a dictionary of names and texts.")
    for number, (name, value) in enumerate(env_vars.items(), 1):
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise BadRuntimeEnvError(
                f"runtime_env['env_vars']: variable {number} (not shown, for it may hold a secret) has no valid name."
            )
        if not isinstance(value, str):
            raise BadRuntimeEnvError(
                f"The environment variable {shown_word(name)} is of type {type(value).__name__}: Ray takes only text."
            )
