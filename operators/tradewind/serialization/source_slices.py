"""Slices of a file: one function and each top-level statement that its names depend on.

A DAG file imports Airflow, which a cluster lacks, so a cluster cannot import the file. It can import the slice:
imports, constants, helper functions and classes that the function uses travel with it, and so do the statements that
change those constants and classes in place. Airflow's decorators (``@task.ray``) are omitted. A function that uses
anything of Airflow's, or a variable of an enclosing function, is refused by name. Lines keep their numbers, so
tracebacks match the real file.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import linecache
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tradewind.serialization.errors import FunctionImportError, SpecError

_AIRFLOW_PACKAGES = ("decorators", "deployment", "hooks", "links", "operators", "sensors", "tasks", "triggers")
_WITH_AIRFLOW = ("airflow", *(f"tradewind.{package}" for package in _AIRFLOW_PACKAGES))
_LAZY_ANNOTATIONS = __future__.annotations.compiler_flag
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = _Function | ast.ClassDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
        code = compile(ast.Module(body, []), self.file, "exec", flags=_LAZY_ANNOTATIONS, dont_inherit=True)
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
    return any(_is_of_airflow(name) for statement in _top_level(tree.body) for name in _imported_by(statement))


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
    return _Slicer("".join(lines), what).slice(function.__name__, function.__code__.co_firstlineno, shown_file)


class _Slicer:
    """Picks the statements of one file that a function needs."""

    def __init__(self, text: str, what: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)
        self.what = what
        self.bindings: dict[str, list[ast.stmt]] = {}
        for statement in _top_level(self.tree.body):
            for name in _bound_by(statement):
                self.bindings.setdefault(name, []).append(statement)
        self.of_airflow = self._names_of_airflow()
        self.changes = self._changes()

    def slice(self, name: str, line: int, shown_file: str) -> FunctionSource:
        found: dict[int, ast.stmt] = {}
        pending = [self._find(name, line)]
        while pending:
            statement = pending.pop()
            if id(statement) not in found:
                found[id(statement)] = statement
                pending += self._needed_by(statement)
        statements = sorted(found.values(), key=lambda statement: statement.lineno)
        pieces = dict.fromkeys(self._piece(statement) for statement in statements)
        return FunctionSource(name, shown_file, list(pieces), self._imports(statements))

    def _find(self, name: str, line: int) -> ast.stmt:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name and _first_line(node) == line:
                return node
        raise SpecError(f"{self.what} is not at line {line} of its file: the file was edited after it was loaded.")

    def _needed_by(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        bare = self._without_airflow(statement)
        self._refuse_undefined(bare)
        for name in _names_needed(bare):
            if name in self.of_airflow:
                raise SpecError(
                    f"{self.what} uses {name!r}, which needs Airflow, and Airflow is not installed on a cluster: pass "
                    "what it is needed for as an argument."
                )
            yield from self.bindings.get(name, ())
            yield from self._changes_of(name)
        for name in _names_in_fields(statement) - self.of_airflow:
            yield from self.bindings.get(name, ())

    def _changes(self) -> dict[str, list[ast.stmt]]:
        """Return name -> statements that change its value in place; a module's state is not of the file."""
        imported = {name for name, found in self.bindings.items() if all(map(_is_import, found))}
        tasks = {name for name, found in self.bindings.items() if any(self._is_task(statement) for statement in found)}
        finder = _ChangeFinder(self.tree.body, ignored=tasks | self.of_airflow, modules=imported)
        changes: dict[str, list[ast.stmt]] = {}
        for statement in _top_level(self.tree.body):
            for name in finder.changed_by(statement) - imported:
                changes.setdefault(name, []).append(statement)
        return changes

    def _is_task(self, statement: ast.stmt) -> bool:
        return len(_decorators(statement)) > len(_decorators(self._without_airflow(statement)))

    def _changes_of(self, name: str) -> list[ast.stmt]:
        for statement in self.changes.get(name, ()):
            for needed in sorted(_names_needed(self._without_airflow(statement)) & self.of_airflow):
                raise SpecError(
                    f"{self.what} uses {name!r}, which line {statement.lineno} changes with {needed!r}, which needs "
                    "Airflow, and Airflow is not installed on a cluster: pass the value as an argument."
                )
        return self.changes.get(name, [])

    def _refuse_undefined(self, statement: ast.stmt) -> None:
        if "__file__" in _names_needed(statement):
            raise SpecError(
                f"{self.what} uses '__file__' (line {statement.lineno}), and the file does not exist on a cluster: "
                "pass the path as an argument."
            )
        for name in _names_needed(statement, _IN_FUNCTIONS):
            if name not in self.bindings and not hasattr(builtins, name) and name not in _MODULE_NAMES:
                hint = ": import it by its name rather than with '*'" if "*" in self.bindings else ""
                raise SpecError(f"{self.what} uses {name!r}, which its file does not define{hint}.")

    def _names_of_airflow(self) -> frozenset[str]:
        """Return the top-level names whose values require Airflow."""
        found = {
            name
            for statement in _top_level(self.tree.body)
            if any(map(_is_of_airflow, _imported_by(statement)))
            for name in _bound_by(statement)
        }
        before = -1
        while len(found) != before:
            before = len(found)
            for name, statements in self.bindings.items():
                if any(_names_needed(_undecorated(statement, found)) & found for statement in statements):
                    found.add(name)
        return frozenset(found)

    def _without_airflow(self, statement: ast.stmt) -> ast.stmt:
        return _undecorated(statement, self.of_airflow)

    def _piece(self, statement: ast.stmt) -> tuple[int, str]:
        """Return first line number and text of the statement; lines of omitted decorators are empty."""
        bare = self._without_airflow(statement)
        first, last = _first_line(bare), statement.end_lineno or statement.lineno
        lines = self.lines[first - 1 : last]
        for decorator in _decorators(statement):
            if decorator not in _decorators(bare):
                for number in range(decorator.lineno, (decorator.end_lineno or decorator.lineno) + 1):
                    if number >= first:
                        lines[number - first] = "\n"
        return first, "".join(lines)

    def _imports(self, statements: Iterable[ast.stmt]) -> list[str]:
        nodes = [node for statement in statements for node in ast.walk(statement)]
        if any(isinstance(node, ast.ImportFrom) and node.level for node in nodes):
            raise SpecError(f"{self.what} uses a relative import: write the whole name of the module.")
        return sorted({name for node in nodes for name in _imported_by(node)})


_MUTATORS = frozenset({
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "fill", "insert",
    "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
    "sort", "subtract", "symmetric_difference_update", "update",
})  # fmt: skip
"""Methods that change their object, wherever they are called."""
_LOGGING = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
"""Methods that change nothing. Any other method is taken for a change if its result is not used."""


class _ChangeFinder:
    """Finds the names whose values a statement changes in place: ``A["x"] = 1``, ``A.append(1)``, ``change(A)``.

    Calls of the file's functions count by what their bodies change, calls of others by their arguments if the result is
    not used. A name that another one is bound to, or that a loop goes over, is changed with it.

    Args:
        body: Statements of the file.
        ignored: Names whose calls change nothing: Airflow's, and tasks.
        modules: Names of imports.
    """

    def __init__(self, body: list[ast.stmt], ignored: Iterable[str], modules: Iterable[str]) -> None:
        self._ignored = {*ignored, "print"}
        self._modules = {*modules}
        self._functions = {each.name: each for each in _top_level(body) if isinstance(each, _Function)}
        self._aliases: dict[str, set[str]] = {}
        for statement in _top_level(body):
            self._collect_aliases(statement)
        self._of_function: dict[str, set[str]] = {}

    def changed_by(self, statement: ast.stmt) -> set[str]:
        """Return the names that the statement changes when it runs, without the bodies of its definitions."""
        if isinstance(statement, (*_DEFINITIONS, ast.With)):  # the statements of the block are visited for themselves
            return set()
        return self._with_aliases(self._changes([statement]))

    def _changes(self, body: Iterable[ast.AST]) -> set[str]:
        found: set[str] = set()
        for node in _shallow(body):
            if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
                found |= _root(node)
            elif isinstance(node, ast.Call):
                found |= self._changes_by_call(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                found |= self._changes_by_discarded_call(node.value)
        return found

    def _changes_by_call(self, call: ast.Call) -> set[str]:
        if isinstance(call.func, ast.Attribute):
            return _root(call.func.value) if call.func.attr in _MUTATORS else set()
        if not isinstance(call.func, ast.Name) or call.func.id in self._ignored:
            return set()
        function = self._functions.get(call.func.id)
        return set() if function is None else self._changes_by_function(function, call)

    def _changes_by_discarded_call(self, call: ast.Call) -> set[str]:
        root = _root(call.func)
        if root & self._ignored or root & self._functions.keys():
            return set()
        if isinstance(call.func, ast.Attribute) and not root & self._modules:
            return set() if call.func.attr in _LOGGING else root
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        return {value.id for value in values if isinstance(value, ast.Name)}

    def _changes_by_function(self, function: _Function, call: ast.Call) -> set[str]:
        changed = self._changed_in(function)
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        given = dict(zip(parameters, call.args, strict=False)) | {str(each.arg): each.value for each in call.keywords}
        own = {*parameters, *(each.arg for each in function.args.kwonlyargs)}
        return (changed - own).union(*(_root(value) for name, value in given.items() if name in changed))

    def _changed_in(self, function: _Function) -> set[str]:
        """Return the parameters and the file's names that a call of the function changes or binds."""
        if function.name not in self._of_function:
            self._of_function[function.name] = set()  # ends a recursion
            bound = {name for node in _shallow(function.body) if isinstance(node, ast.Global) for name in node.names}
            local = {
                node.id
                for node in _shallow(function.body)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in bound
            }
            self._of_function[function.name] = bound | (self._changes(function.body) - local)
        return self._of_function[function.name]

    def _collect_aliases(self, statement: ast.stmt) -> None:
        for node in _shallow([statement]):
            if isinstance(node, ast.Assign):
                targets, roots = node.targets, _root(node.value)
            elif isinstance(node, (ast.For, ast.comprehension)):
                targets, roots = [node.target], {each.id for each in _names_in(node.iter)}
            else:
                continue
            for target in targets:
                for name in _names_in(target):
                    if isinstance(name.ctx, ast.Store):
                        self._aliases.setdefault(name.id, set()).update(roots - self._ignored - self._modules)

    def _with_aliases(self, names: set[str]) -> set[str]:
        found: set[str] = set()
        waiting = [*names]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._aliases.get(name, ())
        return found


def _shallow(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run with these statements, without those of definitions in them."""
    for node in body:
        yield node
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            yield from _shallow(ast.iter_child_nodes(node))


def _root(expression: ast.AST) -> set[str]:
    """Return the name that ``name.attribute[index]`` begins with."""
    while isinstance(expression, (ast.Attribute, ast.Subscript, ast.Starred)):
        expression = expression.value
    return {expression.id} if isinstance(expression, ast.Name) else set()


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


_MODULE_NAMES = frozenset({"__name__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__"})
_IN_FUNCTIONS = ("LOAD_GLOBAL",)
_ANYWHERE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements of a file, and each of those in a ``with DAG(...)`` block."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With):
            yield from _top_level(statement.body)


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds at module level."""
    if isinstance(statement, _Definition):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.With):  # the names that its body binds are collected separately
        return {node.id for item in statement.items if item.optional_vars for node in _names_in(item.optional_vars)}
    found = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for child in ast.walk(statement):
        if child is not statement and isinstance(child, (_Definition, ast.Import, ast.ImportFrom)):
            found |= _bound_by(child)
    return found


def _names_in(expression: ast.AST) -> Iterator[ast.Name]:
    return (node for node in ast.walk(expression) if isinstance(node, ast.Name))


def _imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def _is_of_airflow(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in _WITH_AIRFLOW)


def _names_needed(statement: ast.stmt, instructions: tuple[str, ...] = _ANYWHERE) -> set[str]:
    """Return the module-level names used when the statement runs or its definitions are called."""
    code = compile(ast.Module([statement], []), "-", "exec", flags=_LAZY_ANNOTATIONS, dont_inherit=True)
    return set(_looked_up(code, instructions))


def _looked_up(code: types.CodeType, instructions: tuple[str, ...]) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in instructions:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _looked_up(constant, instructions)


def _names_in_fields(statement: ast.stmt) -> set[str]:
    """Return the names in a class's field annotations, which a library may look up at class creation."""
    if not isinstance(statement, ast.ClassDef):
        return set()
    fields = [member.annotation for member in statement.body if isinstance(member, ast.AnnAssign)]
    return {node.id for field in fields for node in _names_in(field)}


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return statement.decorator_list if isinstance(statement, _Definition) else []


def _undecorated(statement: ast.stmt, of_airflow: Iterable[str]) -> ast.stmt:
    """Return the same definition without the decorators that need Airflow."""
    if not isinstance(statement, _Definition):
        return statement
    names = set(of_airflow)
    others = [each for each in statement.decorator_list if names.isdisjoint(node.id for node in _names_in(each))]
    fields = dict(ast.iter_fields(statement)) | {"decorator_list": others}
    return ast.copy_location(type(statement)(**fields), statement)


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(decorator.lineno for decorator in _decorators(statement))])
