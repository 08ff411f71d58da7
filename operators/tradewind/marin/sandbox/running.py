"""Run one file as ``__main__`` in a sandbox; return its calls, or why it cannot be a DAG."""

from __future__ import annotations

import contextvars
import importlib.machinery
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.marin.refusals import LoadAborted, OutOfTime, Reason, notes, place_of_error, refused_file
from tradewind.marin.sandbox.executor_api import Captured, calls
from tradewind.marin.sandbox.guards import guarded
from tradewind.marin.sandbox.import_map import ModuleSandbox
from tradewind.marin.sandbox.perturbation import walked
from tradewind.marin.sandbox.process_state import ForFile, is_by_signal
from tradewind.marin.sandbox.stubs import Stub, stub_origin
from tradewind.serialization.references import register_module_file
from tradewind.steps import RemoteFunction

_MAIN: Final = "__main__"
_MAX_TEXT: Final = 500
"""Maximum characters of an error's text."""


@dataclass(frozen=True, eq=False)
class Run:
    """Result of running a file.

    Attributes:
        file: Path from the checkout's root.
        calls: The calls of ``executor_main``, in order.
        environment: The environment variables that it read, with their values.
    """

    file: str
    calls: tuple[Captured, ...]
    environment: Mapping[str, str | None]


def run_file(sandbox: ModuleSandbox, file: Path, limit_s: float, for_file: ForFile) -> Run:
    """Run ``file`` of the sandbox's checkout as a script, inside the context ``for_file``.

    Raises:
        RefusedFileError: It cannot be a DAG.
    """
    shown = file.relative_to(sandbox.root).as_posix()
    name = module_name(shown)
    module = types.ModuleType(_MAIN)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=str(file))
    module.__package__ = name.rpartition(".")[0]
    sandbox.builtins.environment.read.clear()
    try:
        with for_file(sandbox, [str(file)]), _captured(sandbox, module, file):
            made = _run(sandbox, module, file, limit_s, shown)
    finally:
        sandbox.depends_on(notes.opened)
        notes.end()
    _name_definitions(module, name)
    for each in (*sandbox.modules.values(), module):
        if (source := getattr(each, "__file__", None)) is not None:
            register_module_file(name if each is module else each.__name__, source)
    return Run(shown, tuple(made), dict(sandbox.builtins.environment.read))


def module_name(shown: str) -> str:
    """Return the stable module name of a checkout file, without source folders."""
    parts = list(Path(shown).with_suffix("").parts)
    return ".".join(parts[1:] if parts[0] == "src" else parts)


@contextmanager
def _captured(sandbox: ModuleSandbox, module: types.ModuleType, file: Path) -> Iterator[None]:
    notes.begin(sandbox.root)
    calls.made = []
    sandbox.builtins.hash_places.clear()
    walked.clear()
    try:
        with sandbox.entered(file.parent):
            sandbox.show_main(module)
            yield
    finally:
        calls.made = None


def _run(sandbox: ModuleSandbox, module: types.ModuleType, file: Path, limit_s: float, shown: str) -> list[Captured]:
    made = calls.made if calls.made is not None else []
    try:
        with guarded(limit_s):
            contextvars.copy_context().run(sandbox.execute, module, file)
    except SystemExit as error:
        if is_by_signal(error):
            raise
        if error.code not in (None, 0) or not made:
            raise refused_file(shown, _exit_reason(sandbox.root, error), is_own=True) from None
    except OutOfTime as error:
        reason = f"it does not end: after {limit_s:g} s it was still being loaded. A longer time_limit_s= may help."
        raise refused_file(shown, Reason(place_of_error(sandbox.root, error), reason)) from None
    except LoadAborted:
        raise refused_file(shown, notes.reasons[0]) from None
    except BaseException as error:
        if not isinstance(error, Exception) and is_by_signal(error):
            raise
        if notes.reasons:
            raise refused_file(shown, notes.reasons[0]) from None
        raise refused_file(
            shown, Reason(place_of_error(sandbox.root, error), error_message(error)), is_own=True
        ) from error
    if notes.reasons:  # a bare except swallowed it somewhere
        raise refused_file(shown, notes.reasons[0])
    return made


def _exit_reason(root: Path, error: SystemExit) -> Reason:
    code = "" if error.code is None else repr(error.code)
    return Reason(place_of_error(root, error), f"it ends itself with exit({code}) before it has called executor_main.")


def error_message(error: BaseException) -> str:
    """Describe an error, and the unknown values where it occurred."""
    try:
        text = " ".join(str(error).split())
    except BaseException as raised:  # the file's own class
        if is_by_signal(raised):
            raise
        text = ""
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, TypeError) and (unknown := _unknown_at(error)) is not None:
        message += f" ({unknown} is known only on the cluster)"
    return message


def _unknown_at(error: BaseException) -> str | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    values = trace.tb_frame.f_locals.values() if trace is not None else ()
    return next((stub_origin(value).label for value in values if isinstance(value, Stub)), None)


def _name_definitions(module: types.ModuleType, name: str) -> None:
    """Rename functions and classes of ``__main__`` to the file's stable module name."""
    pending: list[Any] = list(vars(module).values())
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        kind = type(found)  # isinstance() would query the file's own objects
        if issubclass(kind, RemoteFunction):
            found.__module__ = name if found.__module__ == _MAIN else found.__module__
            found, kind = found.function, type(found.function)
        if issubclass(kind, Stub):
            pending.append(stub_origin(found).wrapped)
        elif issubclass(kind, (staticmethod, classmethod)):
            pending.append(found.__func__)
        elif issubclass(kind, (types.FunctionType, type)) and found.__module__ == _MAIN and id(found) not in seen:
            seen.add(id(found))
            found.__module__ = name
            pending += list(vars(found).values())
