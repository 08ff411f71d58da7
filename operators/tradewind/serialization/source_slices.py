"""Slices of a file: one function and each top-level statement that its names depend on.

A DAG file imports Airflow, which a cluster lacks, so a cluster cannot import the file. It can import the slice:
imports, constants, helper functions and classes that the function uses travel with it, and so do plain statements that
change those constants and classes in place (``CONFIG["lr"] = 2``). Airflow's decorators (``@task.ray``) are omitted. A
function that uses anything of Airflow's, or a variable of an enclosing function, is refused by name. Lines keep their
numbers, so tracebacks match the real file.

Other changes, such as by a helper function, are not followed. Instead the slice is run here, apart from the file, and a
constant that gets another value than it has in the file is refused by name.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import dis
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tradewind.serialization.errors import FunctionImportError, SpecError
from tradewind.serialization.value_comparison import ValueComparison

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
    except RecursionError:
        return True  # so that the function itself is refused, with its name
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
    try:
        slicer = _Slicer("".join(lines), what)
        statements = slicer.slice(function.__name__, function.__code__.co_firstlineno)
        source = slicer.source(statements, function.__name__, shown_file)
    except RecursionError:
        raise SpecError(f"{what} cannot travel: an expression of its file is nested too deeply.") from None
    slicer.refuse_other_values(statements, function)
    return source


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
        self._needed: dict[int, tuple[ast.stmt, frozenset[str]]] = {}
        self._bare: dict[int, ast.stmt] = {}
        self.of_airflow = self._names_of_airflow()
        tasks = {name for name, found in self.bindings.items() if any(map(self._is_task, found))}
        self.not_plain = self.of_airflow | tasks
        self.changes: dict[str, list[ast.stmt]] = {}
        for statement in self._plain_statements(self.tree.body):
            for name in self._changed_by(statement):
                self.changes.setdefault(name, []).append(statement)

    def slice(self, name: str, line: int) -> list[ast.stmt]:
        """Return the needed statements in the order of the file."""
        found: dict[int, ast.stmt] = {}
        seen: set[str] = set()
        pending = [self._find(name, line)]
        while pending:
            statement = pending.pop()
            if id(statement) not in found:
                found[id(statement)] = statement
                for needed in self._names_used(statement) - seen:
                    seen.add(needed)
                    pending += [*self.bindings.get(needed, ()), *self.changes.get(needed, ())]
        return _outermost(sorted(found.values(), key=lambda each: (each.lineno, each.col_offset)))

    def source(self, statements: list[ast.stmt], name: str, shown_file: str) -> FunctionSource:
        pieces = dict.fromkeys(self._piece(statement) for statement in statements)
        return FunctionSource(name, shown_file, list(pieces), self._imports(statements))

    def refuse_other_values(self, statements: list[ast.stmt], function: types.FunctionType) -> None:
        """Refuse a constant that the slice gives another value than it has in the file.

        The statements run here twice. A name whose value differs between the two runs, or is read from the clock or the
        environment, is not compared; nothing is if a statement fails, since the cluster reports that.
        """
        if not all(_is_import(each) or isinstance(each, _Function) or self._is_literal(each) for each in statements):
            ran = statements
        else:
            ran = [each for each in statements if self._is_literal(each)]
        names = {name: each for each in ran if not _is_import(each) for name in _bound_by(each)}
        names.pop(function.__name__, None)
        if not names.keys() & function.__globals__.keys():
            return
        try:
            codes = [(self._roots_of(each), _code_of(self._without_airflow(each), "<slice>")) for each in ran]
            first, second = (_values_of(codes, function) for _ in range(2))
        except (Exception, SystemExit):
            return
        defined = {each.name for each in statements if isinstance(each, ast.ClassDef)}
        unstable = self._unstable(statements)
        actual = function.__globals__
        for name, statement in names.items():
            if name in unstable or name not in first or name not in actual:
                continue
            comparison = ValueComparison(function.__module__, defined)
            if not comparison.is_same(first[name], actual[name]) and comparison.is_same(first[name], second.get(name)):
                later = self._line_that_may_change(name, statement, statements)
                hint = f" (line {later} may change it)" if later else ""
                raise SpecError(
                    f"{self.what} uses {name!r}, which has another value in the DAG file than line {statement.lineno} "
                    f"gives it{hint}: set its value where it is defined, or pass it as an argument."
                )

    def _is_literal(self, statement: ast.stmt) -> bool:
        """Whether the statement gives one name an immutable literal, as no other does."""
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            return False
        if not all(isinstance(each, ast.Name) and len(self.bindings.get(each.id, ())) == 1 for each in targets):
            return False
        with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            hash(ast.literal_eval(statement.value or ast.Constant(...)))
            return statement.value is not None
        return False

    def _unstable(self, statements: list[ast.stmt]) -> set[str]:
        """Return names whose values may differ from run to run, since a statement reads a clock, a file or the like."""
        users: dict[str, set[str]] = {}
        found: set[str] = set()
        for statement in statements:
            names = _bound_by(statement) | self._roots_of(statement)
            if not _is_import(statement) and not _READERS.isdisjoint(_words_in(statement)):
                found |= names
            for needed in self._names_used(statement):
                users.setdefault(needed, set()).update(names)
        return _reachable(found, users)

    def _line_that_may_change(self, name: str, statement: ast.stmt, statements: list[ast.stmt]) -> int | None:
        inside = {id(each) for each in statements}
        for each in _top_level(self.tree.body):
            is_later = each.lineno > statement.lineno and id(each) not in inside
            runs_others = isinstance(each, (*_DEFINITIONS, ast.With))
            if is_later and not runs_others and name in _words_in(each) and not _is_print(each):
                return each.lineno
        return None

    def _find(self, name: str, line: int) -> ast.stmt:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name and _first_line(node) == line:
                return node
        raise SpecError(f"{self.what} is not at line {line} of its file: the file was edited after it was loaded.")

    def _names_used(self, statement: ast.stmt) -> frozenset[str]:
        """Return the names of the file that the statement uses; refuse one that cannot travel."""
        bare = self._without_airflow(statement)
        self._refuse_undefined(bare)
        needed = self._needs(bare)
        for name in sorted(needed & self.of_airflow):
            raise SpecError(
                f"{self.what} uses {name!r}, which needs Airflow, and Airflow is not installed on a cluster: pass "
                "what it is needed for as an argument."
            )
        return needed | (_names_in_fields(statement) - self.of_airflow)

    def _needs(self, statement: ast.stmt) -> frozenset[str]:
        if id(statement) not in self._needed:
            self._needed[id(statement)] = statement, frozenset(_names_needed(statement))  # keeps the id in use
        return self._needed[id(statement)][1]

    def _is_task(self, statement: ast.stmt) -> bool:
        return len(_decorators(statement)) > len(_decorators(self._without_airflow(statement)))

    def _plain_statements(self, body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield the statements that run one after the other: of the file, and of its ``with DAG(...)`` blocks."""
        for statement in body:
            if isinstance(statement, ast.With):
                items = {name.id for item in statement.items for name in _names_in(item.context_expr)}
                if items & self.of_airflow:
                    yield from self._plain_statements(each for each in statement.body if each.lineno > statement.lineno)
            elif not _is_main_block(statement):
                yield statement

    def _changed_by(self, statement: ast.stmt) -> set[str]:
        """Return the names whose values the statement changes in place, if it does nothing else."""
        roots = self._roots_of(statement)
        if not roots or not self.not_plain.isdisjoint(self._needs(statement)):
            return set()
        found = {
            name for name in roots if not all(isinstance(each, ast.Import) for each in self.bindings.get(name, ()))
        }
        return found if len(found) == len(roots) else set()

    def _roots_of(self, statement: ast.stmt) -> set[str]:
        """Return the roots of ``A["x"] = 1``, ``A.b.append(1)`` and of loops and conditions of such; else nothing."""
        roots: set[str] = set()
        pending = [statement]
        while pending:
            each = pending.pop()
            if isinstance(each, (ast.For, ast.While, ast.If)):
                if isinstance(each, ast.For) and _names_of_targets([each.target]) is None:
                    return set()
                pending += [*each.body, *each.orelse]
            elif found := _changed_roots(each):
                roots |= found
            elif not _is_plain_binding(each):
                return set()
        return roots

    def _refuse_undefined(self, statement: ast.stmt) -> None:
        if "__file__" in self._needs(statement):
            raise SpecError(
                f"{self.what} uses '__file__' (line {statement.lineno}), and the file does not exist on a cluster: "
                "pass the path as an argument."
            )
        strange = [name for name in self._needs(statement) if name not in self.bindings and not _is_known(name)]
        if strange:
            for name in sorted(_names_needed(statement, _IN_FUNCTIONS) & set(strange)):
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
        users: dict[str, set[str]] = {}
        for name, statements in self.bindings.items():
            for statement in statements:
                for needed in self._needs(self._without_decorators(statement)):
                    users.setdefault(needed, set()).add(name)
        return frozenset(_reachable(found, users))

    def _without_decorators(self, statement: ast.stmt) -> ast.stmt:
        return _undecorated(statement, lambda _: True) if _decorators(statement) else statement

    def _without_airflow(self, statement: ast.stmt) -> ast.stmt:
        """Return the same definition without the decorators that need Airflow."""
        if not _decorators(statement):
            return statement
        if id(statement) not in self._bare:
            needs = self.of_airflow
            self._bare[id(statement)] = _undecorated(
                statement, lambda each: any(node.id in needs for node in _names_in(each))
            )
        return self._bare[id(statement)]

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
"""Methods that change their object."""
_READERS = frozenset({
    "check_output", "choice", "communicate", "connect", "ctime", "environ", "environb", "exists", "expanduser",
    "fromtimestamp", "getcwd", "getenv", "getmtime", "getpid", "getsize", "gettempdir", "getuser", "glob", "gmtime",
    "home", "httpx", "is_dir", "is_file", "isdir", "isfile", "iterdir", "listdir", "localtime", "mkdtemp", "mkstemp",
    "monotonic", "monotonic_ns", "now", "open", "perf_counter", "perf_counter_ns", "popen", "randint", "random", "read",
    "read_bytes", "read_text", "requests", "rglob", "run", "sample", "scandir", "secrets", "stat", "strftime", "system",
    "time", "time_ns", "today", "uname", "urlopen", "utcnow", "uuid", "uuid1", "uuid4", "walk",
})  # fmt: skip
"""Names of what reads a clock, a random number, the environment, a file or a network: values differ between runs."""


def _changed_roots(statement: ast.stmt) -> set[str] | None:
    """Return the names that ``A["x"] = 1``, ``del A.b[0]`` or ``A.b.append(1)`` begin with; None for all others."""
    if isinstance(statement, (ast.Assign, ast.Delete)):
        changed: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign) or (isinstance(statement, ast.AnnAssign) and statement.value):
        changed = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        return _roots([method.value]) if isinstance(method, ast.Attribute) and method.attr in _MUTATORS else None
    else:
        return None
    return _roots(changed) if all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in changed) else None


def _roots(expressions: Iterable[ast.expr]) -> set[str] | None:
    found = set()
    for expression in expressions:
        while isinstance(expression, (ast.Attribute, ast.Subscript)):
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return None
        found.add(expression.id)
    return found


def _is_plain_binding(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return _names_of_targets(statement.targets) is not None
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return isinstance(statement.target, ast.Name)
    return isinstance(statement, (ast.Pass, ast.Break, ast.Continue))


def _names_of_targets(targets: Iterable[ast.expr]) -> list[str] | None:
    """Return the names of ``a`` or ``a, (b, *c)``; None if other things are targets too."""
    nodes = [node for target in targets for node in ast.walk(target) if not isinstance(node, ast.expr_context)]
    if not all(isinstance(node, (ast.Name, ast.Tuple, ast.List, ast.Starred)) for node in nodes):
        return None
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def _values_of(codes: Iterable[tuple[set[str], types.CodeType]], function: types.FunctionType) -> dict[str, Any]:
    """Run the statements by themselves; return what their names are bound to.

    A statement that would change an object of another module, as the file itself has changed it, does not run.
    """
    values: dict[str, Any] = {"__name__": function.__module__, "__doc__": None}
    actual = function.__globals__
    for roots, code in codes:
        if not any(name in values and values[name] is actual.get(name, values) for name in roots):
            exec(code, values)
    return values


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


def _is_print(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"


def _is_main_block(statement: ast.stmt) -> bool:
    """Whether this is ``if __name__ == "__main__":``, which does not run when Airflow loads the file."""
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
        return False
    sides = [statement.test.left, *statement.test.comparators]
    names = {
        each.id if isinstance(each, ast.Name) else each.value
        for each in sides
        if isinstance(each, (ast.Name, ast.Constant))
    }
    return names == {"__name__", "__main__"} and isinstance(statement.test.ops[0], ast.Eq)


def _words_in(statement: ast.stmt) -> set[str]:
    """Return the names and the attributes in the statement."""
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def _reachable(names: Iterable[str], following: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the names, and those that follow from them."""
    found: set[str] = set()
    pending = [*names]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += following.get(name, ())
    return found


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


def _is_known(name: str) -> bool:
    return hasattr(builtins, name) or name in _MODULE_NAMES


_MODULE_NAMES = frozenset({"__name__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__"})
_IN_FUNCTIONS = ("LOAD_GLOBAL",)
_ANYWHERE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements of a file, and each of those in a ``with DAG(...)`` block."""
    for statement in body:
        if _is_main_block(statement):
            continue
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
    try:
        return set(_looked_up(_code_of(statement, "-"), instructions))
    except RecursionError:  # nested too deeply for the compiler, which compiles a whole file in another way
        return {node.id for node in _names_in(statement) if isinstance(node.ctx, ast.Load)}


def _code_of(statement: ast.stmt, file: str) -> types.CodeType:
    code: types.CodeType = compile(
        ast.Module([statement], []), file, "exec", flags=_LAZY_ANNOTATIONS, dont_inherit=True
    )
    return code


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


def _undecorated(statement: ast.stmt, is_omitted: Callable[[ast.expr], bool]) -> ast.stmt:
    """Return the same definition without some of its decorators."""
    others = [each for each in _decorators(statement) if not is_omitted(each)]
    fields = dict(ast.iter_fields(statement)) | {"decorator_list": others}
    return ast.copy_location(type(statement)(**fields), statement)


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(decorator.lineno for decorator in _decorators(statement))])
