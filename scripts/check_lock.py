"""Fail when a lock does not fit pyproject.toml: every dependency of every extra needs a pin that it allows.

Each Python of the classifiers has a lock: the oldest requirements.lock, each other locks/VERSION.lock. A lock may come
before its classifier, since the tests need it that are to pass first. Each pin, also of the benchmarks' peers, needs
hashes of its files: what an index serves under that version later is refused. Images have locks of their own, with the
versions that are tested here. Asked of the files only, so the check is quick and needs no network. A pin that nothing
needs any more is no error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
HASH = re.compile(r"sha256:[0-9a-f]{64}")
PIN = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w.,-]+\])?==[\w.!+-]+(?:\s*;.+)?")
"""A name with a version, and not, for example, a URL that has ``==`` in it."""
SHARED = ("apache-airflow", "apache-airflow-task-sdk", "ray")
"""What the benchmarks' peers are measured with, as we are."""
CHIPS = ("cuda", "tpu", "vllm")
"""The extras with the libraries of chips, which only images install."""
SETTLES_ITS_OWN = "vllm"
"""The image whose versions vLLM settles, but for Ray's, since every node of a cluster needs the same."""
BUILD = "build"
"""Whose lock has what builds our wheel in the images."""
LM_EVAL = Path("tests", "recipes", "metrics", "lm_eval.in")
"""What one test has beyond requirements.lock; its lock lies beside it."""
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def locks(root: Path) -> dict[str, Path]:
    """Python version -> its lock, below ``root``: of each Python of the classifiers, and what else lies there."""
    classifiers = tomllib.loads((root / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {match[1] for match in map(CLASSIFIER.fullmatch, classifiers) if match}
    oldest, *others = sorted(named | {path.stem for path in (root / "locks").glob("*.lock")}, key=Version)
    return {oldest: Path("requirements.lock")} | {version: Path("locks", f"{version}.lock") for version in others}


def image_lock(name: str) -> Path:
    """Where the lock of the image lies, in the checkout."""
    return Path("docker", f"requirements-{name}.lock")


def images(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Image → the extras that it installs."""
    named: dict[str, list[str]] = pyproject.get("tool", {}).get("tradewind", {}).get("images", {})
    return named


def declared(pyproject: dict[str, Any], python: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """Every requirement of the project and these extras that holds on this platform, without the project itself."""
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
    """The extras of ``requirements.lock``."""
    return [extra for extra in pyproject["project"]["optional-dependencies"] if extra not in CHIPS]


def pins(lock: str) -> dict[str, str]:
    """Package name -> version of every line of the lock."""
    joined = lock.replace("\\\n", " ")
    lines = (line.partition(" --hash=")[0].partition(";")[0].strip() for line in joined.splitlines())
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {canonicalize_name(name.partition("[")[0]): version for name, _, version in pairs}


def problems(wanted: Iterable[Requirement], lock: str) -> Iterator[str]:
    """What is wrong with a lock that is to have what is wanted."""
    locked = pins(lock)
    for requirement in wanted:
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


def image_problems(pyproject: dict[str, Any], name: str, image: str, lock: str, python: str) -> Iterator[str]:
    """What is wrong with an image's lock: what it lacks, and what differs from the versions that are tested."""
    yield from problems(declared(pyproject, python, images(pyproject)[name]), image)
    ours, theirs = pins(lock), pins(image)
    for package in sorted({"ray"} if name == SETTLES_ITS_OWN else ours.keys() & theirs.keys()):
        if theirs.get(package) != ours[package]:
            yield f"{package} is pinned to {theirs.get(package)}, and in requirements.lock to {ours[package]}"


def every_problem(root: Path) -> Iterator[str]:
    """What is wrong with the locks of this checkout, with the name of each."""
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
    """Each lock that should be there, and what is wrong with it."""
    oldest, *_ = of_python = locks(root)
    for python, path in of_python.items():
        yield path, problems(declared(pyproject, python, locked_extras(pyproject)), _text(root, path))
    for name in images(pyproject):
        path = image_lock(name)
        yield path, image_problems(pyproject, name, _text(root, path), lock, oldest)
    if (root / LM_EVAL).exists():
        lines = (line for line in _text(root, LM_EVAL).splitlines() if not line.startswith("#"))
        path = LM_EVAL.with_suffix(".lock")
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
