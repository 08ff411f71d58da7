"""Break each guard that protects data in a copy of the checkout, and expect a test to fail.

A mutant is a table in ``tests/mutants/*.toml``. In ``function`` (``module:qualname``, or ``module:<module>`` for code
outside functions and classes), the only node that matches ``pattern`` becomes ``replacement``. Both are Python source:
two expressions, or a statement and its replacement. ``$name`` matches any expression, each time the same one, and
means it in the replacement. A mutant that survives is a guard that no test covers.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
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

from tradewind.runtime.driver.process_guard import guard_command

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS_FAILED: Final = 1
"""Exit code of pytest when tests ran and one failed; all others except 0 mean that they did not run."""
NO_END: Final = -1
"""In place of an exit code: the tests hung, or the machine was too busy to end them in time."""
_HOLE: Final = "hole_of_a_pattern_"


class MutantError(ValueError):
    """A mutant that cannot be made."""


class Fate(Enum):
    """Result of the tests of a mutant; ``BROKEN`` if they did not run."""

    KILLED = "killed"
    LIVES = "LIVES"
    BROKEN = "BROKEN"


@dataclass(frozen=True)
class Mutant:
    """One broken guard.

    Attributes:
        subject: Its file in ``tests/mutants``, without the suffix.
        name: What the broken code does wrong, as a sentence.
        tests: Arguments of pytest.
    """

    subject: str
    name: str
    function: str
    pattern: str
    replacement: str
    tests: tuple[str, ...]

    def path(self, root: Path) -> Path:
        """Return the guard's file in the checkout at ``root``."""
        return root / "operators" / f"{self.function.partition(':')[0].replace('.', '/')}.py"

    def broken(self, root: Path) -> str:
        """Return the source of the guard's file, with the guard broken.

        Raises:
            MutantError: The pattern does not match exactly once, the result does not compile, or a test is missing.
        """
        try:
            source = self.path(root).read_text()
            changed = replaced(source, self.function.partition(":")[2], self.pattern, self.replacement)
            compile(changed, self.name, "exec")
            if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
                raise MutantError("it changes nothing")
            for file, _, name in (test.partition("::") for test in self.tests):
                if name and f"def {name.partition('[')[0]}(" not in (root / file).read_text():
                    raise MutantError(f"there is no {name} in {file}")
                (root / file).stat()
        except (MutantError, SyntaxError, OSError) as error:
            raise MutantError(f"{self}: {error}.") from None
        return changed

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"


def replaced(source: str, qualname: str, pattern: str, replacement: str) -> str:
    """Replace the only node of a function that matches ``pattern``; the rest of ``source`` keeps its text.

    Raises:
        MutantError: There is no such function, or not exactly one match.
    """
    scopes = [scope for name, scope in _scopes(ast.parse(source)) if name == qualname]
    wanted, new = _parsed(pattern), _parsed(replacement)
    [shape] = wanted.body
    is_expression = isinstance(shape, ast.Expr) and [type(node) for node in new.body] == [ast.Expr]
    found: list[tuple[Any, dict[str, ast.expr]]] = []
    for node in (node for scope in scopes for node in _own_nodes(scope)):
        bound: dict[str, ast.expr] = {}
        if _matches(shape.value if is_expression and isinstance(shape, ast.Expr) else shape, node, bound):
            found.append((node, bound))
    if len(scopes) != 1 or len(found) != 1:
        raise MutantError(f"{pattern!r} matches {len(found)} times in {len(scopes)} functions {qualname}, not once")
    [(node, bound)] = found
    text = ast.unparse(_Filled(bound).visit(new))
    text = f"({text})" if is_expression else text.replace("\n", "\n" + " " * node.col_offset)
    lines = source.encode().splitlines(keepends=True)  # an AST counts bytes
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + text.encode() + after).decode()


class _Filled(ast.NodeTransformer):
    """Puts what the pattern matched into the replacement."""

    def __init__(self, bound: dict[str, ast.expr]) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id.startswith(_HOLE) and node.id not in self._bound:
            raise MutantError(f"the pattern has no ${node.id.removeprefix(_HOLE)}")
        return self._bound.get(node.id, node)


def _parsed(source: str) -> ast.Module:
    return ast.parse(re.sub(r"\$(?=\w)", _HOLE, source))


def _scopes(scope: ast.AST, name: str = "<module>") -> Iterator[tuple[str, ast.AST]]:
    """Yield a module, its functions and classes, and those within them, each with its dotted name."""
    yield name, scope
    for node in _own_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _scopes(node, node.name if name == "<module>" else f"{name}.{node.name}")


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below ``scope``, but of functions and classes defined there only the definition."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _own_nodes(node)


def _matches(pattern: Any, node: Any, bound: dict[str, ast.expr]) -> bool:
    if isinstance(pattern, ast.Name) and pattern.id.startswith(_HOLE):
        return isinstance(node, ast.expr) and _matches(bound.setdefault(pattern.id, node), node, {})
    if isinstance(pattern, ast.AST) and type(pattern) is type(node):
        names = (name for name in pattern._fields if name != "ctx")
        return all(_matches(getattr(pattern, name, None), getattr(node, name, None), bound) for name in names)
    if isinstance(pattern, list) and isinstance(node, list) and len(pattern) == len(node):
        return all(_matches(*pair, bound) for pair in zip(pattern, node, strict=True))
    return type(pattern) is type(node) and bool(pattern == node)


def read_mutants(root: Path, words: Sequence[str] = ()) -> list[Mutant]:
    """Return all mutants whose subject or name contains one of ``words``; without words, all.

    Raises:
        MutantError: A table lacks a field, has an unknown one, or names no test.
    """
    mutants = []
    for file in sorted((root / "tests/mutants").glob("*.toml")):
        for table in tomllib.loads(file.read_text())["mutant"]:
            try:
                mutant = Mutant(file.stem, **{**table, "tests": tuple(table["tests"])})
            except (KeyError, TypeError) as error:
                raise MutantError(f"{file.name}: {table.get('name', 'a mutant')}: {error}.") from None
            if not mutant.tests:
                raise MutantError(f"{mutant}: it names no test.")
            mutants.append(mutant)
    return [mutant for mutant in mutants if not words or any(word in str(mutant) for word in words)]


def copy_checkout(root: Path, target: Path) -> None:
    """Copy what git tracks and what it would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():  # not a deleted file whose deletion is not committed yet
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def own_python(checkout: Path) -> str:
    """Return a Python of the checkout: all its processes import our packages, and the checkout's code."""
    environment = checkout / ".venv"
    if not environment.exists():
        venv.create(environment, symlinks=True)
        names = {"base": str(environment), "platbase": str(environment)}
        code = [str(checkout / name) for name in ("operators", "plugins")]
        ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        Path(sysconfig.get_path("purelib", vars=names), "checkout.pth").write_text("\n".join([*code, ours]) + "\n")
    return str(environment / "bin" / "python")


def run_tests(checkout: Path, tests: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Run ``tests`` on the code of ``checkout``; return pytest's exit code, or ``NO_END``, and its output.

    The process guard of this checkout ends them: what broken code fails to end lives no longer than its tests.
    """
    # Broken code can make a test wait until its limit: 48 s instead of minutes (tests/support/waiting.py).
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TRADEWIND_TEST_PACE": "0.4"}
    command = guard_command(
        [own_python(checkout), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests], watch=[]
    )
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=checkout, env=env, start_new_session=True, **streams) as running:
        try:
            output, _ = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.terminate()
            return NO_END, f"no end within {timeout_s:.0f} s"
    return running.returncode, output[-5000:]


def fate_of(mutant: Mutant, checkout: Path, timeout_s: float) -> tuple[Fate, str]:
    """Break the guard in ``checkout``, run its tests, and restore it."""
    path, changed = mutant.path(checkout), mutant.broken(checkout)
    source = path.read_text()
    path.write_text(changed)
    try:
        code, output = run_tests(checkout, mutant.tests, timeout_s)
    finally:
        path.write_text(source)
    return {TESTS_FAILED: Fate.KILLED, 0: Fate.LIVES}.get(code, Fate.BROKEN), output


def run_mutants(mutants: Sequence[Mutant], jobs: int, timeout_s: float, say: Callable[[str], object]) -> list[Fate]:
    """Return the fate of each mutant, and report it when it is known. Each of ``jobs`` workers has its own copy.

    Raises:
        MutantError: The tests fail although no guard is broken.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for copy in (Path(folder, str(number)) for number in range(jobs)):
            copy_checkout(ROOT, copy)
            copies.put(copy)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        code, output = run_tests(copy, tests, timeout_s * max(1, len(tests)))
        if code != 0:
            raise MutantError(f"The tests fail although no guard is broken:\n{output}")

        def run(mutant: Mutant) -> Fate:
            checkout, begun = copies.get(), time.monotonic()
            try:
                fate, output = fate_of(mutant, checkout, timeout_s)
            finally:
                copies.put(checkout)
            line = f"{fate.value:8}{time.monotonic() - begun:5.1f} s  {mutant}"
            say(f"{line}\n{output}" if fate is Fate.BROKEN else line)
            return fate

        return list(pool.map(run, mutants))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose subject or name contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant (300)")
    arguments = parser.parse_args()
    try:
        for mutant in read_mutants(ROOT):
            mutant.broken(ROOT)
        mutants = read_mutants(ROOT, arguments.words)
        fates = run_mutants(mutants, arguments.jobs, arguments.timeout, lambda line: print(line, flush=True))
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    killed = fates.count(Fate.KILLED)
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if mutants and killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
