"""Call a user's function: here or as a Ray task, await the Ray references in its result, and trim its errors.

References are found in lists, tuples, sets, dictionaries and dataclasses, and in what an awaited reference returns.
Objects of other types, and those without a reference, stay as they are. A traceback starts at the user's function,
also out of a Ray task.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tradewind.runtime.driver.secrets import in_environment
from tradewind.serialization.references import worker_setup
from tradewind.steps import is_ray_function

_PACKAGE = Path(__file__).parents[2]
_INTERNAL = (f"{_PACKAGE}/serialization/", f"{_PACKAGE}/runtime/")
_INTERNAL_FRAME = re.compile(
    rf'^  File "(?:{"|".join(map(re.escape, _INTERNAL))})[^"\n]*", line .*\n(?:    .*\n)*', re.MULTILINE
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def call_and_await(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ray_task: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Any:
    """Call ``function`` and return its result with every Ray reference in it replaced by its object.

    Args:
        function: A function, or a Ray ``RemoteFunction``.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        ray_task: Options of the Ray task that it runs as; None to run it in this process.
        secrets: Variables for the environment of a Ray task.
    """
    if is_ray_function(function):
        _connect()
        return await_references(function.remote(*args, **kwargs))
    if ray_task is None:
        return await_references(function(*args, **kwargs))
    options = {"name": getattr(function, "__qualname__", "function"), **ray_task}
    remote = _connect().remote
    if not secrets:
        return await_references(remote(function).options(**options).remote(*args, **kwargs))
    return await_references(
        remote(_in_task).options(**options).remote(dict(secrets), function, list(args), dict(kwargs))
    )


def await_references(value: Any) -> Any:
    """Return ``value`` with every Ray reference in it replaced by its object."""
    ray = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "ObjectRef"):
        return value  # no reference can exist without Ray
    return resolve_references(value, lambda part: isinstance(part, ray.ObjectRef), ray.get)


def resolve_references(value: Any, is_reference: Callable[[Any], bool], get: Callable[[list[Any]], list[Any]]) -> Any:
    """Return ``value`` with references replaced by what ``get`` returns for them, until none is left."""
    while references := list(_references(value, is_reference, set())):
        objects = dict(zip(map(id, references), get(references), strict=True))
        value = _replace(value, objects, frozenset())
    return value


def _references(value: Any, is_reference: Callable[[Any], bool], seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    if is_reference(value):
        seen.add(id(value))
        yield value
    elif children := _children(value):
        seen.add(id(value))
        for child in children:
            yield from _references(child, is_reference, seen)


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if type(value) in (list, tuple, set, frozenset) or _is_namedtuple(value):
        return list(value)
    return [getattr(value, name) for name in _fields(value)]


def _fields(value: Any) -> list[str]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _replace(value: Any, objects: Mapping[int, Any], inside: frozenset[int]) -> Any:
    """Rebuild ``value`` around ``objects``; a value without a reference stays the same object."""
    if id(value) in objects:
        return objects[id(value)]
    if id(value) in inside:
        return value  # it contains itself
    children = _children(value)
    new = [_replace(child, objects, inside | {id(value)}) for child in children]
    if all(after is before for after, before in zip(new, children, strict=True)):
        return value
    return _rebuild(value, new)


def _rebuild(value: Any, children: list[Any]) -> Any:
    if isinstance(value, Mapping):
        return dict(zip(value, children, strict=True))
    if _is_namedtuple(value):
        return type(value)(*children)
    if names := _fields(value):
        value = copy.copy(value)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(value, name, child)  # frozen or not
        return value
    return type(value)(children)


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _connect() -> Any:
    import ray

    ray.init(ignore_reinit_error=True, runtime_env=worker_setup())
    return ray


def _in_task(secrets: dict[str, str], function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The body of the Ray task. Its process serves other tasks later, so the secrets are removed again."""
    with in_environment(secrets):
        return function(*args, **kwargs)


def user_error(error: BaseException) -> tuple[BaseException, str]:
    """Return the user's error behind ``error``, and its traceback as text, from inside the Ray task if there is one."""
    if not _is_task_error(error):
        return error, "".join(traceback.format_exception(type(error), error, strip_internal_frames(error)))
    text = _COLOUR.sub("", str(error)).rstrip("\n") + "\n"  # Ray's message contains the traceback
    while _is_task_error(error) and isinstance(error.cause, BaseException):  # type: ignore[attr-defined]
        error = error.cause  # type: ignore[attr-defined]
    return error, _INTERNAL_FRAME.sub("", text)


def strip_internal_frames(error: BaseException) -> TracebackType | None:
    """Return the error's traceback from the user's function on, or all of it if the function was not reached."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_INTERNAL):
        frames = frames.tb_next
    return frames or error.__traceback__


def _is_task_error(error: BaseException) -> bool:
    exceptions = sys.modules.get("ray.exceptions")
    return exceptions is not None and isinstance(error, exceptions.RayTaskError)
