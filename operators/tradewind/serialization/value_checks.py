"""Find names of a DAG file to which the statements that travel with a function give another value than they have there.

The statements run here, apart from the file, and the values are compared. A value that cannot be compared is refused if
the file mentions it elsewhere; an object that the file shares with other modules, if another statement changes it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tradewind.serialization.errors import SpecError
from tradewind.serialization.file_statements import (
    DEFINITIONS,
    FileStatements,
    code_of,
    decorators_of,
    imported_by,
    names_in,
    texts_in,
    top_level,
    words_in,
)
from tradewind.serialization.value_comparison import DEFINED, Pairs, Verdict, compare, is_fixed

_CHANGING_METHODS: Final = frozenset({
    "__delitem__", "__setattr__", "__setitem__", "add", "append", "appendleft", "clear", "difference_update", "discard",
    "extend", "extendleft", "fill", "insert", "intersection_update", "manual_seed", "move_to_end", "pop", "popitem",
    "popleft", "remove", "reverse", "rotate", "seed", "setdefault", "sort", "subtract", "symmetric_difference_update",
    "update",
})  # fmt: skip
_CLOCKS: Final = frozenset({"ctime", "gmtime", "localtime", "now", "strftime", "time", "time_ns", "today", "utcnow"})
_PURE_MODULES: Final = frozenset({
    "abc", "collections", "copy", "dataclasses", "datetime", "enum", "functools", "itertools", "json", "math",
    "operator", "pathlib", "re", "string", "textwrap", "types", "typing",
})  # fmt: skip
_IMPURE: Final = _CLOCKS | {
    "__import__", "__module__", "absolute", "cwd", "eval", "exec", "exists", "expanduser", "glob", "hash", "home",
    "id", "input", "is_dir", "is_file", "iterdir", "mkdir", "open", "read_bytes", "read_text", "resolve", "rglob",
    "stat", "touch", "unlink", "walk", "write_bytes", "write_text",
}  # fmt: skip
_VIEWS: Final = ("items", "keys", "values")
_MISSING: Final = object()


class _Change(NamedTuple):
    """A statement's change of an object in place, such as of ``A.b`` by ``A.b["x"] = 1``.

    Attributes:
        place: The object.
        parts: What a function that reads it has in its source: ``place``, or the name of an environment variable.
        line: The line of the change.
    """

    place: ast.expr
    parts: set[str]
    line: int


def other_values(
    file: FileStatements,
    what: str,
    statements: Sequence[ast.stmt],
    function: types.FunctionType,
    changes: Sequence[ast.stmt],
    changed: Collection[str],
) -> dict[str, SpecError]:
    """Return the names to which the slice ``statements`` gives another value than they have in the file.

    The ``changes`` are in the slice since they change the names in ``changed``, which must then have the same value.

    Raises:
        SpecError: Another statement may change a value; the message has the name and the line.
    """
    others: dict[str, SpecError] = {}
    actual = {**function.__globals__, function.__name__: function}
    module, elsewhere = function.__module__, _statements_elsewhere(file, statements)
    found = list(_changes_in(elsewhere, file.bindings))
    names = ((node.id, node.lineno) for each in elsewhere for node in ast.walk(each) if isinstance(node, ast.Name))
    mentions = dict(sorted(names, reverse=True))  # the first line of each
    places = dict(sorted(((name, each.line) for each in found for name in names_in(each.place)), reverse=True))
    imported = {name for each in statements for node in ast.walk(each) for name in imported_by(node)}
    shared = {id(sys.modules[name]): name for name in imported & sys.modules.keys()}
    one, two, known = _SliceRun(file, actual, statements, changes), None, Pairs()
    lines = {name: each.lineno for each in statements for name in file.names_of(each).bound if not file.is_task(each)}
    for name, line in {**lines, function.__name__: function.__code__.co_firstlineno}.items():
        value, given = actual.get(name, _MISSING), one.value_of(name)
        if value is function and callable(given):
            given = inspect.unwrap(given)
        verdict, same = (
            (Verdict.UNKNOWN, [value]) if name in one.failed else compare(value, given, given, module, known)
        )
        if verdict is Verdict.OTHER and name not in changed:
            two = two or _SliceRun(file, actual, statements, changes)
            verdict, same = compare(value, given, two.value_of(name), module, known)
        shared.update((id(each), name) for each in same if not is_fixed(each))
        is_other = verdict is Verdict.OTHER and not _reads_clock(file, name)
        if is_other or (verdict is not Verdict.SAME and name in changed):
            at = places.get(name) or mentions.get(name)
            hint = f" (line {at} may change it)" if at else ""
            others[name] = SpecError(
                f"{what} uses {name!r}, which has another value in the DAG file than line {line} gives it{hint}: build "
                "it in one expression or in a function, or pass it as an argument."
            )
        elif verdict is not Verdict.SAME and name in mentions and not _is_constant(value):
            raise _refusal(what, name, mentions[name])
    if not others:
        _refuse_changes_of(shared, found, what, statements, actual)
    return others


def _refuse_changes_of(
    shared: Mapping[int, str],
    changes: Iterable[_Change],
    what: str,
    statements: Sequence[ast.stmt],
    actual: dict[str, Any],
) -> None:
    """Refuse a change of an object that the file shares with other modules."""
    nodes = (node for each in statements for node in ast.walk(each) if isinstance(node, ast.Attribute))
    used = set[str]().union(map(ast.unparse, nodes), *map(texts_in, statements))
    for change in changes:
        owners = _objects(change.place, actual)
        for owner in owners:
            is_changed = owner is owners[-1] or not isinstance(owner, types.ModuleType) or used >= change.parts
            if id(owner) in shared and is_changed:
                raise _refusal(what, shared[id(owner)], change.line)


def changes_of(file: FileStatements, names: Iterable[str], statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements elsewhere that change the names or what such a change uses, of those that can travel."""
    inside = {id(each) for statement in statements for each in ast.walk(statement)}
    outside = [(each, _names_changed(file, each)) for each in file.statements if id(each) not in inside]
    reached_by = functools.cache(file.reached)
    reached = [(each, set[str]().union(*map(reached_by, roots | used))) for each, (roots, used) in outside]
    found, needed = dict[int, ast.stmt](), {*names}
    while new := [each for each, changed in reached if id(each) not in found and not needed.isdisjoint(changed)]:
        found.update((id(each), each) for each in new)
        needed = needed.union(*(file.names_of(each).used for each in new))
    return [each for each in found.values() if _can_travel(file, each, reached_by)]


def _can_travel(file: FileStatements, statement: ast.stmt, reached_by: Callable[[str], set[str]]) -> bool:
    """Whether the change runs no task, needs no Airflow, and gives the same on each machine."""
    bare = file.without_airflow(statement)
    used = file.names_of(bare).used
    reached = (each for name in used for other in reached_by(name) for each in file.bindings.get(other, ()))
    if any(map(file.is_task, [statement, *reached])) or any(map(file.needs_airflow, used)):
        return False
    return all(_is_pure(file, each) for each in (*_ran_by(file, [statement]), *decorators_of(bare)))


def _is_pure(file: FileStatements, node: ast.AST) -> bool:
    """Whether the node uses the file's values, data of other modules, and functions of pure modules only."""
    nodes = list(ast.walk(node))
    calls = [each.func for each in nodes if isinstance(each, ast.Call)]
    called = {name for each in calls if getattr(each, "attr", None) not in _VIEWS for name in names_in(each)}
    imports = [(name, each) for name in names_in(node) for each in file.bindings.get(name, ())]
    for name, statement in [*imports, *((None, each) for each in nodes)]:
        for module in {each.partition(".")[0] for each in imported_by(statement)} - _PURE_MODULES:
            if name is None or name in called or module in sys.stdlib_module_names:
                return False
    loops = [each.iter for each in nodes if isinstance(each, (ast.For, ast.comprehension))]
    values = [getattr(each, "value", None) for loop in loops for each in file.bindings.get(getattr(loop, "id", ""), ())]
    if any(isinstance(each, (ast.Set, ast.SetComp)) for each in (*loops, *values)):
        return False  # its order differs from process to process
    return "__name__" not in names_in(node) and _IMPURE.isdisjoint(words_in(node))


def _names_changed(file: FileStatements, statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names by which the statement changes values; and what it uses if it changes parts or local values."""
    ran = _ran_by(file, list(top_level([statement])))
    places = [change.place for change in _changes_in(ran, file.bindings)]
    own = file.bindings.keys() - (names := file.names_of(statement)).bound
    is_plain = all(isinstance(place, ast.Name) and place.id in own for place in places)
    return {name for place in places for name in names_in(place)}, set() if is_plain else names.used


def _refusal(what: str, name: str, line: int) -> SpecError:
    return SpecError(
        f"{what} uses {name!r}, and line {line} may change it, which has no effect on the cluster: make the change "
        "inside the function, or pass what it needs as an argument."
    )


class _SliceRun:
    """What names get when the statements run apart from the file; those of a statement that fails are ``failed``."""

    def __init__(
        self, file: FileStatements, actual: dict[str, Any], statements: Sequence[ast.stmt], changes: Sequence[ast.stmt]
    ) -> None:
        self.failed: set[str] = set()
        travelling, given = {*map(id, changes)}, dict[str, set[str]]()
        reached = functools.cache(file.reached)
        self._values: dict[str, Any] = {"__name__": actual.get("__name__"), "__doc__": None}
        for statement in statements:
            names = file.names_of(statement)
            if is_change := not travelling.isdisjoint(map(id, top_level([statement]))):
                roots, of_parts = _names_changed(file, statement)
                given.update((root, given.get(root, set()) | names.used) for root in roots)
                if of_parts:
                    uses = set[str]().union(*map(reached, names.used))
                    uses = uses.union(*(reached(name) for each in uses for name in given.get(each, ())))
                    roots |= {each for each in uses if not _is_constant(actual.get(each))}
            else:
                running = [] if isinstance(statement, DEFINITIONS) else [statement]
                roots = {name for change in _changes_in(running) for name in names_in(change.place)}
            try:
                if any(self.value_of(root) is actual.get(root) and not is_fixed(actual[root]) for root in roots):
                    raise ValueError  # it would change another module's object once more
                exec(code_of(file.without_airflow(statement), "<slice>"), self._values)
            except (Exception, SystemExit):  # the cluster reports it
                self.failed |= names.bound | (names.used if is_change else set())

    def value_of(self, name: str) -> Any:
        return self._values.get(name, _MISSING)


def _statements_elsewhere(file: FileStatements, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return what runs when the file is loaded but not with ``statements``."""
    inside = {id(each) for statement in statements for each in ast.walk(statement)}
    return _ran_by(file, [each for each in file.statements if id(each) not in inside])


def _ran_by(file: FileStatements, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return what runs of the statements, and the definitions that this calls; not what ``with`` blocks hold."""
    found = [each for each in statements if not isinstance(each, (*DEFINITIONS, ast.With))]
    bodies = [inner for each in statements if isinstance(each, ast.ClassDef) for inner in each.body]
    found += [each for each in bodies if not isinstance(each, DEFINITIONS)]
    called = [decorator for each in statements for decorator in decorators_of(file.without_airflow(each))]
    called += [node.func for each in found for node in ast.walk(each) if isinstance(node, ast.Call)]
    names: set[str] = set()
    while new := {name for each in called for name in names_in(each)} - names:
        names |= new
        bindings = [each for name in new for each in file.bindings.get(name, ()) if isinstance(each, DEFINITIONS)]
        found += (ran := [each for each in bindings if not file.is_task(each)])
        called = [node.func for each in ran for node in ast.walk(each) if isinstance(node, ast.Call)]
    return found


def _changes_in(
    statements: Iterable[ast.stmt], called: Mapping[str, Sequence[ast.stmt]] = types.MappingProxyType({})
) -> Iterator[_Change]:
    """Yield the changes in the statements; a call of a function in ``called`` changes what its parameters change."""
    for node in (node for each in statements for node in ast.walk(each) if isinstance(node, (ast.expr, ast.stmt))):
        if (place := _changed_by(node)) is not None:
            keys = [node.slice] if isinstance(node, ast.Subscript) else getattr(node, "args", [])[:1]
            texts = set[str]().union(*map(texts_in, keys)) if "environ" in words_in(place) else set()
            yield _Change(place, texts or {ast.unparse(place)}, node.lineno)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        for function in called.get(node.func.id, ()):
            if isinstance(function, ast.FunctionDef):
                inner = {name for each in _changes_in(function.body) for name in names_in(each.place)}
                parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
                given = [*zip(parameters, node.args, strict=False), *((each.arg, each.value) for each in node.keywords)]
                yield from (_Change(value, set(), node.lineno) for name, value in given if name in inner)


def _changed_by(node: ast.AST) -> ast.expr | None:
    """Return the object that a part of a statement changes by itself."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        is_method = isinstance(node, ast.Attribute) and node.attr in _CHANGING_METHODS
        is_changed = not isinstance(node.ctx, ast.Load) or (is_method and "environ" not in words_in(node.value))
        return node.value if is_changed else None
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING_METHODS:
        is_of_class = isinstance(node.func.value, ast.Name) and hasattr(builtins, node.func.value.id)
        return node.args[0] if is_of_class and node.args else node.func.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        return node.args[0] if node.func.id in ("setattr", "delattr", "next") else None
    return None


def _is_constant(value: Any) -> bool:
    return is_fixed(value) or isinstance(value, DEFINED)


def _objects(place: ast.expr, actual: dict[str, Any]) -> list[Any]:
    """Return the objects of ``A``, ``A.b`` and ``A.b["x"]``, as far as they are known without calling anything."""
    if isinstance(place, ast.Name):
        return [actual[place.id]] if place.id in actual else []
    if not isinstance(place, (ast.Attribute, ast.Subscript)) or not (found := _objects(place.value, actual)):
        return []
    with contextlib.suppress(Exception):
        if isinstance(place, ast.Attribute):
            return [*found, vars(found[-1])[place.attr]]
        if type(found[-1]) in (dict, list, tuple) and isinstance(place.slice, ast.Constant):
            return [*found, found[-1][place.slice.value]]
    return [*found, None]


def _reads_clock(file: FileStatements, name: str) -> bool:
    bindings = (each for needed in file.reached(name) for each in file.bindings.get(needed, ()))
    return any(not _CLOCKS.isdisjoint(words_in(each)) for each in bindings)
