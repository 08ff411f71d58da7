"""What Python tells of this process that is true of neither Marin's nor the cluster's: its libraries, its secrets.

What is asked of them is refused or kept from a file; not to keep a file that means harm from it, but one that errs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import operator
import os
import posix
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from tradewind.marin.refusals import refuse
from tradewind.marin.world.identity import is_same
from tradewind.marin.world.standins import Opaque, origin_of

_OF_LIBRARIES: Final = (
    "version", "metadata", "distribution", "distributions", "requires", "files", "entry_points",
    "packages_distributions",
)  # fmt: skip


class Known(Protocol):
    """The environment as a file may know it."""

    def copy(self) -> dict[str, str]:
        """All but secrets."""


def changed_facts(environment: Known) -> dict[types.ModuleType, dict[str, Any]]:
    """Module -> name -> what the user's code finds in place of the real one."""
    values = {os.fsencode(name): os.fsencode(value) for name, value in environment.copy().items()}
    as_bytes = types.MappingProxyType(values)  # os.environ would have to know what is written there
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
    """The same function of Python's own, for which ``os`` has other ``names``."""
    other = types.SimpleNamespace(**{**vars(os), **names})
    return types.FunctionType(function.__code__, {**function.__globals__, "os": other}, function.__name__)


def _find_spec(name: str, package: str | None = None) -> Any:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return importlib.util.find_spec(name, package)
    raise refuse(f"whether {name} can be imported is asked, which is known only on the cluster.")


def _refused_library(*args: Any, **kwargs: Any) -> NoReturn:
    raise refuse("what is installed is asked, which is known only on the cluster.")


def _writing(write: Callable[..., Any]) -> Callable[..., Any]:
    """``json.dumps``, whose ``default=`` is not asked about what may be a text or a number on the cluster."""

    def written(*args: Any, default: Callable[[Any], Any] | None = None, **kwargs: Any) -> Any:
        return write(*args, default=None if default is None else partial(_json_of, default), **kwargs)

    return written


def _json_of(default: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, Opaque):
        raise refuse(f"the JSON of {origin_of(value).label} is asked, which is known only on the cluster.")
    return default(value)
