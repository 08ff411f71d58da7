"""Fail when requirements.lock does not fit pyproject.toml: every dependency of every extra needs a pin that it allows.

Each pin, also of the benchmarks' peers, needs hashes of its files: what an index serves under that version later is
refused. Asked of the files only, so the check is quick and needs no network. A pin that nothing needs any more is no
error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
HASH = re.compile(r"sha256:[0-9a-f]{64}")
PIN = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w.,-]+\])?==[\w.!+-]+(?:\s*;.+)?")
"""A name with a version, and not, for example, a URL that has ``==`` in it."""
SHARED = ("apache-airflow", "apache-airflow-task-sdk", "ray")
"""What the benchmarks' peers are measured with, as we are."""


def declared(pyproject: dict[str, Any]) -> Iterator[Requirement]:
    """Every requirement of the project and its extras that holds on this platform, without the project itself."""
    project = pyproject["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        is_relevant = requirement.marker is None or requirement.marker.evaluate()
        if is_relevant and canonicalize_name(requirement.name) != canonicalize_name(project["name"]):
            yield requirement


def pins(lock: str) -> dict[str, str]:
    """Package name -> version of every line of the lock."""
    joined = lock.replace("\\\n", " ")
    lines = (line.partition(" --hash=")[0].partition(";")[0].strip() for line in joined.splitlines())
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {canonicalize_name(name.partition("[")[0]): version for name, _, version in pairs}


def problems(pyproject: dict[str, Any], lock: str) -> Iterator[str]:
    locked = pins(lock)
    for requirement in declared(pyproject):
        version = locked.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement} has no pin"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement} is pinned to {version}"
    yield from flaws(lock)


def flaws(lock: str) -> Iterator[str]:
    """What no lock may hold: a line that is no pin, or a pin without a hash."""
    for entry in lock.replace("\\\n", " ").splitlines():
        pin, *hashes = (part.strip() for part in entry.split(" --hash="))
        if pin.startswith("-"):
            yield f"option line: {pin}"
        elif pin and not PIN.fullmatch(pin):
            yield f"no pin: {pin}"
        elif pin and not (hashes and all(HASH.fullmatch(one) for one in hashes)):
            yield f"{pin} has no hash" + (" of SHA-256 alone" if any(map(HASH.fullmatch, hashes)) else "")


def peer_problems(peer: str, lock: str) -> Iterator[str]:
    """What is wrong with a peer's lock: its flaws, and what it should share with ours."""
    yield from flaws(peer)
    ours, theirs = pins(lock), pins(peer)
    for name in SHARED:
        if theirs.get(name) != ours[name]:
            yield f"{name} is pinned to {theirs.get(name)}, and in requirements.lock to {ours[name]}"


def main() -> int:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = (ROOT / "requirements.lock").read_text()
    found = [f"requirements.lock: {problem}" for problem in problems(pyproject, lock)]
    for peer in sorted((ROOT / "benchmarks" / "peers").glob("*.lock")):
        found += [f"{peer.relative_to(ROOT)}: {problem}" for problem in peer_problems(peer.read_text(), lock)]
    print("\n".join(found), end="\n" if found else "")
    if found:
        print("Run `make lock`.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
