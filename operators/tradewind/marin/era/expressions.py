"""Values of the expressions in the tables: literals, arithmetic, full names, calls of classes. Nothing else is run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

_BUILTINS: Final[Mapping[str, Any]] = {
    "dict": dict, "list": list, "tuple": tuple, "set": set, "str": str, "int": int, "float": float,
}  # fmt: skip
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


def evaluate(text: str, find: Callable[[str], Any]) -> Any:
    """The value of ``text``; ``find`` gives what a dotted name stands for.

    Raises:
        ValueError: The text has a form that tables never hold.
    """
    return _value(parsed(text), find)


@cache
def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` of a chain of attributes, None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return above and f"{above}.{node.attr}"
    return None


def _value(node: ast.expr, find: Callable[[str], Any]) -> Any:
    name = dotted(node)
    if name is not None:
        return _BUILTINS[name] if name in _BUILTINS else find(name)
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=elements):
            return [_value(element, find) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element, find) for element in elements)
        case ast.Dict(keys=keys, values=values):
            return {_value(key, find): _value(value, find) for key, value in zip(keys, values, strict=True) if key}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, find)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, find), _value(right, find))
        case ast.Lambda(body=body):
            return lambda: _value(body, find)
        case ast.Call(func=called, args=arguments, keywords=words):
            given = {word.arg: _value(word.value, find) for word in words if word.arg}
            return _value(called, find)(*(_value(argument, find) for argument in arguments), **given)
    raise ValueError(f"The table holds {ast.unparse(node)!r}, which is no expression that tables have.")
