"""Show that every guard is guarded: break each one on purpose, in a copy, and see a test fail.

A mutant is a table in ``tests/mutants/*.toml``: the text ``old``, which stands once in ``file``, becomes ``new``, and
one of ``tests`` must fail. The copy holds what git tracks or would track, so that nothing of the checkout is touched;
the same tests must pass there before anything is broken. A mutant that lives is a guard that no test holds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from tradewind.runtime.driver.process_guard import guarded

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = Path("tests/mutants")
TESTS_FAILED: Final = 1
"""Exit code of pytest when tests ran and one failed; every other one says that they did not run."""
NO_END: Final = -1
"""In place of an exit code: the tests hung, or the machine was too busy, which nobody can tell apart."""


class MutantError(ValueError):
    """A mutant that cannot be made."""


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    LIVES = "LIVES"
    """No test minds: the guard can be removed unseen."""
    BROKEN = "BROKEN"
    """Its tests could not be run, so nothing is known."""


@dataclass(frozen=True)
class Mutant:
    """One guard, broken.

    Attributes:
        subject: The file of ``tests/mutants`` that names it, without its ending.
        name: What the broken code does wrong, as a sentence.
        file: Relative to the checkout.
        tests: What pytest is given.
    """

    subject: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Break the guard in the checkout at ``root``.

        Raises:
            MutantError: As ``broken`` does.
        """
        (root / self.file).write_text(self.broken(root))

    def broken(self, root: Path) -> str:
        """What ``file`` holds once the guard is broken.

        Raises:
            MutantError: The text is not there, or not just once, or a test is not there.
        """
        path = root / self.file
        text = path.read_text() if path.is_file() else ""
        if text.count(self.old) != 1:
            raise MutantError(f"{self}: {self.old!r} stands {text.count(self.old)} times in {self.file}, not once.")
        if self.old == self.new:
            raise MutantError(f"{self}: it changes nothing.")
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        if missing or not self.tests:
            raise MutantError(f"{self}: there is no test {', '.join(missing)}.")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"


def read_mutants(root: Path, words: Sequence[str] = ()) -> list[Mutant]:
    """All mutants whose subject or name holds one of ``words``; all if there are none.

    Raises:
        MutantError: A file holds something else.
    """
    mutants = [mutant for file in sorted((root / FOLDER).glob("*.toml")) for mutant in _of_file(file)]
    return [mutant for mutant in mutants if not words or any(word in str(mutant) for word in words)]


def _of_file(file: Path) -> Iterator[Mutant]:
    tables: list[dict[str, Any]] = tomllib.loads(file.read_text()).get("mutant", [])
    for table in tables:
        try:
            yield Mutant(file.stem, **{**table, "tests": tuple(table["tests"])})
        except (KeyError, TypeError) as error:
            raise MutantError(f"{file.name}: {table.get('name', 'a mutant')}: {error}.") from None


def copy_checkout(root: Path, target: Path) -> None:
    """Copy what git tracks and what it would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():  # not one that is deleted and not yet committed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def own_python(checkout: Path) -> str:
    """A Python of the checkout's own, with our packages, and with its code in place of ours in every process."""
    environment = checkout / ".venv"
    if not environment.exists():
        venv.create(environment, symlinks=True)
        names = {"base": str(environment), "platbase": str(environment)}
        code = [str(checkout / name) for name in ("operators", "plugins")]
        ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        Path(sysconfig.get_path("purelib", vars=names), "checkout.pth").write_text("\n".join([*code, ours]) + "\n")
    return str(environment / "bin" / "python")


def run_tests(checkout: Path, tests: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Run ``tests`` on the code of ``checkout``; pytest's exit code, or ``NO_END``, and its output.

    They run under our own guard, as it is here: what broken code fails to end lives no longer than its tests.
    """
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = guarded([own_python(checkout), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests], watch=[])
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=checkout, env=env, start_new_session=True, **streams) as running:
        try:
            output, _ = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.terminate()
            return NO_END, f"no end within {timeout_s:.0f} s"
    return running.returncode, output[-5000:]


def fate_of(mutant: Mutant, checkout: Path, timeout_s: float) -> tuple[Fate, str]:
    """Break the guard in ``checkout``, run its tests, and mend it again."""
    path = checkout / mutant.file
    text = path.read_text()
    mutant.apply(checkout)
    try:
        code, output = run_tests(checkout, mutant.tests, timeout_s)
    finally:
        path.write_text(text)
    return {TESTS_FAILED: Fate.KILLED, 0: Fate.LIVES}.get(code, Fate.BROKEN), output


def hold(mutants: Sequence[Mutant], jobs: int, timeout_s: float, say: Callable[[str], object]) -> list[Fate]:
    """The fate of each mutant, told as it is known. Each of ``jobs`` workers has a copy of the checkout.

    Raises:
        MutantError: The tests fail although nothing is broken.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy_checkout(ROOT, Path(folder) / str(number))
            copies.put(Path(folder) / str(number))
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        code, output = run_tests(Path(folder) / "0", tests, timeout_s * max(1, len(tests)))
        if code != 0:
            raise MutantError(f"The tests fail although nothing is broken:\n{output}")

        def one(mutant: Mutant) -> Fate:
            checkout = copies.get()
            begun = time.monotonic()
            try:
                fate, output = fate_of(mutant, checkout, timeout_s)
            finally:
                copies.put(checkout)
            took = f"{time.monotonic() - begun:5.1f} s"
            say(f"{fate.value:8}{took}  {mutant}" + (f"\n{output}" if fate is Fate.BROKEN else ""))
            return fate

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutants))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose subject or name holds one of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant (300)")
    arguments = parser.parse_args()
    try:
        mutants = read_mutants(ROOT, arguments.words)
        fates = hold(mutants, arguments.jobs, arguments.timeout, lambda line: print(line, flush=True))
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    killed = fates.count(Fate.KILLED)
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if mutants and killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
