"""Builtins, ``os``, ``time`` and ``importlib`` of the user's code: real except for a few names.

Only that code receives them, so the rest of this process and other threads are unaffected.
"""

from __future__ import annotations

import atexit
import builtins
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import operator
import os
import posix
import re
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from typing import Any, Final, NoReturn

from tradewind.marin.refusals import SourceLine, notes, refuse, reraise_refusal, running_place
from tradewind.marin.sandbox.identity import (
    CAUGHT,
    EITHER,
    IS,
    KNOWN,
    KNOWN_INSIDE,
    OPTIONAL,
    ORDER,
    TYPE,
    is_same,
    require_known,
    require_known_inside,
    type_of,
    union_type,
)
from tradewind.marin.sandbox.perturbation import perturbed_clock, perturbed_machine, reversed_order
from tradewind.marin.sandbox.stubs import (
    Stub,
    StubBase,
    StubMeta,
    StubModule,
    StubOrigin,
    base_label,
    stub_base,
    stub_origin,
)

SECRET_NAME: Final = re.compile(
    r"(^|_)(TOKEN|SECRET|PAT|CREDENTIALS|(API|ACCESS|PRIVATE|FERNET)_?KEY)S?(_|$)|PASSWORD|PASSWD|PASSPHRASE|"
    r"^AIRFLOW_(CONN|VAR)_|^AIRFLOW__",
    re.I,
)
"""Names of variables that hold secrets, possibly Airflow's own."""
_WITH_PASSWORD: Final = re.compile(r"://[^/@:\s]*:[^/@\s]+@")
_PREFIX: Final = "MARIN_PREFIX"
_TRADEWIND_PREFIX: Final = "TRADEWIND_PREFIX"
_MISSING: Final = object()
_SAME_IN_EVERY_PROCESS = (int, float, complex, bool, type(None))
_KNOWN_MODULES = ("tradewind.", "experiments.", "marin.", "__main__")
_NAP_S = 0.05
_PARTLY_KNOWN = (StubModule, StubBase, StubMeta)
_UNKNOWN: Final = Stub(StubOrigin("an attribute", ""))


class Environment(MutableMapping[str, str]):
    """A copy of this process's environment without ``CI``; it records reads and keeps writes to itself.

    ``MARIN_PREFIX``, which Marin's own runs always have, may also be set as ``TRADEWIND_PREFIX``. Without either,
    reading it is refused, because paths depend on it.
    """

    def __init__(self) -> None:
        self._values = {name: value for name, value in os.environ.items() if name != "CI"}
        if _TRADEWIND_PREFIX in self._values:
            self._values.setdefault(_PREFIX, self._values[_TRADEWIND_PREFIX])
        self._own: set[str] = set()
        self._ever_read: dict[str, str | None] = {}
        self.read: dict[str, str | None] = {}

    def is_fresh(self) -> bool:
        """Whether this process's environment still has all values ever read."""
        return all(os.environ.get(name) == value for name, value in self._ever_read.items())

    def __getitem__(self, name: str) -> str:
        is_secret = self._is_secret(name)
        if is_secret:
            self.read.setdefault(name, None)
        else:
            self._note(name)
        if is_secret and name in self._values:
            raise refuse(f"it reads the secret {name} while the steps are made: let the step's secrets= name it.")
        self._check_prefix(name)
        return self._values[name]

    def __setitem__(self, name: str, value: str) -> None:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("str expected")
        self._own.add(name)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __contains__(self, name: object) -> bool:
        self._note(str(name))
        self._check_prefix(name)
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._values if not self._is_secret(name)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _is_secret(self, name: str) -> bool:
        if name in self._own:
            return False
        return SECRET_NAME.search(name) is not None or _WITH_PASSWORD.search(self._values.get(name, "")) is not None

    def _note(self, name: str) -> None:
        for noted in (self.read, self._ever_read):
            noted.setdefault(name, os.environ.get(name))

    def _check_prefix(self, name: object) -> None:
        if name != _PREFIX:
            return
        self._note(_TRADEWIND_PREFIX)
        if name not in self._values:
            raise refuse(
                f"it reads {_PREFIX}, which is not set where DAG files are parsed: set it or {_TRADEWIND_PREFIX} there."
            )

    def copy(self) -> dict[str, str]:
        """Return all variables except secrets."""
        return {name: self._values[name] for name in self}


class UserBuiltins:
    """Builtins and replaced modules of one sandbox; ``salt`` varies its text hashes and clock."""

    def __init__(
        self,
        import_: Callable[..., Any],
        import_module: Callable[..., types.ModuleType],
        optional: Callable[[], None],
        salt: int,
    ) -> None:
        self.environment = Environment()
        self.hash_places: list[SourceLine] = []
        self._salt = salt
        self.names: dict[str, Any] = {**vars(builtins), **self._changed(), "__import__": import_, OPTIONAL: optional}
        changes: dict[types.ModuleType, dict[str, Any]] = {
            os: {"environ": self.environment, "getenv": self.environment.get, **_OF_PROCESS},
            posix: dict(_OF_PROCESS),
            time: {"sleep": _sleep},
            importlib: {"import_module": import_module},
            builtins: self.names,
            atexit: {"register": lambda function, *args, **kwargs: function},
            dataclasses: {"replace": _replace, "is_dataclass": _is_dataclass, **_FIELDS},
        }
        others = (perturbed_clock(), perturbed_machine()) if salt else ()
        for more in (_overridden_modules(self.environment), *others):
            for module, names in more.items():
                changes.setdefault(module, {}).update(names)
        self._modules = {
            _name_of(module): _changed_module(module, {**names, "__builtins__": self.names})
            for module, names in changes.items()
        }
        for name, changed in self._modules.items():
            parent, _, own = name.rpartition(".")
            if parent in self._modules:
                setattr(self._modules[parent], own, changed)

    def modules(self) -> Iterable[types.ModuleType]:
        """Return all modules that replace real ones."""
        return self._modules.values()

    def module(self, name: str) -> types.ModuleType | None:
        """Return the replacement of a module, or None for the real one."""
        changed = self._modules.get(name)
        if changed is not None:
            for key, value in vars(sys.modules[name]).items():  # submodules imported since
                changed.__dict__.setdefault(key, value)
        return changed

    def _changed(self) -> dict[str, Any]:
        return {
            IS: is_same,
            EITHER: union_type,
            KNOWN: require_known,
            KNOWN_INSIDE: require_known_inside,
            TYPE: type_of,
            CAUGHT: reraise_refusal,
            ORDER: reversed_order if self._salt else lambda value: value,
            "isinstance": _isinstance,
            "hasattr": _hasattr,
            "getattr": _getattr,
            "callable": _callable,
            "hash": self._hash,
            "input": _refused_input,
        }

    def _hash(self, value: Any, /) -> int:
        real = hash(value)
        if isinstance(value, _SAME_IN_EVERY_PROCESS):
            return real
        if notes.root is not None and (place := running_place(notes.root)) is not None:
            self.hash_places.append(place)
        return real ^ self._salt


def _name_of(module: types.ModuleType) -> str:
    return "os.path" if module is os.path else module.__name__


def _changed_module(module: types.ModuleType, names: dict[str, Any]) -> types.ModuleType:
    changed = types.ModuleType(module.__name__, module.__doc__)
    changed.__dict__.update({**vars(module), **names})
    return changed


def _isinstance(value: Any, kinds: Any, /) -> bool:
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if isinstance(kind, tuple):
            if _isinstance(value, kind):
                return True
        elif _is_of_kind(value, kind):
            return True
    return False


def _is_of_kind(value: Any, kind: Any) -> bool:
    if isinstance(value, Stub):
        origin = stub_origin(value)
        if origin.is_call and origin.of is kind and stub_origin(origin.of).label.rpartition(".")[2][:1].isupper():
            return True  # a class's instances are of that class
        if isinstance(kind, type) and kind.__module__.startswith(_KNOWN_MODULES):
            return False  # no library creates instances of user classes
        raise refuse(f"it needs isinstance() of {origin.label}, which is known only on the cluster.")
    if isinstance(kind, Stub) and isinstance(value, stub_base(kind)):
        return True
    is_certain = not isinstance(value, StubBase) or getattr(kind, "__module__", "").startswith(_KNOWN_MODULES)
    if isinstance(kind, Stub) or is_certain or isinstance(value, kind):
        return isinstance(value, kind)
    raise refuse(
        f"it needs isinstance() of a {type(value).__name__}, which inherits from {base_label(type(value))}, which is "
        "not known here."
    )


def _hasattr(value: Any, name: str, /) -> bool:
    _check_has(value, name, f"it needs hasattr({{}}, {name!r}), which")
    return hasattr(value, name)


def _check_has(value: Any, name: str, needed: str) -> None:
    """Refuse to tell whether a library value has an attribute, if that is uncertain."""
    if isinstance(value, Stub):
        if type(value._tradewind_attributes.get(name, _UNKNOWN)) is not Stub:
            return  # an answer has this attribute
        label = stub_origin(value).label
    elif not isinstance(value, _PARTLY_KNOWN) or not _may_lack(value, name):
        return
    elif isinstance(value, StubModule):
        label = value.__name__
    else:
        label = base_label(value if isinstance(value, type) else type(value))
    raise refuse(f"{needed.format(label)} is known only on the cluster.")


def _may_lack(value: Any, name: str) -> bool:
    found = getattr(value, name, _UNKNOWN)
    return type(found) is Stub or getattr(found, "__func__", found) is vars(StubBase).get(name)


def _getattr(value: Any, name: str, default: Any = _MISSING, /) -> Any:
    if default is _MISSING:
        return getattr(value, name)
    _check_has(value, name, f"it needs getattr({{}}, {name!r}, ...), and whether that attribute exists")
    return getattr(value, name, default)


def _callable(value: Any, /) -> bool:
    if not isinstance(value, type):
        _check_has(value, "__call__", "it needs callable({}), which")
    return callable(value)


def _replace(value: Any, /, **changes: Any) -> Any:
    """Defer changes of a cluster value to the cluster."""
    if isinstance(value, Stub):
        return Stub(StubOrigin("dataclasses.replace", "dataclasses", "replace"))(value, **changes)
    return dataclasses.replace(value, **changes)


def _is_dataclass(value: Any, /) -> bool:
    _check_has(value, "__dataclass_fields__", "it needs is_dataclass({}), which")
    return dataclasses.is_dataclass(value)


def _of_known_fields(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that reads all fields of a dataclass, some possibly inherited from a library class."""

    def checked(value: Any, /, **kwargs: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if isinstance(kind, StubMeta):
            raise refuse(f"it needs the fields of a {kind.__name__}, which inherits from {base_label(kind)}.")
        return function(value, **kwargs)

    return checked


_FIELDS: Final = {name: _of_known_fields(getattr(dataclasses, name)) for name in ("fields", "asdict", "astuple")}


def _sleep(seconds: float, /) -> None:
    """Sleep in short intervals, so that the time limit takes effect."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _NAP_S))


def _refused_change(name: str) -> Callable[..., NoReturn]:
    def called(*args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(f"it ends or changes this process with os.{name}().")

    return called


_CHANGING: Final = (
    "_exit", "abort", "umask", "nice", "setpriority", "dup2", "closerange", "chroot", "setsid", "setpgid", "setuid",
    "setgid", "mkfifo", "mknod",
)  # fmt: skip
_OF_PROCESS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _refused_change(name) for name in _CHANGING},
    "putenv": lambda name, value, /: None,  # only child processes would see it
    "unsetenv": lambda name, /: None,
}


def _refused_input(*args: Any) -> NoReturn:
    raise refuse("it calls input(), and no user is there to answer.")


# Facts about this process that hold for neither Marin's nor the cluster's: its libraries, its secrets.
#
# Questions about them are refused or hidden from a file. This prevents mistakes; it does not stop a malicious file.

_OF_LIBRARIES: Final = (
    "version", "metadata", "distribution", "distributions", "requires", "files", "entry_points",
    "packages_distributions",
)  # fmt: skip


def _overridden_modules(environment: Environment) -> dict[types.ModuleType, dict[str, Any]]:
    """Return module -> name -> the user code's replacement of the real one."""
    values = {os.fsencode(name): os.fsencode(value) for name, value in environment.copy().items()}
    as_bytes = types.MappingProxyType(values)  # writes must go through os.environ
    return {
        os: {"environb": as_bytes, "getenvb": as_bytes.get},
        posix: {"environ": as_bytes},
        os.path: {"expandvars": _with_other_os(os.path.expandvars, environ=environment)},
        importlib.util: {"find_spec": _find_spec},
        importlib.metadata: dict.fromkeys(_OF_LIBRARIES, _refused_library),
        operator: {"is_": is_same, "is_not": lambda left, right: not is_same(left, right)},
        json: {name: _writing(getattr(json, name)) for name in ("dump", "dumps")},
    }


def _with_other_os(function: Any, **names: Any) -> Any:
    """Return a copy of a Python function for which ``os`` has other ``names``."""
    other = types.SimpleNamespace(**{**vars(os), **names})
    return types.FunctionType(function.__code__, {**function.__globals__, "os": other}, function.__name__)


def _find_spec(name: str, package: str | None = None) -> Any:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return importlib.util.find_spec(name, package)
    raise refuse(f"it needs to know whether {name} can be imported, which is known only on the cluster.")


def _refused_library(*args: Any, **kwargs: Any) -> NoReturn:
    raise refuse("it needs the installed libraries, which are known only on the cluster.")


def _writing(write: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``json.dumps``: ``default=`` never receives a cluster value, possibly a text or number."""

    def written(*args: Any, default: Callable[[Any], Any] | None = None, **kwargs: Any) -> Any:
        return write(*args, default=None if default is None else partial(_json_of, default), **kwargs)

    return written


def _json_of(default: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, Stub):
        raise refuse(f"it needs the JSON of {stub_origin(value).label}, which is known only on the cluster.")
    return default(value)
