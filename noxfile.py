"""Run the fast tests on every installed Python from 3.11 on, each with the pins of its own lock.

``make test-matrix`` runs it. The interpreters are those on the PATH and those of pyenv, which puts only the chosen ones
on the PATH. An interpreter without a lock is skipped with a message.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nox
from packaging.version import Version

from scripts.check_lock import locks

OLDEST = Version("3.11")
LOCKS = locks(Path(__file__).parent)
NAME = re.compile(r"python(3\.\d+)")

nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.reuse_venv = "yes"


def folders() -> Iterator[Path]:
    """Yield the folders of interpreters: the PATH, then pyenv's, newest first."""
    yield from map(Path, os.get_exec_path())
    if pyenv := shutil.which("pyenv"):
        root = Path(subprocess.check_output([pyenv, "root"], text=True).strip())
        versions = [path for path in root.glob("versions/*") if re.fullmatch(r"3\.\d+\.\d+", path.name)]
        yield from (path / "bin" for path in sorted(versions, key=lambda path: Version(path.name), reverse=True))


def interpreters() -> dict[str, Path]:
    """Return version -> folder of an interpreter that starts; pyenv's shims of other versions do not."""
    found: dict[str, Path] = {}
    for python in (python for folder in folders() for python in folder.glob("python3.*")):
        name = NAME.fullmatch(python.name)
        if name and name[1] not in found and Version(name[1]) >= OLDEST and _answers(python):
            found[name[1]] = python.parent
    return dict(sorted(found.items(), key=lambda item: Version(item[0])))


def _answers(python: Path) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


FOUND = interpreters()
# nox searches the PATH; appended, so that nothing else changes for the tests.
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, FOUND.values())])


@nox.session(python=[*FOUND])
def fast(session: nox.Session) -> None:
    """Run the tests of `make test-fast`."""
    version = str(session.python)
    if version not in LOCKS:
        session.skip(f"Python {version} has no lock: `touch locks/{version}.lock` and `make lock` make one")
    session.run_install("uv", "pip", "sync", "--quiet", "--require-hashes", str(LOCKS[version]))
    session.run_install("uv", "pip", "install", "--quiet", "--no-deps", "-e", ".")
    session.run("python", "-m", "pytest", "-m", "not ray and not airflow and not slow", *session.posargs)
