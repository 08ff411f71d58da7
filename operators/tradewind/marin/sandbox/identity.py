"""``is`` in the user's code: ``made is None`` would branch on a guess if ``made`` is a cluster value.

Python has no hook for ``is``, so a file is compiled with each one turned into a call. So is ``|`` in annotations:
``tuple[Response, str] | None`` compares its parts, and an annotation is no branch.
"""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from tradewind.marin.refusals import refuse
from tradewind.marin.sandbox.executor_api import find_stub
from tradewind.marin.sandbox.perturbation import ReversedFrozenSet, ReversedSet
from tradewind.marin.sandbox.stubs import Stub, StubBase, stub_origin

IS: Final = "_tradewind_is"
EITHER: Final = "_tradewind_either"
TYPE: Final = "_tradewind_type"
KNOWN: Final = "_tradewind_known"
CAUGHT: Final = "_tradewind_caught"
ORDER: Final = "_tradewind_order"
KNOWN_INSIDE: Final = "_tradewind_known_inside"
OPTIONAL: Final = "_tradewind_optional"
_CATCH_IMPORT_ERRORS: Final = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}

_REAL: Final[Mapping[type, type]] = {ReversedSet: set, ReversedFrozenSet: frozenset}


def compile_file(source: bytes, file: str) -> types.CodeType:
    """Compile a file; ``is`` calls the builtin ``_tradewind_is``, and ``|`` ``_tradewind_either``.

    Raises:
        SyntaxError: It is not valid Python.
    """
    tree: ast.Module = _Checks().visit(ast.parse(source, file))
    if not _has_texts_for_annotations(tree):
        _Annotations().visit(tree)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)


class _Checks(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1:
            return self._chain(node)
        if not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        checked: ast.expr = ast.Call(ast.Name(IS, ast.Load()), [node.left, node.comparators[0]], [])
        if isinstance(node.ops[0], ast.IsNot):
            checked = ast.UnaryOp(ast.Not(), ast.copy_location(checked, node))
        return ast.copy_location(checked, node)

    def _chain(self, node: ast.Compare) -> ast.expr:
        """Require known values in ``a is b is c``: calls cannot chain and evaluate each value once."""
        if any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
            node.left, node.comparators = _passed_to(node.left), [_passed_to(each) for each in node.comparators]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ("set", "frozenset"):
            return _passed_to(node, ORDER)
        if called == "type" and len(node.args) == 1 and not node.keywords:
            checked = ast.Call(ast.Name(TYPE, ast.Load()), [node.func, *node.args], [])
            return ast.copy_location(checked, node)
        return node

    def visit_Set(self, node: ast.Set) -> ast.expr:
        self.generic_visit(node)
        return _passed_to(node, ORDER)

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        self.generic_visit(node)
        return _passed_to(node, ORDER)

    def visit_Match(self, node: ast.Match) -> ast.Match:
        self.generic_visit(node)
        looks_inside = any(map(_looks_inside, ast.walk(node)))
        node.subject = _passed_to(node.subject, KNOWN_INSIDE if looks_inside else KNOWN)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        node.body.insert(0, _reraising(node))
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try:
        self.generic_visit(node)
        if any(each.type is None or _names_import_error(each.type) for each in node.handlers):
            node.body = _with_optional_imports(node.body)
        if node.finalbody:
            node.finalbody.insert(0, _reraising(node.finalbody[0]))
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        self.generic_visit(node)
        if any(
            isinstance(each.context_expr, ast.Call) and _names_import_error(each.context_expr) for each in node.items
        ):
            node.body = _with_optional_imports(node.body)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        self.generic_visit(node)
        node.exc = None if node.exc is None else _passed_to(node.exc)
        return node


def _passed_to(node: ast.expr, name: str = KNOWN) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [node], []), node)


def _reraising(node: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Expr(ast.Call(ast.Name(CAUGHT, ast.Load()), [], [])), node)


def _names_import_error(node: ast.AST) -> bool:
    """Whether ``except node``, or ``with node`` as of ``suppress(ImportError)``, may hide a failed import."""
    return any(isinstance(each, ast.Name) and each.id in _CATCH_IMPORT_ERRORS for each in ast.walk(node))


def _with_optional_imports(body: list[ast.stmt]) -> list[ast.stmt]:
    """Mark each import without which the file continues, by a statement before it."""
    made: list[ast.stmt] = []
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            called = ast.Expr(ast.Call(ast.Name(OPTIONAL, ast.Load()), [], []))
            for alias in node.names if isinstance(node, ast.Import) else [None]:
                one = node if alias is None else ast.copy_location(ast.Import([alias]), node)
                made += [ast.copy_location(called, node), one]
            continue
        for name, inner in ast.iter_fields(node):
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(node, name, _with_optional_imports(inner))
        made.append(node)
    return made


def _looks_inside(node: ast.AST) -> bool:
    if isinstance(node, ast.MatchClass):
        return bool(node.patterns or node.kwd_patterns)
    return isinstance(node, (ast.MatchSequence, ast.MatchMapping))


def _has_texts_for_annotations(tree: ast.Module) -> bool:
    futures = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(name.name == "annotations" for node in futures for name in node.names)


class _Annotations(ast.NodeTransformer):
    """Changes the ``|`` of annotations only."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = self._changed(node.annotation)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = self._changed(node.returns)
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = self._changed(node.returns)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = _Either().visit(node.annotation)
        return self.generic_visit(node)

    def _changed(self, annotation: ast.expr | None) -> ast.expr | None:
        return None if annotation is None else _Either().visit(annotation)


class _Either(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        return ast.copy_location(ast.Call(ast.Name(EITHER, ast.Load()), [node.left, node.right], []), node)


def union_type(left: Any, right: Any) -> Any:
    """Return ``left | right`` in an annotation, whose parts may be cluster types."""
    if _is_made_of_unknown(left) or _is_made_of_unknown(right):
        return typing.Union[left, right]  # noqa: UP007 - typing compares itself, and gets an answer
    return left | right


def _is_made_of_unknown(kind: Any) -> bool:
    parts = () if isinstance(kind, Stub) else getattr(kind, "__args__", ())
    return any(isinstance(part, Stub) or _is_made_of_unknown(part) for part in parts)


def is_same(left: Any, right: Any) -> bool:
    """Return ``left is right``, where that is known."""
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Stub) and left is not right and not _surely_differs(value, other):
            raise refuse(f"it needs the identity of {stub_origin(value).label}, which is known only on the cluster.")
    return left is right


def _surely_differs(value: Stub, other: Any) -> bool:
    """Whether ``value`` cannot be ``other``: an object of a class is not None, nor a user's object."""
    if isinstance(other, Stub):
        return False
    if other is None or isinstance(other, (bool, type)):
        origin = stub_origin(value)
        named = stub_origin(origin.of) if origin.is_call and origin.of is not None else origin
        name = named.path.rpartition(".")[2]
        is_class = name[:1].isupper() and not name.isupper()
        return is_class if origin.is_call else bool(name) and not name.isupper()
    return True


def type_of(kind: Any, value: Any) -> Any:
    """Return ``type(value)`` in the user's code, which may rebind ``type``."""
    if kind is type and isinstance(value, Stub):
        raise refuse(f"it needs the type of {stub_origin(value).label}, which is known only on the cluster.")
    return _REAL.get(made, made) if isinstance(made := kind(value), type) else made


def require_known(value: Any) -> Any:
    """Require a known ``value`` where Python inspects it directly: matched, raised or compared in a chain."""
    if isinstance(value, (Stub, StubBase)):
        raise refuse(f"it matches, raises or compares {find_stub(value)}, which is known only on the cluster.")
    return value


def require_known_inside(value: Any) -> Any:
    """Require a known value, also inside, where patterns match its parts."""
    if (found := find_stub(value)) is not None:
        raise refuse(f"it matches a value that contains {found}, which is known only on the cluster.")
    return value
