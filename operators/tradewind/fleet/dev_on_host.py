"""Script of each host of a development session: receive files, and run commands, in one folder.

The client sends the script's text, so it needs only Python's standard library, from 3.8 on. A command and its
descendants end when the client closes their standard input. All processes carry the mark of the slice's holder, which
ends the remaining ones when the slice is released.

Only files below the folder are written or removed: a link in the place of one of its folders, which a command may have
made there, is never followed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO

LISTING = ".tradewind-files"
"""First entry of the tar file, and the file beside the tree: path -> size, time of change in ns, mode."""
MAX_LISTING_BYTES = 32 << 20
RUN_VARIABLE = "TRADEWIND_DEV_RUN"
GRACE_S = 5.0


def tree_of(order: dict[str, Any]) -> str:
    """Return the folder with the user's files."""
    return os.path.join(os.path.expanduser("~"), order["folder"], order["session"], "tree")


def have(order: dict[str, Any]) -> None:
    """Print the files that were sent before and are unchanged: path -> size and time of change."""
    tree, found = tree_of(order), {}
    for path, (size, changed_ns, _) in _listing(tree).items():
        with suppress(OSError):
            facts = os.lstat(os.path.join(tree, path))
            if _link_above(tree, path) is None and (facts.st_size, facts.st_mtime_ns) == (size, changed_ns):
                found[path] = [size, changed_ns]
    print(json.dumps(found))


def put(order: dict[str, Any], stream: BinaryIO) -> None:
    """Update the tree from ``stream``, a tar of a listing and new files; remove files that the listing lacks."""
    tree = _cwd(order)
    before = _listing(tree)
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        listing = None
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                raise ValueError("only files are sent")
            if listing is None:
                listing = {path: tuple(facts) for path, facts in json.loads(content.read()).items() if _is_inside(path)}
                for path in before.keys() - listing.keys():  # first, since a folder may replace a file
                    _remove(tree, path)
                continue
            _write(tree, member.name, content, *listing[member.name])
    if listing is None:
        raise ValueError("nothing was sent")
    file = os.path.join(os.path.dirname(tree), LISTING)
    with _new_file(file + ".new") as opened:
        opened.write(json.dumps(listing).encode())
    os.replace(file + ".new", file)


def run(order: dict[str, Any]) -> int:
    """End the rest of an earlier run with this name, then run the line of ``order``; return its exit code."""
    end_run(order["run"])
    child = subprocess.Popen(
        ["bash", "-c", order["line"]], cwd=_cwd(order), env=environment(order), stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    threading.Thread(target=_end_with_input, args=(child, order["run"]), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def shell(order: dict[str, Any]) -> None:
    """Become an interactive shell."""
    os.chdir(_cwd(order))
    os.execvpe("bash", ["bash"], environment(order))


def environment(order: dict[str, Any]) -> dict[str, str]:
    """Return a command's environment: this host's, the cluster's files, and the user's variables."""
    env = dict(os.environ)
    files = os.path.join(os.path.expanduser("~"), order["variables"])
    for name in sorted(os.listdir(files)) if os.path.isdir(files) else ():
        value = ""
        with suppress(OSError, ValueError), open(os.path.join(files, name)) as file:
            value = env[name] = file.read().rstrip("\n")
        if "\0" in value:  # no process could be started
            line = value[: value.index("\0")].count("\n") + 1
            sys.exit(os.path.join(files, name) + ", line " + str(line) + ": it holds a NUL, which no variable can: "
                     "add a version without one to its secret, then run 'tradewind cluster push-env'.")  # fmt: skip
    env.update({"PYTHONUNBUFFERED": "1", **order["env"], RUN_VARIABLE: order["run"]})
    return env


def end_run(name: str) -> None:
    """End all processes of the run with this name, in any session."""
    variable = f"{RUN_VARIABLE}={name}".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_S
        for pid in _processes_with(variable):
            with suppress(OSError):
                os.kill(pid, number)
        while _processes_with(variable):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        else:
            return


def _end_with_input(child: subprocess.Popen[bytes], name: str) -> None:
    while os.read(0, 65536):
        pass
    if child.poll() is None:
        end_run(name)


def _processes_with(variable: bytes) -> list[int]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/stat", "rb") as stat:
                is_over = stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
                if variable in environ.read().split(b"\0") and not is_over:
                    found.append(int(pid))
        except OSError:
            continue
    return found


def _cwd(order: dict[str, Any]) -> str:
    """Return the folder with the user's files, made if needed; refuse a link in its place."""
    tree = tree_of(order)
    for folder in (os.path.dirname(tree), tree):
        if os.path.islink(folder):
            sys.exit(repr(folder) + " is a link, which leads elsewhere: remove it on the host.")
    os.makedirs(tree, mode=0o700, exist_ok=True)
    return tree


def _listing(tree: str) -> dict[str, Any]:
    """Return the listing of the files that were sent before; empty if it is not a file of ours."""
    try:
        opened = os.open(os.path.join(os.path.dirname(tree), LISTING), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(opened, "rb") as file:
            data = file.read(MAX_LISTING_BYTES) if stat.S_ISREG(os.fstat(opened).st_mode) else b"{}"
        return {path: (*map(int, facts),) for path, facts in json.loads(data).items() if _is_inside(path)}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _link_above(tree: str, path: str) -> str | None:
    """Return the first folder of the path that is a link, and so leads elsewhere; None if none is."""
    parts = path.split("/")
    above = (os.path.join(tree, *parts[:count]) for count in range(1, len(parts)))
    return next(filter(os.path.islink, above), None)


def _new_file(path: str) -> BinaryIO:
    """Open a file that was not there before: neither a link nor a pipe is written to."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def _is_inside(path: str) -> bool:
    """Whether the path leads to a place below the folder that it is relative to."""
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and "\0" not in path and not {"", ".", ".."} & set(parts)


def _write(tree: str, path: str, content: Any, size: int, changed_ns: int, mode: int) -> None:
    file = os.path.join(tree, path)
    if (link := _link_above(tree, path)) is not None:
        sys.exit(repr(link) + " is a link, which leads elsewhere: remove it on the host, or exclude " + repr(path))
    os.makedirs(os.path.dirname(file), exist_ok=True)
    if os.path.isdir(file) and not os.path.islink(file):
        shutil.rmtree(file)  # an earlier folder of this name
    aside = file + ".tradewind-new"
    with _new_file(aside) as opened:
        shutil.copyfileobj(content, opened)
    os.chmod(aside, mode & 0o777)
    os.utime(aside, ns=(changed_ns, changed_ns))
    os.replace(aside, file)


def _remove(tree: str, path: str) -> None:
    """Remove a file that was sent before, and its folders that become empty; not through a link."""
    with suppress(OSError):
        if _link_above(tree, path) is not None:
            return
        os.unlink(os.path.join(tree, path))
        while path := os.path.dirname(path):
            os.rmdir(os.path.join(tree, path))


def main() -> None:
    """Execute the command line: a word, and an order as JSON."""
    what, order = sys.argv[1], json.loads(sys.argv[2])
    if what == "have":
        have(order)
    elif what == "put":
        put(order, sys.stdin.buffer)
    elif what == "shell":
        shell(order)
    else:
        sys.exit(run(order))


if __name__ == "__main__":
    main()
