"""Print metrics of the package's code, of this checkout or of a commit.

    python -m scripts.metrics [--at COMMIT] [--timed]

They are computed from the sources, without importing the package. With ``--timed`` a new process also imports the
package, and another builds and serialises a DAG of 500 steps: this needs the packages of requirements.lock.
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
import tomllib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = Path("operators/tradewind")
TESTS: Final = Path("tests")
MUTANTS: Final = TESTS / "mutants"
LONG: Final = 90
"""Lines; longer functions are listed."""
SHORT: Final = 4
"""Lines, from ``def`` to the end, of a helper that only adds a jump when one place calls it."""
REPEATS: Final = 3
STEPS: Final = 500

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    parts: tuple[str, ...]
    """Its path below the package, without ``__init__``: ``("plans", "places")``."""
    is_init: bool
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        return ".".join(self.parts)

    @property
    def folder(self) -> tuple[str, ...]:
        return self.parts if self.is_init else self.parts[:-1]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [*ast.walk(self.tree)]


@dataclass(frozen=True)
class Metrics:
    """The metrics of a package; names of functions have their module before them."""

    modules: int
    folders: int
    lines: int
    largest: tuple[int, str]
    """Lines and name of the largest module."""
    cycles: Sequence[Sequence[str]]
    """Packages, and modules beside them, that import each other, directly or through others."""
    single_importer: Sequence[str]
    doubled: Mapping[str, int]
    """Name that several classes have -> how many."""
    errors: Sequence[str]
    """Classes of exceptions and warnings."""
    used_once: Sequence[str]
    """Functions and methods whose name the package mentions once beside their definition."""
    short_helpers: Sequence[str]
    lengths: Sequence[tuple[int, str]]
    """Lines and name of every function, shortest first."""


def measure(package: Path) -> Metrics:
    """Read every module below ``package``."""
    modules = [*read(package)]
    own = [module for module in modules if not module.is_init]
    classes = [node for module in modules for node in module.nodes if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in classes)
    lengths = [(_lines(node), f"{module.name}.{node.name}") for module in modules for node in _functions(module)]
    return Metrics(
        modules=len(own),
        folders=len({module.folder for module in modules}),
        lines=sum(module.lines for module in modules),
        largest=max((module.lines, module.name) for module in modules),
        cycles=cycles(package_imports(modules, package.name)),
        single_importer=single_importer(modules, package.name),
        doubled={name: count for name, count in sorted(names.items()) if count > 1},
        errors=error_classes(classes),
        used_once=used_once(modules),
        short_helpers=[name for module in modules for name in short_helpers(module)],
        lengths=sorted(lengths),
    )


def read(package: Path) -> Iterator[Module]:
    for path in sorted(package.rglob("*.py")):
        parts, text = path.relative_to(package).with_suffix("").parts, path.read_text()
        is_init = parts[-1] == "__init__"
        tree = ast.parse(text, str(path))
        yield Module(parts[:-1] if is_init else parts, is_init, text.count("\n"), tree)


def package_imports(modules: Sequence[Module], package: str) -> Graph:
    """Package -> the packages that it imports anywhere, also inside a function or for type checking alone.

    A module beside the packages counts as one of them. The ``__init__`` of the whole imports from everywhere, for
    users, and is left out.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for module in (module for module in modules if module.parts):
        here = module.parts[0]
        names = {name[1] for name in imports(module, package) if name[0] == package and len(name) > 1}
        found[here] |= (names & {other.parts[0] for other in modules if other.parts}) - {here}
    return found


def imports(module: Module, package: str) -> Iterator[tuple[str, ...]]:
    """The dotted name of everything that the module imports, split."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (package, *module.folder)[: len(module.folder) + 2 - node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*base, alias.name) for alias in node.names)


def cycles(graph: Graph) -> list[list[str]]:
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


def single_importer(modules: Sequence[Module], package: str) -> list[str]:
    """Modules that exactly one other module of the package imports."""
    names = {(package, *module.parts): module.name for module in modules if not module.is_init}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for imported in imports(module, package):
            for name in (names.get(imported), names.get(imported[:-1])):
                if name is not None and name != module.name:
                    importers[name].add(f"{module.name}{module.is_init}")
    return sorted(name for name, those in importers.items() if len(those) == 1)


def error_classes(classes: Sequence[ast.ClassDef]) -> list[str]:
    """Classes that derive from an exception or a warning, directly or through another class of the package."""
    bases = {node.name: {_named(base) for base in node.bases} for node in classes}
    found = {"Exception", "BaseException", "Warning"}
    found |= {name for those in bases.values() for name in those if name.endswith(("Error", "Exception", "Warning"))}
    while more := {name for name, those in bases.items() if those & found} - found:
        found |= more
    return sorted(found & bases.keys())


def used_once(modules: Sequence[Module]) -> list[str]:
    """Functions and methods whose name the package mentions once beside the definition and imports."""
    mentions = Counter(_named(node) for module in modules for node in module.nodes)
    functions = [(module, node) for module in modules for node in _functions(module)]
    defined = Counter(node.name for _, node in functions)
    return [
        f"{module.name}.{node.name}"
        for module, node in functions
        if mentions[node.name] == defined[node.name] == 1 and not node.decorator_list
    ]


def short_helpers(module: Module) -> Iterator[str]:
    """Private functions and methods without a decorator, of a few lines, that their module mentions once, to call them.

    A function that is passed by its name could not be inlined.
    """
    mentions = Counter(_named(node) for node in module.nodes)
    calls = {_named(node.func) for node in module.nodes if isinstance(node, ast.Call)}
    for scope in module.nodes:
        for node in scope.body if isinstance(scope, ast.Module | ast.ClassDef) else ():
            if not isinstance(node, Function) or not node.name.startswith("_") or node.name.startswith("__"):
                continue
            if not node.decorator_list and _lines(node) <= SHORT and mentions[node.name] == 1 and node.name in calls:
                yield f"{module.name}.{node.name}"


def _functions(module: Module) -> Iterator[Function]:
    return (node for node in module.nodes if isinstance(node, Function))


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def report(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """The name and the value of each metric of the package."""
    lines = [count for count, _ in metrics.lengths]
    yield "modules", str(metrics.modules)
    yield "folders", str(metrics.folders)
    yield "lines", str(metrics.lines)
    yield "largest module", "{} ({})".format(*metrics.largest)
    yield "modules with a single importer", str(len(metrics.single_importer))
    yield "packages in import cycles", _counted([name for cycle in metrics.cycles for name in cycle])
    yield "doubled class names", _counted([*metrics.doubled])
    yield "error classes", str(len(metrics.errors))
    yield "functions", str(len(lines))
    yield "functions used once", str(len(metrics.used_once))
    yield f"helpers of {SHORT} lines or fewer with one caller", str(len(metrics.short_helpers))
    yield "function lines, median", f"{statistics.median(lines):g}"
    yield "function lines, 90th percentile", str(lines[len(lines) * 9 // 10])
    yield "function lines, maximum", "{} ({})".format(*metrics.lengths[-1])
    yield f"functions over {LONG} lines", _counted([name for count, name in metrics.lengths if count > LONG])


def report_tests(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the sizes of the tests, and of the mutants beside them."""
    files = [*(root / MUTANTS).glob("*.toml")]
    yield "test lines", str(sum(path.read_text().count("\n") for path in (root / TESTS).rglob("*.py")))
    yield "mutants", str(sum(len(tomllib.loads(path.read_text()).get("mutant", [])) for path in files))
    yield "mutant lines", str(sum(path.read_text().count("\n") for path in files))


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def timed(package: Path, steps: int = STEPS, repeats: int = REPEATS) -> Iterator[tuple[str, str]]:
    """Seconds of CPU time in fresh processes; the first of each only fills the caches of bytecode."""
    for name, code in (
        (f"seconds of import {package.name}", f"metrics_timing.time_import({package.name!r})"),
        (f"seconds to parse a DAG of {steps} steps", f"metrics_timing.time_parsing({steps})"),
    ):
        samples = [_seconds(package, f"from scripts import metrics_timing; {code}") for _ in range(repeats + 1)]
        yield name, f"{statistics.median(samples[1:]):.3f}"


def _seconds(package: Path, code: str) -> float:
    """Run ``code`` where this package is the first on the path, with an empty Airflow."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    with tempfile.TemporaryDirectory() as home:
        environ |= {"AIRFLOW_HOME": home, "PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}"}
        done = subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def check_out(checkout: Path, commit: str, folder: Path) -> Path:
    """Unpack the package and the tests of ``commit`` below ``folder``, and return that."""
    archive = ["git", "-C", str(checkout), "archive", "--format=zip", commit, str(PACKAGE), str(TESTS)]
    with zipfile.ZipFile(io.BytesIO(subprocess.check_output(archive))) as packed:
        packed.extractall(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", metavar="COMMIT", help="measure the package of this commit instead of the checkout's")
    parser.add_argument("--timed", action="store_true", help="also time an import and the parsing of a DAG")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        root = check_out(ROOT, args.at, Path(folder)) if args.at else ROOT
        package = root / PACKAGE
        rows = [*report(measure(package)), *report_tests(root), *(timed(package) if args.timed else ())]
    for name, value in rows:
        print(f"{name:<48}{value}")


if __name__ == "__main__":
    main()
