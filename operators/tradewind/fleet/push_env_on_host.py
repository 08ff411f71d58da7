"""Script of each host of a cluster: update the files of its environment.

The client sends the script's text, so it needs only Python's standard library, from 3.8 on. The host fetches the values
with its own rights into files for its user alone; no value is on a command line or printed. If a value is missing,
nothing changes. Else one atomic swap replaces the whole folder: no process finds old values beside new ones, even if
the script is killed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

FETCH_S = 120.0
_RAYLET = "raylet"
_ASIDE = ".new-"
_OLD_S = 3600.0
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP)


def push(order: dict[str, Any]) -> dict[str, Any]:
    """Update the files; return the changes, or those of a dry run, as JSON.

    Args:
        order: ``folder`` below the home, ``secrets`` (variable → its version in Secret Manager), ``is_dry``.
    """
    raylets = _raylets()
    if not raylets:
        return {"ray": False}
    folder = os.path.join(os.path.expanduser("~"), order["folder"])
    above = os.path.dirname(folder)
    os.makedirs(above, mode=0o700, exist_ok=True)
    _forget_old(above)
    aside = tempfile.mkdtemp(prefix=_ASIDE, dir=above)
    try:
        for name, version in order["secrets"].items():
            why = _fetched(version, os.path.join(aside, name))
            if why:
                return {"ray": True, "why": f"{version} cannot be read there: {why}"}
        return _compared(order, folder, aside, raylets)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _compared(order: dict[str, Any], folder: str, aside: str, raylets: list[dict[bytes, bytes]]) -> dict[str, Any]:
    names = sorted(order["secrets"])
    new = {name: _content(os.path.join(aside, name)) for name in names}
    changed = [name for name in names if not _is_as(os.path.join(folder, name), new[name])]
    existing = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    removed = [name for name in existing if name not in new]
    if not order["is_dry"] and (changed or removed or not os.path.isdir(folder)):
        _put(aside, folder)
    elif not order["is_dry"]:
        os.chmod(folder, 0o700)
    # Of processes that run, the variables stay what they are.
    others = [name for name in names if any(env.get(name.encode()) != new[name].rstrip(b"\n") for env in raylets)]
    others += [name for name in removed if any(name.encode() in env for env in raylets)]
    return {"ray": True, "changed": changed, "removed": removed, "restart": others}


def _put(aside: str, folder: str) -> None:
    """Swap the folders ``aside`` and ``folder``; move the former if the latter does not exist."""
    if not os.path.lexists(folder):
        os.rename(aside, folder)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        refused = libc.renameat2(_AT_FDCWD, os.fsencode(aside), _AT_FDCWD, os.fsencode(folder), _RENAME_EXCHANGE)
    except AttributeError:  # a C library without it
        refused, why = -1, errno.ENOSYS
    else:
        why = ctypes.get_errno()
    if refused and why not in _CANNOT:
        raise OSError(why, os.strerror(why), folder)
    if refused:  # for a moment there is none, and processes see what Ray was started with
        before = tempfile.mkdtemp(prefix=_ASIDE, dir=os.path.dirname(folder))
        os.rename(folder, os.path.join(before, "environment"))
        os.rename(aside, folder)
        shutil.rmtree(before, ignore_errors=True)


def _fetched(version: str, file: str) -> str:
    """Fetch a value into ``file``; return why that failed, empty if it succeeded."""
    _, project, _, secret, _, number = version.split("/")
    words = ["gcloud", "secrets", "versions", "access", number, "--quiet", "--project=" + project]
    words += ["--secret=" + secret, "--out-file=" + file]
    try:
        null = subprocess.DEVNULL
        done = subprocess.run(words, stdin=null, stdout=null, stderr=subprocess.PIPE, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if done.returncode or not os.path.exists(file):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"gcloud ended with {done.returncode}"
    os.chmod(file, 0o600)
    return "its value holds a NUL, which no variable can" if b"\0" in _content(file) else ""


def _is_as(file: str, content: bytes) -> bool:
    """Whether ``file`` holds ``content``, for its owner alone."""
    try:
        return os.stat(file).st_mode & 0o777 == 0o600 and _content(file) == content
    except OSError:
        return False


def _content(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read()


def _forget_old(above: str) -> None:
    """Remove the leftovers of killed runs."""
    for name in os.listdir(above):
        path = os.path.join(above, name)
        with suppress(FileNotFoundError):  # another one has just ended
            if name.startswith(_ASIDE) and time.time() - os.stat(path).st_mtime > _OLD_S:
                shutil.rmtree(path, ignore_errors=True)


def _raylets() -> list[dict[bytes, bytes]]:
    """Return the environments of this user's Ray nodes here."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as comm:
                if comm.read().strip() != _RAYLET:
                    continue
            entries = _content(f"/proc/{pid}/environ").split(b"\0")
        except OSError:
            continue
        env = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        if env.get(b"HOME", b"").decode() == os.path.expanduser("~"):
            found.append(env)
    return found


if __name__ == "__main__":
    print(json.dumps(push(json.loads(sys.argv[1]))))
