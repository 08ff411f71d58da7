"""Installed classes that can be made with the era's fields: the user's files make some while they are imported."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from tradewind.calls.spec import Encoder, decode
from tradewind.marin.era.building import builder
from tradewind.marin.era.table import module_rows
from tradewind.marin.translation.given import NO_CODE, Given
from tradewind.marin.translation.rebuilding import known_fields, renamed_fields, translated


class CalledWith(Given):
    """What a class is called with: values themselves, and the era's defaults of what is left out."""

    def read(self, name: str) -> Any:
        return self._fields[name]

    def take(self, name: str) -> Any:
        return self._fields.pop(name)

    def is_default(self, name: str) -> bool:
        has_default, default = default_of(self.of, name)
        return has_default and type(default) is type(self._fields[name]) and bool(default == self._fields[name])


def default_of(of: str, name: str) -> tuple[bool, Any]:
    """Whether a field of the era's class has a default, and it."""
    spec = next((spec for spec in dataclasses.fields(builder().find(of)) if spec.name == name), None)
    if spec is None:
        return False, None
    if spec.default_factory is not dataclasses.MISSING:
        return True, spec.default_factory()
    return spec.default is not dataclasses.MISSING, spec.default


def accept_old_fields(module: ModuleType) -> None:
    """Let the classes of ``module`` whose fields have changed be called with those that they had."""
    row = module_rows().get(module.__name__)
    for name in row.classes if row else ():
        made = vars(module).get(name)
        light = builder().find(f"{module.__name__}.{name}")
        if not isinstance(made, type) or not (dataclasses.is_dataclass(made) and dataclasses.is_dataclass(light)):
            continue
        of = f"{module.__name__}.{name}"
        if {spec.name for spec in dataclasses.fields(light)} - known_fields(made):
            _accept(made, of)


def _accept(made: Any, of: str) -> None:
    init, known, renamed = made.__init__, known_fields(made), renamed_fields(of)

    @functools.wraps(init)
    def accepting(self: Any, *args: Any, **words: Any) -> None:
        if type(self) is made and set(words) - known:
            words, args = called(of, args, words, known), ()
        init(self, *args, **words)

    def old_name(self: Any, name: str) -> Any:
        if name in renamed and renamed[name] in known:
            return getattr(self, renamed[name])
        if name == "configs" and "components" in known:
            return {key: component.source for key, component in self.components.items()}
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    made.__init__ = accepting
    if not hasattr(made, "__getattr__"):
        made.__getattr__ = old_name
    if "flops_per_token" in vars(made) and "max_seq_len" in known:
        made.flops_per_token = _of_whole_length(made.flops_per_token)


def _of_whole_length(flops: Callable[[Any, int, int], Any]) -> Callable[..., Any]:
    """What a token costs in a text as long as the model takes, unless another length is given."""

    @functools.wraps(flops)
    def of_length(self: Any, vocab_size: int, context_length: int | None = None) -> Any:
        return flops(self, vocab_size, self.max_seq_len if context_length is None else context_length)

    return of_length


def called(of: str, args: tuple[Any, ...], words: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Fields of the installed class, from a call with the era's.

    Raises:
        TranslationError: A value has no counterpart.
    """
    specs = [spec for spec in dataclasses.fields(builder().find(of)) if spec.init]
    given = {**dict(zip((spec.name for spec in specs if not spec.kw_only), args, strict=False)), **words}
    for old, new in renamed_fields(of).items():
        if old in words:  # dataclasses.replace() gives the other one, too
            given.pop(new, None)
    for spec in specs:
        has_default, default = default_of(of, spec.name)
        if spec.name not in given and has_default:
            is_light = dataclasses.is_dataclass(default) and spec.name in known
            given[spec.name] = decode(Encoder(NO_CODE).encode(default, spec.name)) if is_light else default
    return translated(CalledWith(of, of.rpartition(".")[2], given), known)


__all__ = ["accept_old_fields"]
