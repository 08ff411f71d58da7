"""Slices of a file: one function and each top-level statement that its names depend on.

A DAG file imports Airflow, which a cluster lacks, so a cluster cannot import the file. It can import the slice:
imports, constants, helper functions and classes that the function uses travel with it: the statements that bind their
names. Airflow's decorators (``@task.ray``) are omitted. A function that uses anything of Airflow's, or a variable of an
enclosing function, is refused by name. Lines keep their numbers, so tracebacks match the real file.

The slice is run here, apart from the file. If a name gets another value than it has in the file, the statements that
change it (``CONFIG["lr"] = 2``) travel too; a name that even these do not make the same is refused. An object that the
file shares with other modules is the same in both, so a statement that changes it is refused instead.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tradewind.serialization.errors import FunctionImportError, SpecError
from tradewind.serialization.file_statements import (
    LAZY_ANNOTATIONS,
    FileStatements,
    decorators_of,
    first_line,
    imported_by,
    is_of_airflow,
    names_in,
    top_level,
)
from tradewind.serialization.value_checks import changes_of, other_values


@dataclass(frozen=True)
class FunctionSource:
    """A function with the parts of its file that it needs.

    Attributes:
        name: The function's name.
        file: The file name in tracebacks.
        pieces: The statements: the number of the first line, and the lines.
        imports: The modules that they import, anywhere.
    """

    name: str
    file: str
    pieces: list[tuple[int, str]]
    imports: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> FunctionSource:
        """Parse the source in a call's description."""
        pieces = [(int(line), str(text)) for line, text in fields["pieces"]]
        return FunctionSource(fields["name"], fields["file"], pieces, list(fields["imports"]))

    def load(self) -> Any:
        """Define the function in its own ``__main__``, as if its file were a script.

        Raises:
            FunctionImportError: A statement fails, usually an import.
        """
        body: list[ast.stmt] = []
        shown: list[str] = []
        for line, text in self.pieces:
            body += _parsed(line, text)
            shown += ["\n"] * (line - 1 - len(shown)) + text.splitlines(keepends=True)
        linecache.cache[self.file] = (sum(map(len, shown)), None, shown, self.file)
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module  # Ray tasks pickle its definitions by value
        code = compile(ast.Module(body, []), self.file, "exec", flags=LAZY_ANNOTATIONS, dont_inherit=True)
        try:
            exec(code, module.__dict__)
        except Exception as error:
            raise FunctionImportError(
                f"{self.name!r} of {self.file} cannot be set up on the cluster ({type(error).__name__}: {error}). "
                "Install what it imports in the cluster's image or its runtime_env, or import it inside the function."
            ) from error
        return getattr(module, self.name)


def _parsed(line: int, text: str) -> list[ast.stmt]:
    if text[0] not in " \t":
        return [ast.increment_lineno(node, line - 1) for node in ast.parse(text).body]
    (block,) = ast.parse(f"if 1:\n{text}").body
    assert isinstance(block, ast.If)
    return [ast.increment_lineno(node, line - 2) for node in block.body]


def imports_airflow(file: str) -> bool:
    """Whether importing this Python file imports Airflow, judged by its top-level statements."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    except RecursionError:
        return True  # so that the function itself is refused, with its name
    return any(is_of_airflow(name) for statement in top_level(tree.body) for name in imported_by(statement))


def source_of(function: types.FunctionType, shown_file: str) -> FunctionSource:
    """Return the slice of the function's file that it needs; ``shown_file`` is its name in tracebacks.

    Raises:
        SpecError: It is not a plain function, or needs something that cannot travel.
    """
    what = f"{function.__qualname__!r} of {shown_file}"
    if function.__name__ == "<lambda>" or inspect.iscoroutinefunction(function):
        raise SpecError(f"{what} is a lambda or a coroutine, which cannot run on a cluster: write a plain 'def'.")
    if function.__code__.co_freevars:
        names = ", ".join(map(repr, function.__code__.co_freevars))
        raise SpecError(f"{what} uses {names} of the function around it, which cannot travel: pass it as an argument.")
    lines = linecache.getlines(function.__code__.co_filename)
    if not lines:
        raise SpecError(f"{what} has no source file that could travel to the cluster.")
    try:
        file = FileStatements("".join(lines))
        slicer = _Slicer(file, what)
        changes: list[ast.stmt] = []
        errors: dict[str, SpecError] = {}
        while True:
            statements = slicer.slice(function.__name__, function.__code__.co_firstlineno, changes)
            source = slicer.source(statements, function.__name__, shown_file)
            others = other_values(file, what, statements, function, changes, errors.keys())
            if not others:
                return source
            errors = {**others, **errors}
            new = [each for each in changes_of(file, others, statements) if slicer.has_own_lines(each)]
            if not new:
                raise errors[next(iter(others))]
            changes += new
    except RecursionError:
        raise SpecError(f"{what} cannot travel: an expression of its file is nested too deeply.") from None


class _Slicer:
    """Picks the statements of one file that a function needs."""

    def __init__(self, file: FileStatements, what: str) -> None:
        self.file = file
        self.what = what

    def slice(self, name: str, line: int, changes: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Return the needed statements, and with them ``changes``, in the order of the file."""
        start = self._find(name, line)
        found: dict[int, ast.stmt] = {}
        seen: set[str] = set()
        pending = [start, *changes]
        while pending:
            statement = pending.pop()
            if id(statement) not in found:
                found[id(statement)] = statement
                new = self._names_used(statement) - seen
                seen |= new
                pending += [binding for needed in new for binding in self.file.bindings.get(needed, ())]
        if name in seen and not any(start in ast.walk(each) for each in self.file.bindings.get(name, ())):
            raise SpecError(f"{self.what} uses another {name!r} of its file, which cannot travel with it: rename one.")
        return _outermost(sorted(found.values(), key=lambda each: (each.lineno, each.col_offset)))

    def source(self, statements: list[ast.stmt], name: str, shown_file: str) -> FunctionSource:
        pieces = dict.fromkeys(self._piece(statement) for statement in statements)
        return FunctionSource(name, shown_file, list(pieces), self._imports(statements))

    def has_own_lines(self, statement: ast.stmt) -> bool:
        """Whether the lines of the statement hold no other one, which would travel with it."""
        try:
            parsed = _parsed(*self._piece(statement))
        except SyntaxError:
            return False
        return [*map(ast.dump, parsed)] == [ast.dump(self.file.without_airflow(statement))]

    def _find(self, name: str, line: int) -> ast.stmt:
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name and first_line(node) == line:
                return node
        raise SpecError(f"{self.what} is not at line {line} of its file: the file was edited after it was loaded.")

    def _names_used(self, statement: ast.stmt) -> set[str]:
        """Return the names of the file that the statement uses; refuse one that cannot travel."""
        names = self.file.names_of(self.file.without_airflow(statement))
        if absent := {name for name in names.used & _ABSENT if name not in self.file.bindings}:
            raise SpecError(
                f"{self.what} uses {min(absent)!r} (line {statement.lineno}), and neither the file nor its "
                "other names exist on a cluster: pass what it needs as an argument."
            )
        for name in sorted(names.used_in_functions - _MODULE_NAMES):
            if name not in self.file.bindings and not hasattr(builtins, name):
                hint = ": import it by its name rather than with '*'" if "*" in self.file.bindings else ""
                raise SpecError(
                    f"{self.what} uses {name!r} (line {statement.lineno}), which its file does not define at its top "
                    f"level{hint}."
                )
        for name in sorted(filter(self.file.needs_airflow, names.used)):
            raise SpecError(
                f"{self.what} uses {name!r}, which needs Airflow, and Airflow is not installed on a cluster: pass "
                "what it is needed for as an argument."
            )
        return {*names.used, *(name for name in _names_in_fields(statement) if not self.file.needs_airflow(name))}

    def _piece(self, statement: ast.stmt) -> tuple[int, str]:
        """Return first line number and text of the statement; lines of omitted decorators are empty."""
        bare = self.file.without_airflow(statement)
        first, last = first_line(bare), statement.end_lineno or statement.lineno
        lines = self.file.lines[first - 1 : last]
        for decorator in decorators_of(statement):
            if decorator not in decorators_of(bare):
                for number in range(decorator.lineno, (decorator.end_lineno or decorator.lineno) + 1):
                    if number >= first:
                        lines[number - first] = "\n"
        return first, "".join(lines)

    def _imports(self, statements: Iterable[ast.stmt]) -> list[str]:
        nodes = [node for statement in statements for node in ast.walk(statement)]
        if any(isinstance(node, ast.ImportFrom) and node.level for node in nodes):
            raise SpecError(f"{self.what} uses a relative import: write the whole name of the module.")
        return sorted({name for node in nodes for name in imported_by(node)})


_ABSENT = frozenset({"__file__", "globals"})
_MODULE_NAMES = frozenset({"__name__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__"})


def _outermost(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Leave out statements of a ``with`` block that is itself among the statements."""
    found: list[ast.stmt] = []
    end = 0
    for statement in statements:
        if statement.lineno > end:
            found.append(statement)
            if isinstance(statement, ast.With):
                end = statement.end_lineno or statement.lineno
    return found


def _names_in_fields(statement: ast.stmt) -> set[str]:
    """Return the names in a class's field annotations, which a library may look up at class creation."""
    if not isinstance(statement, ast.ClassDef):
        return set()
    fields = [member.annotation for member in statement.body if isinstance(member, ast.AnnAssign)]
    return {name for field in fields for name in names_in(field)}
