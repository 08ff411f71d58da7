"""What a file assigns inside of modules that others use, too, put back: ``json.dumps``, ``pathlib.Path.exists``.

Modules also keep things themselves while they are used. What has a private name and is no function is theirs, and so is
what came with a value of theirs: a part that was imported since.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterable, Mapping
from operator import is_, methodcaller
from typing import Any, Final

_TOPS: Final = sys.stdlib_module_names | {"tradewind"}
_HEAP: Final = 1 << 9
_IMMUTABLE: Final = 1 << 8
_MISSING: Final = object()
_VALUES: Final = methodcaller("values")
Owner = types.ModuleType | type


class ModuleState:
    """The names of modules and of their classes, as they were when they were first looked at."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._before: list[tuple[Owner, dict[str, Any]]] = []
        self._noted: set[int] = set()
        self._now: list[Mapping[str, Any]] = []
        self._sizes: list[int] = []
        self._values: list[Any] = []

    def note(self, modules: Iterable[types.ModuleType] = ()) -> None:
        """Look at what was imported since, and at ``modules``."""
        for name in [name for name in sys.modules if name not in self._seen]:
            self._seen.add(name)
            if name.partition(".")[0] in _TOPS and isinstance(module := sys.modules[name], types.ModuleType):
                self._note_module(module)
        for module in modules:
            self._note_module(module)

    def put_back(self) -> bool:
        """Put back what was changed; whether anything was."""
        if self._is_as_before():
            return False
        is_changed = False
        for owner, before in self._before:
            now = vars(owner)
            if len(now) != len(before) or not all(map(is_, now.values(), before.values())):
                is_changed |= _put_back(owner, before)
        self._now = []
        return is_changed

    def _is_as_before(self) -> bool:
        """Whether all names have the values that they had; in one go, since there are tens of thousands."""
        if len(self._now) != len(self._before):
            self._now = [vars(owner) for owner, _ in self._before]
            self._sizes = [len(before) for _, before in self._before]
            self._values = [value for _, before in self._before for value in before.values()]
        found = itertools.chain.from_iterable(map(_VALUES, self._now))
        return list(map(len, self._now)) == self._sizes and all(map(is_, found, self._values))

    def _note_module(self, module: types.ModuleType) -> None:
        kinds = [value for value in vars(module).values() if isinstance(value, type) and _may_change(value)]
        owners: list[Owner] = [module, *kinds]
        for owner in owners:
            if id(owner) not in self._noted:
                self._noted.add(id(owner))
                self._before.append((owner, dict(vars(owner))))


def _may_change(kind: type) -> bool:
    return kind.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP and _is_theirs(kind)


def _is_theirs(value: Any) -> bool:
    """Whether ``value`` is a module, or was made in one of theirs."""
    if isinstance(value, types.ModuleType):
        return True
    module = getattr(value, "__module__", None) if isinstance(value, (type, types.FunctionType)) else None
    return isinstance(module, str) and module.partition(".")[0] in _TOPS


def _put_back(owner: Owner, before: dict[str, Any]) -> bool:
    """Put back the names of ``owner``; what stays is taken into ``before``."""
    is_changed = False
    now: Mapping[str, Any] = dict(vars(owner))
    for name in {**before, **now}:
        was, found = before.get(name, _MISSING), now.get(name, _MISSING)
        if was is found:
            continue
        is_private = name.startswith("_") and not callable(found if was is _MISSING else was)
        if is_private or (was is _MISSING and _is_theirs(found)):
            continue
        is_changed = True
        setter = type if isinstance(owner, type) else types.ModuleType  # a metaclass may refuse
        if was is _MISSING:
            setter.__delattr__(owner, name)
        else:
            setter.__setattr__(owner, name, was)
    before.clear()
    before.update(vars(owner))
    return is_changed
