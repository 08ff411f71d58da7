"""Answers of a few functions of heavy libraries while a file is loaded, only where they are certain.

The answers are still cluster values, of which one fact is also known here: the text of a regular expression, whether
two numbers are close, numbers that numpy holds. Every other question about them is refused. Questions to the Hugging
Face hub are answered from the folder that the user names, in the same way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

from tradewind.marin.legacy.tokenizers import known_sizes
from tradewind.marin.offline import answer_to
from tradewind.marin.refusals import notes, refuse
from tradewind.marin.sandbox.stubs import Stub, StubOrigin, stub_origin


class HubObject:
    """A part of an answer; the fields in the user's folder are known."""

    def __init__(self, label: str, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)
        self.__dict__["_label"] = label

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refuse(f"it needs {name} of {self._label}, which the answer in the folder does not contain.")

    def __repr__(self) -> str:
        raise refuse(f"it needs the text of {self._label}, of which only some fields are known here.")


class SizedTokenizer(Stub):
    """A tokenizer of known size."""

    __slots__ = ("_tradewind_length",)

    def __init__(self, made: Stub, vocab_size: int, length: int) -> None:
        super().__init__(stub_origin(made))
        self._tradewind_attributes["vocab_size"] = vocab_size
        object.__setattr__(self, "_tradewind_length", length)

    def __len__(self) -> int:
        return int(self._tradewind_length)


def _collection(made: Stub, collection_slug: Any, **_: Any) -> Stub:
    items = answer_to("collections", collection_slug) if isinstance(collection_slug, str) else None
    if items is not None:
        label = f"an item of the collection {collection_slug}"
        made._tradewind_attributes["items"] = [HubObject(label, item) for item in items]
    return made


def _refs(made: Stub, repo_id: Any, *, repo_type: Any = None, **_: Any) -> Stub:
    if not isinstance(repo_id, str) or repo_type not in (None, "model", "dataset", "space"):
        return made
    refs = answer_to("refs", repo_id if repo_type in (None, "model") else f"{repo_type}s/{repo_id}")
    for kind, names in (refs or {}).items():
        label = f"one of the {kind} of {repo_id}"
        made._tradewind_attributes[kind] = [HubObject(label, {"name": name}) for name in names]
    return made


def _dataset_configs(made: Stub, path: Any, **_: Any) -> Any:
    names = answer_to("dataset_configs", path) if isinstance(path, str) else None
    return made if names is None else list(names)


def _dataset_splits(made: Stub, path: Any, config_name: Any = None, **_: Any) -> Any:
    if not isinstance(path, str) or not isinstance(config_name, str | None):
        return made
    names = answer_to("dataset_splits", path if config_name is None else f"{path}/{config_name}")
    return made if names is None else list(names)


def _model_config(made: Stub, name: Any, *, revision: Any = None, **changed: Any) -> Stub:
    if not isinstance(name, str) or not isinstance(revision, str | None) or set(changed) - {"trust_remote_code"}:
        return made
    fields = answer_to("model_configs", name if revision is None else f"{name}@{revision}")
    made._tradewind_attributes.update(fields or {})
    return made


def _tokenizer(made: Stub, name: Any, *_: Any, revision: Any = None, **changed: Any) -> Stub:
    if not isinstance(name, str) or not isinstance(revision, str | None) or set(changed) - {"trust_remote_code"}:
        return made
    sizes = known_sizes(name, revision)
    return made if sizes is None else SizedTokenizer(made, *sizes)


HUB_ANSWERS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "huggingface_hub": {"get_collection": _collection, "list_repo_refs": _refs},
    "datasets": {"get_dataset_config_names": _dataset_configs, "get_dataset_split_names": _dataset_splits},
    "transformers": {"AutoConfig.from_pretrained": _model_config, "AutoTokenizer.from_pretrained": _tokenizer},
}
"""Module -> function, or method of a class -> the answering replacement."""

_EXACT: Final = 2**53
"""Below it, integers and floats are equal; above it, arithmetic of numpy and Python differs."""


class KnownFunction(Stub):
    """A library function with partly known results.

    ``answer`` receives the library's object and the cluster value, and returns that value or another.
    """

    __slots__ = ("_tradewind_answer",)

    def __init__(self, module: str, name: str, answer: Callable[..., Any]) -> None:
        super().__init__(StubOrigin(f"{module}.{name}", module, name))
        object.__setattr__(self, "_tradewind_answer", answer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        return self._tradewind_answer(made, *args, **kwargs)


class KnownBool(Stub):
    """A ``numpy.bool`` of known value."""

    __slots__ = ("_tradewind_truth",)

    def __init__(self, of: Stub, truth: bool) -> None:
        super().__init__(object.__getattribute__(of, "_tradewind_origin"))
        object.__setattr__(self, "_tradewind_truth", truth)

    def __bool__(self) -> bool:
        return bool(self._tradewind_truth)


class KnownNumber(Stub):
    """A ``numpy.int64`` or ``numpy.float64`` of known value. Not versionable: Marin made a text of it."""

    __slots__ = ("_tradewind_number",)

    def __init__(self, number: int | float) -> None:
        kind = _kind(number)
        maker = Stub(StubOrigin(f"numpy.{kind}", "numpy", kind))
        super().__init__(StubOrigin(f"numpy.{kind}({number})", "numpy", of=maker, args=(number,)))
        object.__setattr__(self, "_tradewind_number", number)

    def __str__(self) -> str:
        return str(self._tradewind_number)

    def __format__(self, spec: str) -> str:
        return format(self._tradewind_number, spec)

    def __repr__(self) -> str:
        return f"numpy.{_kind(self._tradewind_number)}({self})".replace("numpy", "np", 1)

    def __hash__(self) -> int:
        return hash(self._tradewind_number)

    def __bool__(self) -> bool:
        return bool(self._tradewind_number)


class KnownArray(Stub):
    """A one-dimensional ``numpy.ndarray`` with known numbers."""

    __slots__ = ("_tradewind_numbers",)

    def __init__(self, numbers: tuple[int | float, ...]) -> None:
        maker = Stub(StubOrigin("numpy.array", "numpy", "array"))
        super().__init__(StubOrigin("numpy.array(...)", "numpy", of=maker, args=(list(numbers),)))
        object.__setattr__(self, "_tradewind_numbers", numbers)

    def __iter__(self) -> Iterator[KnownNumber]:
        return iter([KnownNumber(number) for number in self._tradewind_numbers])

    def __len__(self) -> int:
        return len(self._tradewind_numbers)

    def tolist(self) -> list[int | float]:
        """Return the numbers as Python numbers, which can be versioned."""
        return list(self._tradewind_numbers)


def _kind(number: int | float) -> str:
    return "int64" if isinstance(number, int) else "float64"


def _plain(value: Any) -> int | float | None:
    """Return the number that numpy would compute with, if numpy and Python then agree."""
    number = value._tradewind_number if isinstance(value, KnownNumber) else value
    if type(number) not in (int, float) or not math.isfinite(number) or abs(number) >= _EXACT:
        return None
    return number  # type: ignore[no-any-return]


_OPERATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "mul": lambda left, right: left * right,
    "truediv": lambda left, right: left / right if right else None,
}
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "ge": lambda left, right: left >= right,
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
}
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int, "float": float, "ceil": math.ceil, "floor": math.floor, "trunc": math.trunc,
}  # fmt: skip


def _computing(name: str, operation: Callable[[Any, Any], Any], is_reflected: bool) -> Callable[[Any, Any], Any]:
    def computed(self: Any, other: Any) -> Any:
        pair = [self, other][:: -1 if is_reflected else 1]
        numbers = self._tradewind_numbers if isinstance(self, KnownArray) else (self,)
        made = []
        for number in numbers:
            left, right = (_plain(number if each is self else each) for each in pair)
            result = None if left is None or right is None else _plain(operation(left, right))
            if result is None:
                return _refused(self, name, other)
            made.append(result)
        return KnownArray(tuple(made)) if isinstance(self, KnownArray) else KnownNumber(made[0])

    return computed


def _comparing(name: str, comparison: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def compared(self: KnownNumber, other: Any) -> Any:
        left, right = _plain(self), _plain(other)
        if left is None or right is None:
            return _refused(self, name, other)
        return KnownBool(self, comparison(left, right))

    return compared


def _converting(conversion: Callable[[Any], Any]) -> Callable[[KnownNumber], Any]:
    return lambda self: conversion(self._tradewind_number)


def _refused(value: Stub, name: str, *others: Any) -> NoReturn:
    getattr(Stub, f"__{name}__")(value, *others)
    raise AssertionError(f"{name} of an unknown value is not refused")


for _name, _operation in _OPERATIONS.items():
    for _side in ("", "r"):
        for _class in (KnownNumber, KnownArray):
            setattr(_class, f"__{_side}{_name}__", _computing(_name, _operation, _side == "r"))
for _name, _comparison in _COMPARISONS.items():
    setattr(KnownNumber, f"__{_name}__", _comparing(_name, _comparison))
for _name, _conversion in _CONVERSIONS.items():
    setattr(KnownNumber, f"__{_name}__", _converting(_conversion))


def _pattern(made: Stub, pattern: Any, *args: Any, **kwargs: Any) -> Stub:
    """Compile a regular expression that keeps its text."""
    if isinstance(pattern, str):
        made._tradewind_attributes["pattern"] = pattern
    return made


def _is_close(made: Stub, a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Stub:
    numbers = [_plain(each) for each in (a, b, rtol, atol)]
    if None in numbers:
        return made
    left, right, relative, absolute = (float(number) for number in numbers if number is not None)
    return KnownBool(made, abs(left - right) <= absolute + relative * abs(right))


def _array(made: Stub, values: Any, *args: Any, **kwargs: Any) -> Stub:
    numbers = [_plain(value) for value in values] if isinstance(values, (list, tuple)) else [None]
    if args or kwargs or not numbers or None in numbers:
        return made
    known = [number for number in numbers if number is not None]
    has_floats = any(isinstance(number, float) for number in known)
    return KnownArray(tuple(float(number) if has_floats else number for number in known))


_MAX_SPACED: Final = 100_000
_SPACES: Final = {
    "linspace": {"num", "endpoint"},
    "geomspace": {"num", "endpoint"},
    "arange": set[str](),
    "logspace": {"num", "endpoint", "base"},
}
"""Function -> the options accepted besides plain numbers."""


def _is_small(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the result is small enough to compute while a DAG file is parsed."""
    if name != "arange":
        return float(_plain(kwargs.get("num", args[2] if len(args) > 2 else 0)) or 0) <= _MAX_SPACED
    values = [float(_plain(value) or 0) for value in args]
    start, stop, step = ([0, *values, 1] if len(values) == 1 else [*values, 1])[:3]
    return step == 0 or abs((stop - start) / step) <= _MAX_SPACED


def _spaced(name: str) -> Callable[..., Any]:
    """Compute exactly what numpy does; numpy is imported only when a file calls one of these."""

    def spaced(made: Stub, *args: Any, **kwargs: Any) -> Stub:
        numbers = [_plain(value) for value in (*args, *(kwargs[key] for key in kwargs if key != "endpoint"))]
        if None in numbers or set(kwargs) - _SPACES[name] or type(kwargs.get("endpoint", True)) is not bool:
            return made
        if not _is_small(name, args, kwargs):
            return made
        try:
            import numpy
        except ImportError:
            return made
        given = {key: value if key == "endpoint" else _plain(value) for key, value in kwargs.items()}
        found = getattr(numpy, name)(*numbers[: len(args)], **given).tolist()
        return made if None in map(_plain, found) else KnownArray(tuple(found))

    return spaced


def _exists(made: Stub, path: Any) -> Any:
    """Check a path without a scheme on this machine, from the checkout's root, as in Marin's own runs."""
    if not isinstance(path, str):
        return made
    if (answer := answer_to("exists", path)) is not None:
        return answer
    if "://" in path or "::" in path:
        return made
    notes.note_opened(path)
    return os.path.exists(path)


_ANSWERS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "regex": {"compile": _pattern},
    "regex.regex": {"compile": _pattern},
    "numpy": {"isclose": _is_close, "array": _array, **{name: _spaced(name) for name in _SPACES}},
    "levanter.utils.fsspec_utils": {"exists": _exists},
    **HUB_ANSWERS,
}


def _answering(module: str, answers: Mapping[str, Callable[..., Any]]) -> dict[str, Stub]:
    """Return answering functions by name; a class with answering methods is otherwise a cluster value."""
    made: dict[str, Stub] = {}
    for path, answer in answers.items():
        name, _, method = path.partition(".")
        answering = KnownFunction(module, path, answer)
        if method:
            owner = made.setdefault(name, Stub(StubOrigin(f"{module}.{name}", module, name)))
            owner._tradewind_attributes[method] = answering
        else:
            made[name] = answering
    return made


KNOWN_FUNCTIONS: Final = {module: _answering(module, answers) for module, answers in _ANSWERS.items()}
"""Module -> function -> the answering replacement."""
