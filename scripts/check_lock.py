"""Fail when a lock does not fit pyproject.toml: every dependency of every extra and group needs a pin that it allows.

Each Python of the classifiers has a lock: the oldest requirements.lock, each other locks/VERSION.lock. A lock may
precede its classifier, since the tests that must pass first need it. Each pin, also of the benchmarks' peers, needs
hashes of its files, so that an index cannot serve other files later. Images have their own locks, with the versions
that are tested here. The check reads only files, so it is quick and needs no network. An unused pin is no error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
HASH = re.compile(r"sha256:[0-9a-f]{64}")
PIN = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w.,-]+\])?==[\w.!+-]+(?:\s*;.+)?")
"""A name with a version, and not, for example, a URL that contains ``==``."""
SHARED = ("apache-airflow", "apache-airflow-task-sdk", "ray")
"""Packages whose versions are equal for Tradewind and the benchmarks' peers."""
CHIPS = ("cuda", "evaluation", "tpu", "vllm")
"""Extras that only images install: libraries of accelerators, and lm-eval, which the tests keep apart."""
SETTLES_ITS_OWN = "vllm"
"""Image whose versions vLLM determines, except Ray's, which must be equal on all nodes of a cluster."""
BUILD = "build"
"""Its lock has the packages that build our wheel in the images."""
LM_EVAL = Path("tests", "recipes", "metrics", "lm_eval.in")
"""Packages of one test beyond requirements.lock; its lock is beside it."""
HARNESSES = Path("operators", "tradewind", "evaluation", "locks")
"""Packages of environments of their own, each with its lock."""
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def locks(root: Path) -> dict[str, Path]:
    """Return Python version -> its lock, below ``root``: for each Python of the classifiers, and other locks there."""
    classifiers = tomllib.loads((root / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {match[1] for match in map(CLASSIFIER.fullmatch, classifiers) if match}
    oldest, *others = sorted(named | {path.stem for path in (root / "locks").glob("*.lock")}, key=Version)
    return {oldest: Path("requirements.lock")} | {version: Path("locks", f"{version}.lock") for version in others}


def image_lock(name: str) -> Path:
    """Return the path of the image's lock in the checkout."""
    return Path("docker", f"requirements-{name}.lock")


def images(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Return image → the extras that it installs."""
    named: dict[str, list[str]] = pyproject.get("tool", {}).get("tradewind", {}).get("images", {})
    return named


def declared(pyproject: dict[str, Any], python: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements of the project and these extras on this platform, without the project itself."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    project, chosen = pyproject["project"], list(extras)
    lines = list(project["dependencies"])
    for extra in chosen:
        own = project["optional-dependencies"].get(extra, [])
        lines += own
        for requirement in map(Requirement, own):
            if _is_project(requirement, project):
                chosen += sorted(requirement.extras - set(chosen))
    for requirement in map(Requirement, lines):
        is_relevant = requirement.marker is None or requirement.marker.evaluate(environment)
        if is_relevant and not _is_project(requirement, project):
            yield requirement


def _is_project(requirement: Requirement, project: dict[str, Any]) -> bool:
    return canonicalize_name(requirement.name) == canonicalize_name(project["name"])


def locked_extras(pyproject: dict[str, Any]) -> list[str]:
    """Return the extras of ``requirements.lock``."""
    return [extra for extra in pyproject["project"]["optional-dependencies"] if extra not in CHIPS]


def tools(pyproject: dict[str, Any]) -> Iterator[Requirement]:
    """Yield the requirements of the dependency groups, without the project itself."""
    for group in pyproject.get("dependency-groups", {}).values():
        for requirement in (Requirement(entry) for entry in group if isinstance(entry, str)):
            if not _is_project(requirement, pyproject["project"]):
                yield requirement


def pins(lock: str) -> dict[str, str]:
    """Return package name -> version of every line of the lock."""
    joined = lock.replace("\\\n", " ")
    lines = (line.partition(" --hash=")[0].partition(";")[0].strip() for line in joined.splitlines())
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {canonicalize_name(name.partition("[")[0]): version for name, _, version in pairs}


def problems(wanted: Iterable[Requirement], lock: str) -> Iterator[str]:
    """Yield the problems of a lock that must satisfy the requirements."""
    locked = pins(lock)
    for requirement in wanted:
        version = locked.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement} has no pin"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement} is pinned to {version}"
    yield from flaws(lock)


def flaws(lock: str) -> Iterator[str]:
    """Yield the lines that no lock may have: not a pin, or a pin without a hash."""
    for entry in lock.replace("\\\n", " ").splitlines():
        pin, *hashes = (part.strip() for part in entry.split(" --hash="))
        if pin.startswith("-"):
            yield f"option line: {pin}"
        elif pin and not PIN.fullmatch(pin):
            yield f"no pin: {pin}"
        elif pin and not (hashes and all(HASH.fullmatch(one) for one in hashes)):
            yield f"{pin} has no hash" + (" of SHA-256 alone" if any(map(HASH.fullmatch, hashes)) else "")


def peer_problems(peer: str, lock: str) -> Iterator[str]:
    """Yield the problems of a peer's lock: its flaws, and versions that differ from ours."""
    yield from flaws(peer)
    ours, theirs = pins(lock), pins(peer)
    for name in SHARED:
        if theirs.get(name) != ours[name]:
            yield f"{name} is pinned to {theirs.get(name)}, and in requirements.lock to {ours[name]}"


def image_problems(pyproject: dict[str, Any], name: str, image: str, lock: str, python: str) -> Iterator[str]:
    """Yield the problems of an image's lock: missing pins, and versions that differ from the tested ones."""
    yield from problems(declared(pyproject, python, images(pyproject)[name]), image)
    ours, theirs = pins(lock), pins(image)
    for package in sorted({"ray"} if name == SETTLES_ITS_OWN else ours.keys() & theirs.keys()):
        if theirs.get(package) != ours[package]:
            yield f"{package} is pinned to {theirs.get(package)}, and in requirements.lock to {ours[package]}"


def every_problem(root: Path) -> Iterator[str]:
    """Yield the problems of this checkout's locks, each with the lock's name."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    lock = _text(root, Path("requirements.lock"))
    for path, found in _by_lock(root, pyproject, lock):
        if (root / path).exists():
            yield from (f"{path}: {problem}" for problem in found)
        else:
            yield f"{path} is missing"
    for peer in sorted((root / "benchmarks" / "peers").glob("*.lock")):
        yield from (f"{peer.relative_to(root)}: {problem}" for problem in peer_problems(peer.read_text(), lock))


def _by_lock(root: Path, pyproject: dict[str, Any], lock: str) -> Iterator[tuple[Path, Iterator[str]]]:
    """Yield each required lock and its problems."""
    oldest, *_ = of_python = locks(root)
    for python, path in of_python.items():
        wanted = chain(declared(pyproject, python, locked_extras(pyproject)), tools(pyproject))
        yield path, problems(wanted, _text(root, path))
    for name in images(pyproject):
        path = image_lock(name)
        yield path, image_problems(pyproject, name, _text(root, path), lock, oldest)
    for names in (LM_EVAL, *(path.relative_to(root) for path in sorted((root / HARNESSES).glob("*.in")))):
        if (root / names).exists():
            lines = (line for line in _text(root, names).splitlines() if not line.startswith("#"))
            path = names.with_suffix(".lock")
            yield path, problems(map(Requirement, lines), _text(root, path))
    if images(pyproject):
        builders = map(Requirement, pyproject["build-system"]["requires"])
        yield image_lock(BUILD), problems(builders, _text(root, image_lock(BUILD)))


def _text(root: Path, path: Path) -> str:
    return (root / path).read_text() if (root / path).exists() else ""


def main() -> int:
    found = [*every_problem(ROOT)]
    print("\n".join(found), end="\n" if found else "")
    if found:
        print("Run `make lock`.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
