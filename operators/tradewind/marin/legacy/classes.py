"""Light classes built from the tables: names, fields, order, defaults and texts of the real ones.

A class is created once, on first access, so that ``isinstance`` holds across modules that re-export it. Methods come
from ``METHODS``. Everything else of the real class is refused by name, because it needs the real library.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import importlib
import operator
import pathlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Final

from tradewind.marin.legacy import flops, model_methods, tokenizers, training_methods, value_methods
from tradewind.marin.legacy.table import ClassRow, ModuleRow, module_rows, own_modules
from tradewind.serialization.spec import TRANSLATED_BY
from tradewind.steps import THIS_OUTPUT_PATH, OutputName, this_output_path
from tradewind.steps.errors import ExperimentError

METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    **model_methods.METHODS, **training_methods.METHODS, **value_methods.METHODS, **value_methods.EXTRACTION_METHODS,
}  # fmt: skip
"""Dotted name of a class -> its attributes besides its fields, rewritten: checks, sizes, costs, conversions."""
NAMES: Final[Mapping[str, Any]] = {
    **flops.NAMES, **tokenizers.NAMES, **training_methods.NAMES, **value_methods.NAMES,
}  # fmt: skip
"""Dotted name -> a function or class without a table row."""

# Choice registries: classes identified by a name in a config file, as in draccus.


class ChoiceRegistryBase:
    """A base whose subclasses are named choices; a registry's first subclass starts its own registry."""

    _choice_registry: ClassVar[dict[str, Any]]
    _complete: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Creates the library's own choices, which are created lazily."""

    def __init_subclass__(cls, discover_packages_path: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        is_registry = ChoiceRegistryBase not in cls.__bases__
        if is_registry and not hasattr(cls, "_choice_registry"):
            cls._choice_registry = {}

    @classmethod
    def get_choice_class(cls, name: str) -> Any:
        """Return the class of a name. Raises ``KeyError`` for an unknown name."""
        cls._complete()
        return cls._choice_registry[name]

    @classmethod
    def get_known_choices(cls) -> dict[str, Any]:
        """Name -> class."""
        cls._complete()
        return cls._choice_registry

    @classmethod
    def get_choice_name(cls, subcls: type) -> str:
        """Return the first name of a class.

        Raises:
            ValueError: The class is no choice.
        """
        for name, choice in cls._choice_registry.items():
            if choice is subcls:
                return name
        raise ValueError(f"Cannot find choice name for {subcls}")

    @classmethod
    def default_choice_name(cls) -> str | None:
        """Return the name that applies when none is given."""
        return None

    @classmethod
    def register_subclass(cls, name: str, choice_type: Any = None) -> Any:
        """Register a class as a choice, as a decorator or by a call.

        The library's own names cannot be replaced. An experiment's can: one process reads many experiments, and reads
        each again when it changes.

        Raises:
            ValueError: The name is one of the library's.
        """
        if choice_type is None:
            return lambda choice: cls.register_subclass(name, choice)
        other = cls._choice_registry.get(name)
        if other is not None and other is not choice_type and "__legacy__" in vars(other):
            raise ValueError(f"Cannot register {choice_type} as {name} because {other} is already registered as {name}")
        cls._choice_registry[name] = choice_type
        return choice_type


class ChoiceRegistry(ChoiceRegistryBase):
    """A registry whose choices are in the modules that an experiment imports."""


class PluginRegistry(ChoiceRegistryBase):
    """A registry whose choices come with their package; here all are in the tables."""


# Evaluate expressions of the tables: literals, arithmetic, full names, calls of classes. No other code runs.

_BUILTINS: Final[Mapping[str, Any]] = {
    "dict": dict, "list": list, "tuple": tuple, "set": set, "str": str, "int": int, "float": float,
}  # fmt: skip
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


def evaluate(text: str, find: Callable[[str], Any]) -> Any:
    """Evaluate ``text``; ``find`` returns the value of a dotted name.

    Raises:
        ValueError: The text has a form that tables never contain.
    """
    return _value(parse_expression(text), find)


@cache
def parse_expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def dotted_name(node: ast.expr) -> str | None:
    """Return ``a.b.c`` for a chain of attributes, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = dotted_name(node.value)
        return above and f"{above}.{node.attr}"
    return None


def _value(node: ast.expr, find: Callable[[str], Any]) -> Any:
    name = dotted_name(node)
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
    raise ValueError(f"The table contains {ast.unparse(node)!r}, an unsupported expression.")


_OTHER_NAMES: Final[Mapping[str, Any]] = {
    "dataclasses.field": dataclasses.field,
    "draccus.field": dataclasses.field,
    "draccus.ChoiceRegistry": ChoiceRegistry,
    "draccus.choice_types.ChoiceRegistry": ChoiceRegistry,
    "draccus.PluginRegistry": PluginRegistry,
    "draccus.choice_types.PluginRegistry": PluginRegistry,
    "datetime.timedelta": datetime.timedelta,
    "pathlib.Path": pathlib.Path,
    "ray.runtime_env.RuntimeEnv": value_methods.RuntimeEnv,
    "logging.INFO": 20,
    "marin.execution.executor.THIS_OUTPUT_PATH": THIS_OUTPUT_PATH,
    "marin.execution.executor.OutputName": OutputName,
    "marin.execution.executor.this_output_path": this_output_path,
}

TRANSLATOR: Final = "tradewind.marin.translation:rebuilt"
"""Creates objects of the installed classes from these on a cluster."""
_ITSELF: Final = classmethod(lambda cls, parameters: cls)
"""Value of ``LmConfig[Model]``: real classes are generic, which does not affect their values."""
_FROM_THE_HUB: Final = "from_hf_config"
"""Creates a model config from one on the hub; only the real library on the cluster can do it."""


class Builder:
    """Create and cache the classes of the legacy API.

    Attributes:
        on_cluster: Returns the stub for a part of a module (its name, the part's name) that only a cluster has. While
            it is None, values that need one are refused.
    """

    def __init__(self, rows: Mapping[str, ModuleRow]) -> None:
        self.on_cluster: Callable[[str, str], Any] | None = None
        self._rows = rows
        self._made: dict[str, Any] = {}
        self._choices: dict[str, list[str]] = {}
        for module, row in rows.items():
            for name, described in row.classes.items():
                for choice in described.choices:
                    self._choices.setdefault(choice.split()[0], []).append(f"{module}.{name}")

    def find(self, name: str) -> Any:
        """Return the legacy class, constant or function of ``METHODS`` under a dotted name.

        Raises:
            KeyError: The tables do not have it.
        """
        if name in self._made:
            return self._made[name]
        if name in NAMES:
            return NAMES[name]
        if name in _OTHER_NAMES:
            return _OTHER_NAMES[name]
        owner, _, last = name.rpartition(".")
        if owner in own_modules() and last in self._own(owner).__all__:
            return getattr(self._own(owner), last)
        row = self._rows.get(owner)
        if row and last in row.classes:
            return self._class(owner, last, row.classes[last])
        if row and last in row.constants:
            return row.constants[last]
        if row and last in row.handed_on:
            return self.find(row.handed_on[last])
        if row and last in row.types:
            return Any
        module, _, holder = owner.rpartition(".")
        held = self._rows.get(module)
        if held and (holder in held.classes or holder in held.constants):
            return getattr(self.find(owner), last)
        raise KeyError(name)

    def _own(self, module: str) -> Any:
        """Import Tradewind's version of Marin's module; late, because it imports this module."""
        return importlib.import_module(own_modules()[module])

    def _class(self, module: str, name: str, row: ClassRow) -> Any:
        full = f"{module}.{name}"
        made = self._plain(module, name, row) if row.members is None else self._enum(module, name, row)
        self._made[full] = made
        for choice in row.choices:
            registry, _, chosen = choice.partition(" ")
            self.find(registry).register_subclass(chosen, made)
        if full in self._choices:
            made._complete = staticmethod(lambda: [self.find(name) for name in self._choices[full]])
        return made

    def _enum(self, module: str, name: str, row: ClassRow) -> Any:
        kind = str if "str" in row.bases else None
        return enum.Enum(name, dict(row.members or {}), type=kind, module=module)

    def _plain(self, module: str, name: str, row: ClassRow) -> Any:
        bases = tuple(base for base in map(self._base, row.bases) if base is not None)
        body = self._body(f"{module}.{name}", row)
        body.update(__module__=__name__, __qualname__=name, __doc__=f"{module}.{name}, as a value.")
        body["__legacy__"] = staticmethod(self.find)
        body[TRANSLATED_BY] = TRANSLATOR
        made = type(name, bases, body)
        if row.dataclass is not None:
            made = dataclasses.dataclass(**evaluate(f"dict({row.dataclass})", self.find))(made)
        made.__module__ = module  # after dataclass(), which looks the module up in sys.modules, where it is missing
        return made

    def _base(self, name: str) -> Any:
        """Return a base class; bases from libraries outside the tables hold no values and are left out."""
        try:
            return self.find(name)
        except KeyError:
            return None

    def _body(self, full: str, row: ClassRow) -> dict[str, Any]:
        body: dict[str, Any] = {"__annotations__": {}, "__class_getitem__": _ITSELF}
        for method in row.methods:
            body[method] = self._from_the_hub(full) if method == _FROM_THE_HUB else _refusal(full, method)
        for name in row.properties:
            body[name] = property(_refusal(full, name))
        body.update(row.constants)
        for axis, described in row.axes.items():
            body[axis] = self._axis(described)
        for declared in row.fields:
            name, kind, default = split_declaration(declared)
            body["__annotations__"][name] = kind
            if default is not None:
                body[name] = evaluate(default, self.find)
        body.update(METHODS.get(full, {}))
        return body

    def _from_the_hub(self, full: str) -> Any:
        def from_hf_config(cls: type, *arguments: Any, **words: Any) -> Any:
            if self.on_cluster is None or full != f"{cls.__module__}.{cls.__qualname__}":
                return _refusal(full, _FROM_THE_HUB)()
            return self.on_cluster(cls.__module__, f"{cls.__qualname__}.{_FROM_THE_HUB}")(*arguments, **words)

        return classmethod(from_hf_config)

    def _axis(self, described: str) -> property:
        name, _, length = described.partition(" = ")

        def axis(config: Any) -> Any:
            return self.find("haliax.axis.Axis")(name, evaluate(length, lambda path: operator.attrgetter(path)(config)))

        return property(axis)


def declare_marin_module(module: str, *classes: type) -> None:
    """Declare rewritten classes as classes of Marin's ``module``."""
    for made in classes:
        made.__module__ = module
        setattr(made, TRANSLATED_BY, TRANSLATOR)


def split_declaration(declared: str) -> tuple[str, str, str | None]:
    """Split ``name: type = default`` into its three parts."""
    node = ast.parse(declared).body[0]
    assert isinstance(node, ast.AnnAssign)
    value = None if node.value is None else ast.unparse(node.value)
    return ast.unparse(node.target), ast.unparse(node.annotation), value


def _refusal(full: str, name: str) -> Callable[..., Any]:
    def refuse(*arguments: Any, **words: Any) -> Any:
        raise ExperimentError(
            f"{full}.{name} needs the real library, which is not loaded while a DAG file is parsed: call it in the "
            "step's function, which runs on the cluster."
        )

    refuse.__name__ = name
    return refuse


_builder: Builder | None = None


def builder() -> Builder:
    """Return the one builder of this process."""
    global _builder
    if _builder is None:
        _builder = Builder(module_rows())
    return _builder
