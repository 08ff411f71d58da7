"""Environments of harnesses that need other versions than Tradewind: made from locks with hashes, and only on request.

An evaluation downloads nothing: it uses the environment that the image brings, and refuses to begin without one. The
command that makes it ends without work if it is there already::

    python -m tradewind.evaluation.environments helm alpaca_eval

A node makes a missing one itself only where the deployment sets ``TRADEWIND_MAKE_ENVIRONMENTS=1``. One maker works at a
time, the others wait, and what a killed maker left is no environment.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tradewind.text import pluralize

MAKE: Final = "TRADEWIND_MAKE_ENVIRONMENTS"
_LOCKS: Final = Path(__file__).parent / "locks"
_COMPLETE: Final = "tradewind-complete"
"""File that is written last. Its text is the environment's key."""
_LAST_LINES: Final = 5
_KEY_CHARS: Final = 12
_BUILDER: Final = re.compile(r"^setuptools==(?:.*\\\n)*.*", re.MULTILINE)
"""What builds the few packages without wheels: pinned as all others, instead of the newest that pip would take."""


@dataclass(frozen=True)
class HarnessEnvironment:
    """The environment of a harness.

    Attributes:
        name: Name of its lock.
        title: Name of the harness in messages.
        distribution: Distribution that has the harness.
        package: Its import package.
    """

    name: str
    title: str
    distribution: str
    package: str

    @property
    def variable(self) -> str:
        """Name of the environment variable with a Python that has the harness."""
        return f"TRADEWIND_{self.name.upper()}_PYTHON"

    @property
    def lock(self) -> Path:
        """Path of the lock."""
        return _LOCKS / f"{self.name}.lock"

    @property
    def key(self) -> str:
        """Hash of the lock and Python's version, with which no other environment agrees."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256(f"{version}\n".encode() + self.lock.read_bytes()).hexdigest()[:_KEY_CHARS]

    @property
    def default_folder(self) -> Path:
        """Where the command makes it: beside Tradewind, so that an image and all its users have it."""
        return Path(sys.prefix, "tradewind-environments", f"{self.name}-{self.key}")

    @property
    def command(self) -> str:
        """The command that makes it."""
        return f"{sys.executable} -m {__name__ if __name__ != '__main__' else __spec__.name} {self.name}"


HELM: Final = HarnessEnvironment("helm", "HELM", "crfm-helm", "helm")
ALPACA_EVAL: Final = HarnessEnvironment("alpaca_eval", "AlpacaEval", "alpaca-eval", "alpaca_eval")
ENVIRONMENTS: Final = {each.name: each for each in (HELM, ALPACA_EVAL)}


@dataclass(frozen=True)
class HarnessPython:
    """A Python that has the harness.

    Attributes:
        executable: Path of the interpreter.
        version: Version of the harness.
        packages: The folder with the harness's package.
    """

    executable: str
    version: str
    packages: Path


def find_environment(environment: HarnessEnvironment, log: Callable[[str], None] = print) -> HarnessPython:
    """Return the Python of a harness on this node: the variable's, else the one that the command made.

    Raises:
        ValueError: There is none; the message has the command that makes it.
    """
    given = os.environ.get(environment.variable)
    if given:
        return _probe(environment, given, f"{environment.variable}={given}")
    folder = environment.default_folder
    if not is_complete(environment, folder):
        if os.environ.get(MAKE) != "1":
            raise ValueError(
                f"{environment.title} is not on this node: it needs an environment of its own. Run `"
                f"{environment.command}` on the node or in its image, or give a Python with "
                f"{environment.distribution} in the environment variable {environment.variable}."
            )
        make_environment(environment, folder, log)
    return _probe(environment, str(_python(folder)), str(folder))


def is_complete(environment: HarnessEnvironment, folder: Path) -> bool:
    """Return whether the folder has the whole environment of the lock."""
    try:
        return (folder / _COMPLETE).read_text() == environment.key
    except OSError:
        return False


def make_environment(environment: HarnessEnvironment, folder: Path, log: Callable[[str], None] = print) -> None:
    """Install what the lock pins into an environment in ``folder``, unless it is there; wait for another maker.

    Raises:
        ValueError: The folder has other files, or cannot be written.
        RuntimeError: Python or pip failed; the message has its last lines.
    """
    if is_complete(environment, folder):
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), log) as lock:
            if not is_complete(environment, folder):
                _make(environment, folder, lock, log)
    except OSError as error:
        raise ValueError(
            f"{environment.title}'s environment cannot be made in {folder}: {error.strerror or error}. Give another "
            f"--folder, and its bin/python in {environment.variable}."
        ) from None


def _make(environment: HarnessEnvironment, folder: Path, lock: int, log: Callable[[str], None]) -> None:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "pyvenv.cfg").exists():
            raise ValueError(f"{folder} has other files: give an empty folder for {environment.title}'s environment.")
        shutil.rmtree(folder)  # half made, or of another lock
    pins = environment.lock.read_text()
    log(f"Installing {environment.title} into {folder} ...")
    _run([sys.executable, "-m", "venv", str(folder)], lock)
    pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    with TemporaryDirectory() as aside:
        builder = Path(aside, "builder.lock")
        builder.write_text("\n".join(_BUILDER.findall(pins)))
        if builder.stat().st_size:
            _run([*pip, "-r", str(builder)], lock)
    _run([*pip, "--no-build-isolation", "-r", str(environment.lock)], lock)
    unfinished = folder / f"{_COMPLETE}.part"
    unfinished.write_text(environment.key)
    unfinished.replace(folder / _COMPLETE)
    log(f"{environment.title} is in {folder}.")


def _run(command: Sequence[str], lock: int) -> None:
    """Run a command that keeps the lock: no other maker begins while the child of a killed one still runs."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, env=environment, pass_fds=[lock], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LAST_LINES:])
        raise RuntimeError(f"{' '.join(command[:4])} ... ended with exit code {done.returncode}:\n{last}")


@contextmanager
def _locked(file: Path, log: Callable[[str], None]) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"Waiting for another process that makes {file.stem} ...")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


_PROBE: Final = (
    "import sys, importlib.metadata as m, importlib.util as u; "
    "spec = u.find_spec(sys.argv[2]); print(m.version(sys.argv[1])); print(spec.submodule_search_locations[0])"
)


def _probe(environment: HarnessEnvironment, executable: str, what: str) -> HarnessPython:
    """Ask a Python for the harness's version, without importing the harness."""
    command = [executable, "-I", "-c", _PROBE, environment.distribution, environment.package]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        lines = done.stdout.splitlines()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        lines = []
    if len(lines) != 2 or done.returncode:
        raise ValueError(
            f"{what} is no Python with {environment.distribution}. Run `{environment.command}`, and unset "
            f"{environment.variable} or set it to that environment's bin/python."
        )
    return HarnessPython(executable, lines[0], Path(lines[1]).parent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name if __spec__ else __name__}",
        description="Make the environments of evaluation harnesses from their locks.",
    )
    parser.add_argument("names", nargs="+", choices=sorted(ENVIRONMENTS), metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--folder", help="folder of the environment, of one harness; default: beside Tradewind")
    given = parser.parse_args(arguments)
    if given.folder and len(given.names) > 1:
        parser.error(f"--folder is for one environment, not for {pluralize(len(given.names), 'environment')}.")
    try:
        for name in given.names:
            environment = ENVIRONMENTS[name]
            folder = Path(given.folder).absolute() if given.folder else environment.default_folder
            make_environment(environment, folder)
            print(f"{environment.variable}={_python(folder)}")
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
