"""``is`` in the user's code: ``made is None`` would be a branch on a guess where only a cluster knows what ``made`` is.

Python lets nobody answer ``is``, so a file is compiled with each one turned into a call. So is ``|`` in annotations:
``tuple[Response, str] | None`` compares its parts, and an annotation is no branch.
"""

from __future__ import annotations

import ast
import types
import typing
from typing import Any, Final

from tradewind.marin.refusals import refuse
from tradewind.marin.world.standins import Opaque, origin_of

IS: Final = "_tradewind_is"
EITHER: Final = "_tradewind_either"


def compiled(source: bytes, file: str) -> types.CodeType:
    """The code of a file, which asks the builtins ``_tradewind_is`` where it says ``is``, and ``_tradewind_either``.

    Raises:
        SyntaxError: It is no Python.
    """
    tree: ast.Module = _Asking().visit(ast.parse(source, file))
    if not _has_texts_for_annotations(tree):
        _Annotations().visit(tree)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)


class _Asking(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        asked: ast.expr = ast.Call(ast.Name(IS, ast.Load()), [node.left, node.comparators[0]], [])
        if isinstance(node.ops[0], ast.IsNot):
            asked = ast.UnaryOp(ast.Not(), ast.copy_location(asked, node))
        return ast.copy_location(asked, node)


def _has_texts_for_annotations(tree: ast.Module) -> bool:
    futures = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(name.name == "annotations" for node in futures for name in node.names)


class _Annotations(ast.NodeTransformer):
    """Changes the ``|`` of annotations, and no other."""

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


def either(left: Any, right: Any) -> Any:
    """``left | right`` in an annotation, whose parts may be types that only a cluster knows."""
    if _is_made_of_unknown(left) or _is_made_of_unknown(right):
        return typing.Union[left, right]  # noqa: UP007 - typing asks for equality itself, and is answered
    return left | right


def _is_made_of_unknown(kind: Any) -> bool:
    parts = () if isinstance(kind, Opaque) else getattr(kind, "__args__", ())
    return any(isinstance(part, Opaque) or _is_made_of_unknown(part) for part in parts)


def is_same(left: Any, right: Any) -> bool:
    """``left is right``, where that is known."""
    for value, other in ((left, right), (right, left)):
        if value is Opaque or (isinstance(value, Opaque) and left is not right and not _surely_differs(value, other)):
            what = origin_of(value).label if isinstance(value, Opaque) else "the type of a library's value"
            raise refuse(f"whether {what} is another value is asked, which is known only on the cluster.")
    return left is right


def _surely_differs(value: Opaque, other: Any) -> bool:
    """Whether ``value`` is not ``other`` whatever it is: an object of a class is not None, nor what the user made."""
    if isinstance(other, Opaque) or other is Opaque:
        return False
    if other is None or isinstance(other, (bool, type)):
        origin = origin_of(value)
        named = origin_of(origin.of) if origin.is_call and origin.of is not None else origin
        name = named.path.rpartition(".")[2]
        is_class = name[:1].isupper() and not name.isupper()
        return is_class if origin.is_call else bool(name) and not name.isupper()
    return True
