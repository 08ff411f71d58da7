"""Stubs for values of heavy libraries while a file is loaded; only the way to obtain them is known.

The file may store, pass on, call and subclass such a value, and use it as a decorator. The cluster repeats all of that
with the real library. A question about the value itself (truth, text, length, number, elements, equality) is refused
with its line: a name, a path, a version, a count of steps or a branch must not come from a guess.
"""

from __future__ import annotations

import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from tradewind.marin.refusals import LoadAborted, SourceLine, notes, place_below, refuse, running_place
from tradewind.steps import (
    AttributeReference,
    CallReference,
    ClusterValue,
    ModuleReference,
    RemoteFunction,
    cluster_reference,
)

_TYPING = ("typing", "typing_extensions")
_MAX_QUOTED = 200
"""Maximum characters quoted from another error."""
_UNION_PARTS = (type, type(None), types.GenericAlias, types.UnionType, str)


@dataclass(frozen=True, eq=False)
class StubOrigin:
    """How a cluster obtains the value.

    Attributes:
        label: The value as source text, such as ``levanter.optim.AdamConfig(...)``.
        module: Its module.
        path: Its name in the module; empty if a call or an attribute yields it.
        of: The value that has it as attribute or was called.
        attribute: Its attribute name in ``of``.
        args: Positional arguments of the call of ``of``.
        kwargs: Keyword arguments of that call.
        wrapped: What it decorates.
        place: The user's line that made it, if it is a call's result.
    """

    label: str
    module: str
    path: str = ""
    of: Stub | None = None
    attribute: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrapped: Any = None
    place: SourceLine | None = None

    @property
    def is_call(self) -> bool:
        """Whether the value is the result of a call."""
        return self.of is not None and self.attribute is None


class Stub(ClusterValue):
    """A value that only a cluster knows."""

    __slots__ = ("__weakref__", "_tradewind_attributes", "_tradewind_origin")
    _tradewind_attributes: dict[str, Any]

    def __init__(self, origin: StubOrigin) -> None:
        object.__setattr__(self, "_tradewind_origin", origin)
        object.__setattr__(self, "_tradewind_attributes", {})

    def __getattribute__(self, name: str) -> Any:
        if name[:2] == "__" == name[-2:] and name not in _PLUMBING and _is_inspected(name):
            raise refuse(_unknown(self, f"the {name}"))
        return object.__getattribute__(self, name)

    def _tradewind_reference(self) -> ModuleReference | AttributeReference | CallReference | None:
        origin = stub_origin(self)
        if origin.wrapped is not None and not _is_given(origin):
            return _definition_reference(origin.wrapped)
        if origin.path or origin.of is None:
            return ModuleReference(origin.module, origin.path) if origin.path else None
        if origin.attribute is not None:
            return AttributeReference(origin.of, origin.attribute)
        return CallReference(origin.of, origin.args, origin.kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        known = self._tradewind_attributes
        if name not in known:
            known[name] = Stub(_attribute_of(self, name))
        return known[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Stub:
        origin = stub_origin(self)
        wrapped = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], _DEFINITIONS) else None
        made = StubOrigin(f"{origin.label}(...)", origin.module, of=self, args=args, kwargs=kwargs, wrapped=wrapped)
        return Stub(replace(made, place=running_place(notes.root) if notes.root is not None else None))

    def __getitem__(self, key: Any) -> Stub:
        origin = stub_origin(self)
        getter = Stub(StubOrigin(f"{origin.label}.__getitem__", origin.module, of=self, attribute="__getitem__"))
        return Stub(StubOrigin(f"{origin.label}[...]", origin.module, of=getter, args=(key,)))

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (stub_base(self),)

    def __or__(self, other: Any) -> Stub:
        """Union in an annotation such as ``LmConfig | None``; arithmetic elsewhere."""
        if not isinstance(other, (*_UNION_PARTS, Stub)) and type(other).__module__ not in _TYPING:
            raise refuse(_unknown(self, "the value"))
        return Stub(StubOrigin(f"{stub_origin(self).label} | ...", stub_origin(self).module))

    __ror__ = __or__

    def __hash__(self) -> int:
        if _called_by(_TYPING):
            return id(self)
        raise refuse(_unknown(self, "the equality"))

    def __eq__(self, other: object) -> bool:
        if _called_by(_TYPING):
            return self is other
        raise refuse(_unknown(self, "the equality"))

    def __repr__(self) -> str:
        if notes.root is None or _called_by((*_TYPING, "inspect")):  # dataclasses copy annotations into __doc__
            return f"<{stub_origin(self).label}, known only on the cluster>"
        raise refuse(_unknown(self, "the text"))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __copy__(self) -> Stub:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Stub:
        return self

    def __enter__(self) -> Stub:
        return Stub(StubOrigin(f"what {stub_origin(self).label} gives in with", stub_origin(self).module))

    def __exit__(self, *error: object) -> None:
        if error[0] is not None and not isinstance(error[1], LoadAborted):
            raise refuse(_unknown(self, f"the effect on {type(error[1]).__name__} ({str(error[1])[:_MAX_QUOTED]})"))


_MISSING = object()
_PLUMBING = frozenset(
    {
        "__parameters__", "__typing_subst__", "__typing_prepare_subst__", "__typing_unpacked_tuple_args__",
        "__isabstractmethod__", "__mro_entries__", "__origin__",
    }
)  # fmt: skip
"""Names that Python itself looks up within a user's line: in annotations and in class statements."""
_PLUMBERS = ("dataclasses", "typing", "typing_extensions", "abc", "copy", "types")
"""Modules that may learn that a value is not built in, because no answer of theirs depends on it."""
_DEFINITIONS = (types.FunctionType, type, RemoteFunction, Stub)


def stub_origin(value: Stub) -> StubOrigin:
    """Return how a cluster obtains ``value``."""
    origin: StubOrigin = object.__getattribute__(value, "_tradewind_origin")
    return origin


def source_line_of(value: Stub) -> SourceLine | None:
    """Return the line that made ``value``, or the value it was taken from."""
    origin = stub_origin(value)
    return origin.place or (source_line_of(origin.of) if origin.of is not None else None)


def _definition_reference(wrapped: Any) -> ModuleReference | AttributeReference | CallReference | None:
    """Return the reference of a decorated object by its own name; the cluster decorates it, too."""
    if isinstance(wrapped, Stub):
        return cluster_reference(wrapped)
    return ModuleReference(wrapped.__module__, wrapped.__qualname__)


def _is_given(origin: StubOrigin) -> bool:
    """Whether a call takes a function, class or value, like a decorator: ``jit(f)``, ``Loader(config)``.

    A decorated object is no longer found under its own name.
    """
    inside = [origin.wrapped]
    while isinstance(inside[-1], Stub) and (further := stub_origin(inside[-1]).wrapped) is not None:
        inside.append(further)
    innermost = inside[-1].function if isinstance(inside[-1], RemoteFunction) else inside[-1]
    if isinstance(innermost, types.FunctionType):
        bound = innermost.__globals__.get(innermost.__name__)
        return any(bound is each for each in inside)
    if isinstance(innermost, Stub):
        return True
    return origin.of is not None and stub_origin(origin.of).label.rpartition(".")[2][:1].isupper()


def _attribute_of(value: Stub, name: str) -> StubOrigin:
    origin = stub_origin(value)
    path = f"{origin.path}.{name}" if origin.path else ""
    return StubOrigin(f"{origin.label}.{name}", origin.module, path, of=value, attribute=name)


def _called_by(modules: tuple[str, ...]) -> bool:
    """Whether the caller's caller belongs to one of these modules, which keep annotations in sets."""
    return sys._getframe(2).f_globals.get("__name__") in modules


def _is_inspected(name: str) -> bool:
    """Whether user code, or any owner of the object, asks for a name with a meaning in Python.

    ``isinstance`` and ``match`` read ``__class__``, wherever they are called.
    """
    frame = sys._getframe(2)
    if notes.root is None:
        return False
    if name != "__class__":
        return place_below(notes.root, frame.f_code.co_filename, 1) is not None
    while _module_of(frame) == "inspect" and frame.f_back is not None:
        frame = frame.f_back
    return not _module_of(frame).startswith(("tradewind.", *_PLUMBERS))


def _module_of(frame: types.FrameType) -> str:
    return frame.f_globals.get("__name__") or ""


def _unknown(value: Stub, wanted: str) -> str:
    return (
        f"it needs {wanted} of {stub_origin(value).label}, which is known only on the cluster: no name, path, version, "
        "count or branch can come from it."
    )


def _refusing(wanted: str) -> Callable[..., NoReturn]:
    def refused(self: Stub, *args: Any) -> NoReturn:
        raise refuse(_unknown(self, wanted))

    return refused


_REFUSED_METHODS = {
    "the truth value": ("bool",),
    "the text": ("str", "format", "bytes", "fspath"),
    "the number": ("int", "float", "complex", "index", "round", "trunc", "floor", "ceil"),
    "the sign": ("neg", "pos", "abs", "invert"),
    "the length": ("len", "length_hint"),
    "the elements": ("iter", "next", "reversed", "contains", "aiter", "anext", "await"),
    "the order": ("lt", "le", "gt", "ge"),
    "the type": ("instancecheck", "subclasscheck"),
    "a change": ("setattr", "delattr", "setitem", "delitem"),
    "the value": tuple(
        f"{side}{name}"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "xor")
        for side in ("", "r", "i")
    )
    + ("lshift", "rshift", "rlshift", "rrshift"),
}
_OF_USERS_CLASS = ("the text", "a change", "the type")
"""Questions about a user class's objects that are answered, or refused elsewhere."""
for _wanted, _names in _REFUSED_METHODS.items():
    for _name in _names:
        setattr(Stub, f"__{_name}__", _refusing(_wanted))


class StubMeta(ABCMeta):
    """Metaclass of classes that inherit from a cluster value."""

    def __getattr__(cls, name: str) -> Any:
        base = next((each.__dict__["_tradewind_of"] for each in cls.__mro__ if "_tradewind_of" in each.__dict__), None)
        if base is None or (name.startswith("__") and name.endswith("__")) or _called_by(("dataclasses", "abc")):
            raise AttributeError(name)
        return getattr(base, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name != "__repr__" or not _called_by(("dataclasses",)):  # its text would lack inherited fields
            super().__setattr__(name, value)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            if "__init__()" not in str(error):
                raise
            raise refuse(
                f"{cls.__name__} inherits from {base_label(cls)}, whose fields are not known here ({error})."
            ) from error


class StubBase(metaclass=StubMeta):
    """The real base of such classes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise refuse(_unknown_base(self, "the constructor"))

    def __eq__(self, other: object) -> bool:
        return self is other or _refuse_method(self, other)

    def __hash__(self) -> int:
        return _refuse_method(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(type(self), name)

    def __repr__(self) -> str:
        raise refuse(
            f"it needs the text of a {type(self).__name__}, which inherits from {base_label(type(self))}, whose fields "
            "are not known here."
        )

    __str__ = __repr__


def _unknown_base(value: Any, wanted: str) -> str:
    kind = type(value)
    return f"it needs {wanted} of a {kind.__name__}, which inherits from {base_label(kind)}, which is not known here."


def _refuse_method(self: Any, *args: Any) -> NoReturn:
    raise refuse(_unknown_base(self, "a method"))


for _wanted, _names in _REFUSED_METHODS.items():
    for _name in () if _wanted in _OF_USERS_CLASS else _names:
        setattr(StubBase, f"__{_name}__", _refuse_method)


def base_label(cls: type) -> str:
    """Return the label of the heavy library's class that ``cls`` inherits from."""
    base = next(each.__dict__["_tradewind_of"] for each in cls.__mro__ if "_tradewind_of" in each.__dict__)
    return stub_origin(base).label


_bases: dict[str, type] = {}


def stub_base(value: Stub) -> type:
    """Return the class that replaces ``value`` as a base: one for each name of a library.

    ``Base["Model"]`` is ``Base``: the brackets are for type checkers.
    """
    origin = stub_origin(value)
    if origin.label.endswith("[...]") and origin.of is not None and (generic := stub_origin(origin.of).of) is not None:
        return stub_base(generic)
    if origin.label not in _bases:
        namespace = {"_tradewind_of": value, "__module__": origin.module}
        made = StubMeta(origin.label.rpartition(".")[2], (StubBase,), namespace)
        if not origin.path:
            return made
        _bases[origin.label] = made
    return _bases[origin.label]


class StubModule(types.ModuleType):
    """A module of a heavy library: Tradewind's names, table names, and cluster values.

    ``check`` may refuse a name that none of its sources has.
    """

    __path__: list[str]

    def __init__(
        self,
        name: str,
        own: Mapping[str, Any],
        table: types.ModuleType | None,
        submodule: Callable[[str], types.ModuleType | None],
        fallback: Callable[[str], types.ModuleType | None] = lambda name: None,
        check: Callable[[str, str], object] = lambda module, name: None,
    ) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__dict__.update(own)
        self.__dict__["_tradewind_sources"] = (table, submodule, fallback, check)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            if name != "__all__" and _is_inspected(name):  # import * reads it
                raise refuse(f"it needs {self.__name__}.{name}, which is known only on the cluster.")
            raise AttributeError(name)
        table, submodule, fallback, check = self.__dict__["_tradewind_sources"]
        full = f"{self.__name__}.{name}"
        found = submodule(full)
        if found is None:
            found = getattr(table, name, _MISSING)
        if found is _MISSING:
            found = getattr(fallback(self.__name__), name, _MISSING)
        if found is _MISSING:
            check(self.__name__, name)
            found = Stub(StubOrigin(full, self.__name__, name))
        self.__dict__[name] = found
        return found
