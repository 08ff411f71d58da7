"""The top-level statements of a DAG file: the names that each binds and uses, and whether it needs Airflow."""

from __future__ import annotations
import __future__

import ast
import dis
import types
from collections.abc import Iterator
from typing import Final, NamedTuple

_AIRFLOW_PACKAGES: Final = ("decorators", "deployment", "hooks", "links", "operators", "sensors", "tasks", "triggers")
_WITH_AIRFLOW: Final = ("airflow", *(f"tradewind.{package}" for package in _AIRFLOW_PACKAGES))
LAZY_ANNOTATIONS: Final = __future__.annotations.compiler_flag
DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Names(NamedTuple):
    """Module-level names of one statement: looked up when it runs or its definitions are called, and bound by it."""

    used: set[str]
    used_in_functions: set[str]
    bound: set[str]


class FileStatements:
    """The statements of one file, without those under ``if __name__ == "__main__":``."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)
        self.statements = list(top_level(self.tree.body))
        self._names: dict[int, tuple[ast.stmt, Names]] = {}
        self._bare: dict[int, ast.stmt] = {}
        self._plain: dict[int, ast.stmt] = {}
        self._verdicts: dict[str, bool] = {}
        self.bindings: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for name in self.names_of(statement).bound:
                self.bindings.setdefault(name, []).append(statement)
        imports = [node for statement in self.statements for node in _imports_in(statement)]
        self._of_airflow = {
            name for node in imports if any(map(is_of_airflow, imported_by(node))) for name in names_imported(node)
        }

    def names_of(self, statement: ast.stmt) -> Names:
        if id(statement) not in self._names:
            self._names[id(statement)] = statement, _names_of(statement)  # keeps the id in use
        return self._names[id(statement)][1]

    def needs_airflow(self, name: str) -> bool:
        """Whether a value of the file requires Airflow, by what it is made of."""
        if name not in self._verdicts:
            found = self.reached(name)
            is_so = not found.isdisjoint(self._of_airflow)
            self._verdicts.update(dict.fromkeys({name} if is_so else found, is_so))
        return self._verdicts[name]

    def reached(self, name: str) -> set[str]:
        """Return the name, and those that its statements use in turn, except in decorators."""
        found: set[str] = set()
        pending = [name]
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                for statement in self.bindings.get(name, ()):
                    pending += self.names_of(self._without_decorators(statement)).used
        return found

    def is_task(self, statement: ast.stmt) -> bool:
        return self.without_airflow(statement) is not statement

    def without_airflow(self, statement: ast.stmt) -> ast.stmt:
        """Return the same definition without the decorators that need Airflow; a statement without such as it is."""
        if not decorators_of(statement):
            return statement
        if id(statement) not in self._bare:
            kept = [each for each in decorators_of(statement) if not any(map(self.needs_airflow, names_in(each)))]
            self._bare[id(statement)] = _decorated(statement, kept)
        return self._bare[id(statement)]

    def _without_decorators(self, statement: ast.stmt) -> ast.stmt:
        if id(statement) not in self._plain:
            self._plain[id(statement)] = _decorated(statement, [])
        return self._plain[id(statement)]


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a file, and each of those in a ``with DAG(...)`` block."""
    for statement in body:
        if _is_main_block(statement):
            continue
        yield statement
        if isinstance(statement, ast.With):
            yield from top_level(statement.body)


def code_of(statement: ast.stmt, file: str) -> types.CodeType:
    """Compile one statement; annotations are not evaluated."""
    code: types.CodeType = compile(ast.Module([statement], []), file, "exec", flags=LAZY_ANNOTATIONS, dont_inherit=True)
    return code


def imported_by(node: ast.AST) -> list[str]:
    """Return the modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def names_imported(node: ast.AST) -> set[str]:
    """Return the names that an import statement binds."""
    aliases = node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else []
    return {alias.asname or alias.name.partition(".")[0] for alias in aliases}


def is_of_airflow(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in _WITH_AIRFLOW)


def decorators_of(statement: ast.stmt) -> list[ast.expr]:
    return statement.decorator_list if isinstance(statement, DEFINITIONS) else []


def first_line(statement: ast.stmt) -> int:
    """Return the line of the statement or of its first decorator."""
    return min([statement.lineno, *(decorator.lineno for decorator in decorators_of(statement))])


def names_in(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the names in the node, local ones too."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def words_in(node: ast.AST) -> set[str]:
    """Return the names and the attributes in the node."""
    return names_in(node) | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def texts_in(node: ast.AST) -> set[str]:
    """Return the texts in the node."""
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {each for each in constants if isinstance(each, str)}


def _imports_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the import statements that it consists of, or that a condition or a ``try`` holds."""
    nodes = ast.walk(statement) if isinstance(statement, (ast.If, ast.Try)) else [statement]
    return (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))


def _is_main_block(statement: ast.stmt) -> bool:
    """Whether this is ``if __name__ == "__main__":``, which does not run when Airflow loads the file."""
    tests = ("__name__ == '__main__'", "'__main__' == __name__")
    return isinstance(statement, ast.If) and ast.unparse(statement.test) in tests


def _decorated(statement: ast.stmt, decorators: list[ast.expr]) -> ast.stmt:
    """Return the same definition with these decorators only."""
    if decorators_of(statement) == decorators:
        return statement
    return ast.copy_location(
        type(statement)(**{**dict(ast.iter_fields(statement)), "decorator_list": decorators}), statement
    )


def _names_of(statement: ast.stmt) -> Names:
    try:
        code = code_of(statement, "-")
    except RecursionError:  # nested too deeply for the compiler, which compiles a whole file in another way
        loaded, stored = (names_in(statement, context) for context in (ast.Load, ast.Store))
        return Names(loaded, set(), stored)
    used, in_functions, bound = set[str](), set[str](), set[str]()
    pending = [code]
    while pending:
        each = pending.pop()
        for instruction in dis.get_instructions(each):
            operation, name = instruction.opname, instruction.argval
            if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                used.add(name)
                if operation == "LOAD_GLOBAL":
                    in_functions.add(name)
            elif operation in ("STORE_NAME", "STORE_GLOBAL") and (each is code or each.co_name in _COMPREHENSIONS):
                bound.add(name)
        pending += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
    if isinstance(statement, ast.With):  # the names that its body binds are those of its statements
        bound = {name for item in statement.items if item.optional_vars for name in names_in(item.optional_vars)}
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        bound = {"*"}
    return Names(used, in_functions, bound)
