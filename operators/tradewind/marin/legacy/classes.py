"""Light classes from the tables: the names, fields, order, defaults and texts of the real ones, and nothing heavy.

A class is made when it is first asked for, once, so that ``isinstance`` holds across modules that hand it on. What a
class can do beyond holding values comes from ``behaviour``; everything else that the real one has is refused by name,
because it needs the real library.
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

from tradewind.marin.legacy.methods import METHODS, NAMES
from tradewind.marin.legacy.table import ClassRow, ModuleRow, module_rows, own_modules
from tradewind.marin.legacy.value_methods import RuntimeEnv
from tradewind.serialization.spec import TRANSLATED_BY
from tradewind.steps import THIS_OUTPUT_PATH, OutputName, this_output_path
from tradewind.steps.errors import ExperimentError

# Registries of choices: classes that are told apart by a name in a config file, as draccus keeps them.


class ChoiceRegistryBase:
    """A base whose subclasses are choices under names; the first subclass of a registry begins one of its own."""

    _choice_registry: ClassVar[dict[str, Any]]
    _complete: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Makes the library's own choices, which are made late."""

    def __init_subclass__(cls, discover_packages_path: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        is_registry = ChoiceRegistryBase not in cls.__bases__
        if is_registry and not hasattr(cls, "_choice_registry"):
            cls._choice_registry = {}

    @classmethod
    def get_choice_class(cls, name: str) -> Any:
        """The class of a name; KeyError if there is none."""
        cls._complete()
        return cls._choice_registry[name]

    @classmethod
    def get_known_choices(cls) -> dict[str, Any]:
        """Name -> class."""
        cls._complete()
        return cls._choice_registry

    @classmethod
    def get_choice_name(cls, subcls: type) -> str:
        """The first name of a class.

        Raises:
            ValueError: The class is no choice.
        """
        for name, choice in cls._choice_registry.items():
            if choice is subcls:
                return name
        raise ValueError(f"Cannot find choice name for {subcls}")

    @classmethod
    def default_choice_name(cls) -> str | None:
        """The name that is meant where none is given."""
        return None

    @classmethod
    def register_subclass(cls, name: str, choice_type: Any = None) -> Any:
        """Make a class a choice, as a decorator or by a call.

        A name of the library itself stays what it is. One of an experiment may come again, because many experiments
        are read in one process, and each is read anew when it changes.

        Raises:
            ValueError: The name is one of the library's.
        """
        if choice_type is None:
            return lambda choice: cls.register_subclass(name, choice)
        other = cls._choice_registry.get(name)
        if other is not None and other is not choice_type and "__era__" in vars(other):
            raise ValueError(f"Cannot register {choice_type} as {name} because {other} is already registered as {name}")
        cls._choice_registry[name] = choice_type
        return choice_type


class ChoiceRegistry(ChoiceRegistryBase):
    """A registry whose choices are in the modules that an experiment imports."""


class PluginRegistry(ChoiceRegistryBase):
    """A registry whose choices come with their package; here they all stand in the tables."""


# Values of the expressions in the tables: literals, arithmetic, full names, calls of classes. Nothing else is run.

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


_OTHER_NAMES: Final[Mapping[str, Any]] = {
    "dataclasses.field": dataclasses.field,
    "draccus.field": dataclasses.field,
    "draccus.ChoiceRegistry": ChoiceRegistry,
    "draccus.choice_types.ChoiceRegistry": ChoiceRegistry,
    "draccus.PluginRegistry": PluginRegistry,
    "draccus.choice_types.PluginRegistry": PluginRegistry,
    "datetime.timedelta": datetime.timedelta,
    "pathlib.Path": pathlib.Path,
    "ray.runtime_env.RuntimeEnv": RuntimeEnv,
    "logging.INFO": 20,
    "marin.execution.executor.THIS_OUTPUT_PATH": THIS_OUTPUT_PATH,
    "marin.execution.executor.OutputName": OutputName,
    "marin.execution.executor.this_output_path": this_output_path,
}


TRANSLATOR: Final = "tradewind.marin.translation:rebuilt"
"""What makes objects of the installed classes of these on a cluster."""
_ITSELF: Final = classmethod(lambda cls, parameters: cls)
"""What ``LmConfig[Model]`` is: real classes are generic, which says nothing of their values."""


_FROM_THE_HUB: Final = "from_hf_config"
"""How a class of models makes a config of one of the hub's: the real library can, on the cluster."""


class Builder:
    """Makes and keeps the classes of the era.

    Attributes:
        on_cluster: Gives what stands for a part of a module (its name, the part's name) that only a cluster has; while
            it is None, what would need one is refused.
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
        """What a dotted name of the era is: a class, a constant, or a function of ``behaviour``.

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
        """Where names of Marin's module are written anew; imported only now, because it builds on this one."""
        return importlib.import_module(own_modules()[module])

    def complete(self, registry: str) -> None:
        """Make every choice of a registry, so that it knows them all."""
        for name in self._choices.get(registry, ()):
            self.find(name)

    def _class(self, module: str, name: str, row: ClassRow) -> Any:
        full = f"{module}.{name}"
        made = self._plain(module, name, row) if row.members is None else self._enum(module, name, row)
        self._made[full] = made
        for choice in row.choices:
            registry, _, chosen = choice.partition(" ")
            self.find(registry).register_subclass(chosen, made)
        if full in self._choices:
            made._complete = staticmethod(lambda: self.complete(full))
        return made

    def _enum(self, module: str, name: str, row: ClassRow) -> Any:
        is_text = "str" in row.bases
        made = enum.Enum(name, dict(row.members or {}), type=str if is_text else None, module=module)  # type: ignore[misc]
        return made

    def _plain(self, module: str, name: str, row: ClassRow) -> Any:
        bases = tuple(base for base in map(self._base, row.bases) if base is not None)
        body = self._body(f"{module}.{name}", row)
        body.update(__module__=__name__, __qualname__=name, __doc__=f"{module}.{name}, as a value.")
        body["__era__"] = staticmethod(self.find)
        body[TRANSLATED_BY] = TRANSLATOR
        made = type(name, bases, body)
        if row.dataclass is not None:
            made = dataclasses.dataclass(**evaluate(f"dict({row.dataclass})", self.find))(made)
        made.__module__ = module  # only now: dataclass() looks the module up, and it is none that Python has imported
        return made

    def _base(self, name: str) -> Any:
        """A base class; one of a library that is not in the tables holds no values, so it is left out."""
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
            return self.find("haliax.axis.Axis")(name, evaluate(length, lambda asked: _attribute(config, asked)))

        return property(axis)


def declare_marin_module(module: str, *classes: type) -> None:
    """Let classes that are written anew say that they are those of Marin's ``module``."""
    for made in classes:
        made.__module__ = module
        setattr(made, TRANSLATED_BY, TRANSLATOR)


def split_declaration(declared: str) -> tuple[str, str, str | None]:
    """Name, type and default of ``name: type = default``."""
    node = ast.parse(declared).body[0]
    assert isinstance(node, ast.AnnAssign)
    value = None if node.value is None else ast.unparse(node.value)
    return ast.unparse(node.target), ast.unparse(node.annotation), value


def _attribute(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


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
    """The one builder of this process."""
    global _builder
    if _builder is None:
        _builder = Builder(module_rows())
    return _builder
