"""Print figures of the package that tell whether every part is in its room, of this checkout or of a commit.

    python -m scripts.metrics [--at COMMIT] [--timed]

They are read from the sources, so nothing of the package is imported. With ``--timed`` a fresh process also imports the
package, and another builds and serialises a DAG of 500 steps: that needs what requirements.lock pins.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = Path("operators/tradewind")
ROOM: Final = 12
"""How many modules a folder may have."""
SHORT: Final = 4
"""Lines, from ``def`` to the end, of a helper that only adds a jump when one place calls it."""
REPEATS: Final = 3
STEPS: Final = 500

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One file of the package.

    Attributes:
        parts: Where it lies below the package, without ``__init__``: ``("plans", "places")``.
        is_face: It is an ``__init__``.
    """

    parts: tuple[str, ...]
    is_face: bool
    tree: ast.Module

    @property
    def folder(self) -> tuple[str, ...]:
        return self.parts if self.is_face else self.parts[:-1]


@dataclass(frozen=True)
class House:
    """The figures of a package."""

    siblings: Mapping[str, int]
    """Folder, ``.`` for the package's own -> how many modules lie in it, without its ``__init__``."""
    rings: Sequence[Sequence[str]]
    """Packages, and modules beside them, that import each other, directly or through others."""
    doubled: Mapping[str, int]
    """Name that several classes have -> how many."""
    short_helpers: Sequence[str]
    lengths: Sequence[int]
    """Lines of every function, shortest first."""


def measure(package: Path) -> House:
    """Read every module below ``package``."""
    modules = [*read(package)]
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    siblings = Counter("/".join(module.folder) or "." for module in modules if not module.is_face)
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return House(
        siblings={"/".join(module.folder) or ".": 0 for module in modules} | siblings,
        rings=rings(package_imports(modules, package.name)),
        doubled={name: count for name, count in sorted(classes.items()) if count > 1},
        short_helpers=[name for module in modules for name in short_helpers(module)],
        lengths=sorted(_lines(node) for node in nodes if isinstance(node, Function)),
    )


def read(package: Path) -> Iterator[Module]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_face = parts[-1] == "__init__"
        yield Module(parts[:-1] if is_face else parts, is_face, ast.parse(path.read_text(), str(path)))


def package_imports(modules: Sequence[Module], package: str) -> Graph:
    """Package -> the packages that it imports anywhere, also inside a function or for type checking alone.

    A module that lies beside the packages is one of them. The face of the whole imports from everywhere, for users, and
    is left out.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for module in (module for module in modules if module.parts):
        here = module.parts[0]
        names = {name[1] for name in imports(module, package) if name[0] == package and len(name) > 1}
        found[here] |= (names & {other.parts[0] for other in modules if other.parts}) - {here}
    return found


def imports(module: Module, package: str) -> Iterator[tuple[str, ...]]:
    """The dotted name of everything that the module imports, split."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (package, *module.folder)[: len(module.folder) + 2 - node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*base, alias.name) for alias in node.names)


def rings(graph: Graph) -> list[list[str]]:
    """Those that reach each other: the strongly connected components of more than one."""
    reach = {name: _reachable(graph, name) for name in graph}
    components = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return sorted(sorted(component) for component in components if len(component) > 1)


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return reached


def short_helpers(module: Module) -> Iterator[str]:
    """Private functions and methods without a decorator, of a few lines, that their module mentions once, to call them.

    One that is handed to somebody else by its name has no place where it could stand instead.
    """
    mentions, calls = Counter[str](), set[str]()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name | ast.Attribute):
            mentions[_named(node)] += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            calls.add(_named(node.func))
    for scope in ast.walk(module.tree):
        for node in scope.body if isinstance(scope, ast.Module | ast.ClassDef) else ():
            if not isinstance(node, Function) or not node.name.startswith("_") or node.name.startswith("__"):
                continue
            if not node.decorator_list and _lines(node) <= SHORT and mentions[node.name] == 1 and node.name in calls:
                yield ".".join((*module.parts, node.name))


def _named(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def report(house: House) -> Iterator[tuple[str, str]]:
    """What is printed: a figure's name and the figure."""
    fullest = max(house.siblings, key=lambda folder: house.siblings[folder])
    yield "modules", str(sum(house.siblings.values()))
    yield "folders", str(len(house.siblings))
    yield "most siblings", f"{house.siblings[fullest]} ({fullest})"
    yield f"folders over {ROOM}", _counted([name for name, count in house.siblings.items() if count > ROOM])
    yield "packages in rings", _counted([name for ring in house.rings for name in ring])
    yield "doubled class names", _counted([*house.doubled])
    yield f"helpers of {SHORT} lines or fewer with one caller", str(len(house.short_helpers))
    yield "function lines, median", f"{statistics.median(house.lengths):g}"
    yield "function lines, 90th percentile", str(house.lengths[len(house.lengths) * 9 // 10])


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def timed(package: Path, steps: int = STEPS, repeats: int = REPEATS) -> Iterator[tuple[str, str]]:
    """Seconds of CPU time in fresh processes; the first of each only fills the caches of bytecode."""
    for name, code in (
        (f"seconds of import {package.name}", f"house_timing.time_import({package.name!r})"),
        (f"seconds to parse a DAG of {steps} steps", f"house_timing.time_parsing({steps})"),
    ):
        samples = [
            _seconds(package, f"from scripts import metrics_timing as house_timing; {code}") for _ in range(repeats + 1)
        ]
        yield name, f"{statistics.median(samples[1:]):.3f}"


def _seconds(package: Path, code: str) -> float:
    """Run ``code`` where this package is the first that is found, and no Airflow is known but an empty one."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    with tempfile.TemporaryDirectory() as home:
        environ |= {"AIRFLOW_HOME": home, "PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}"}
        done = subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def check_out(checkout: Path, commit: str, folder: Path) -> Path:
    """The package as it was at ``commit``, below ``folder``."""
    archive = ["git", "-C", str(checkout), "archive", "--format=zip", commit, str(PACKAGE)]
    with zipfile.ZipFile(io.BytesIO(subprocess.check_output(archive))) as packed:
        packed.extractall(folder)
    return folder / PACKAGE


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", metavar="COMMIT", help="the package of this commit instead of the one that lies here")
    parser.add_argument("--timed", action="store_true", help="also time an import and the parsing of a DAG")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        package = check_out(ROOT, args.at, Path(folder)) if args.at else ROOT / PACKAGE
        figures = [*report(measure(package)), *(timed(package) if args.timed else ())]
    for name, figure in figures:
        print(f"{name:<48}{figure}")


if __name__ == "__main__":
    main()
