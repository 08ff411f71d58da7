"""Marin's names that Tradewind replaces: steps and experiments. One object each, in every sandbox."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tradewind.marin.names.steps import MarinStep, unversioned
from tradewind.marin.refusals import SourceLine, notes, refuse, running_place
from tradewind.marin.sandbox.stubs import Stub, StubBase, stub_origin
from tradewind.steps import (
    THIS_OUTPUT_PATH,
    ExecutorStep,
    InputName,
    MirroredValue,
    OutputName,
    VersionedValue,
    ensure_versioned,
    mirrored,
    output_path_of,
    this_output_path,
    versioned,
)
from tradewind.steps.bounds import PLAIN

# A file calls ``executor_main`` at its end: never, once or several times. Each call becomes a DAG.


@dataclass(frozen=True)
class ExecutorMainConfig:
    """Marin's command line of an experiment; here only the values set in the file."""

    prefix: str | None = None
    executor_info_base_path: str | None = None
    dry_run: bool = False
    force_run_failed: bool = False
    run_only: list[str] | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True, eq=False)
class Captured:
    """One call of ``executor_main``.

    Attributes:
        steps: The requested steps; possibly none.
        description: For users.
        config: The file's prefix and selection of steps, or None.
        place: The line of the call.
    """

    steps: tuple[ExecutorStep | InputName, ...]
    description: str | None
    config: ExecutorMainConfig | None
    place: SourceLine | None


class _Calls(threading.local):
    """The calls of the file that this thread is loading."""

    made: list[Captured] | None = None


calls = _Calls()


def executor_main(*args: Any, **kwargs: Any) -> None:
    """Record the call: ``executor_main(steps, description)``, an ``ExecutorMainConfig`` first or by name."""
    given = list(args)
    config = kwargs.pop("config", None)
    if given and isinstance(given[0], ExecutorMainConfig):
        config = given.pop(0)
    for name in ("steps", "description", "max_concurrent"):
        if given:
            kwargs[name] = given.pop(0)
    _note(config, **kwargs)


def _note(
    config: ExecutorMainConfig | None,
    steps: Sequence[ExecutorStep | InputName] = (),
    description: str | None = None,
    max_concurrent: int | None = None,
) -> None:
    if calls.made is None or notes.root is None:
        return  # a step's function calls, or a module after its load
    place = running_place(notes.root)
    if not isinstance(steps, Collection):
        raise refuse(f"executor_main needs a list of steps, not a {type(steps).__name__}.", place)
    for step in steps:
        if not isinstance(step, ExecutorStep | InputName):
            what = f"{label}, known only on the cluster" if (label := find_stub(step)) else f"a {type(step).__name__}"
            raise refuse(f"executor_main needs steps, and one is {what}.", place)
    if description is not None and not isinstance(description, str):
        raise refuse("executor_main needs a text as description.", place)
    if max_concurrent is not None and config is None:
        config = ExecutorMainConfig(max_concurrent=max_concurrent)
    calls.made.append(Captured(tuple(steps), description, config, place))


def marin_versioned(value: Any) -> Any:
    """Mark as versioned; refuse a cluster value at once."""
    _check_known(value)
    return versioned(value)


def marin_ensure_versioned(value: Any) -> Any:
    """Mark as versioned unless already marked; refuse a cluster value at once."""
    _check_known(value)
    return ensure_versioned(value)


def get_executor_step(run: ExecutorStep | InputName) -> ExecutorStep:
    """Return the step of ``run``, a step or a path in one.

    Raises:
        ValueError: It is a hard-coded path, or neither of these.
    """
    if isinstance(run, ExecutorStep):
        return run
    if isinstance(run, InputName):
        if run.step is None:
            raise ValueError(f"Hardcoded path {run.name} is not part of the pipeline")
        return run.step
    raise ValueError(f"Unexpected type {type(run)} for run: {run}")


def find_stub(value: Any) -> str | None:
    """Return the label of a cluster value in ``value``, or None."""
    if type(value) in PLAIN:
        return None
    if isinstance(value, Stub):
        return stub_origin(value).label
    if isinstance(value, StubBase):
        return f"a {type(value).__name__}, which inherits fields that are not known here"
    for inner in _contents_getter(type(value))(value):  # type: ignore[arg-type]
        if type(inner) not in PLAIN and (found := find_stub(inner)) is not None:
            return found
    return None


@lru_cache(maxsize=1024)
def _contents_getter(kind: type[Any]) -> Callable[[Any], Iterable[Any]]:
    """Return a function that iterates over the contents of a value of this class."""
    if issubclass(kind, Mapping):
        return lambda value: (*value.keys(), *value.values())
    if issubclass(kind, (list, tuple, set, frozenset)):
        return iter
    if dataclasses.is_dataclass(kind) and not issubclass(kind, (type, ExecutorStep)):
        names = tuple(spec.name for spec in dataclasses.fields(kind))
        return lambda value: (getattr(value, name, None) for name in names)
    return lambda value: ()


def _check_known(value: Any) -> None:
    if (found := find_stub(value)) is not None:
        raise refuse(f"versioned() is given {found}: it is known only on the cluster, and no version can come from it.")


_EXECUTOR: Final[Mapping[str, Any]] = {
    "ExecutorMainConfig": ExecutorMainConfig,
    "ExecutorStep": MarinStep,
    "InputName": InputName,
    "MirroredValue": MirroredValue,
    "OutputName": OutputName,
    "THIS_OUTPUT_PATH": THIS_OUTPUT_PATH,
    "VersionedValue": VersionedValue,
    "ensure_versioned": marin_ensure_versioned,
    "executor_main": executor_main,
    "get_executor_step": get_executor_step,
    "mirrored": mirrored,
    "output_path_of": output_path_of,
    "this_output_path": this_output_path,
    "unwrap_versioned_value": unversioned,
    "versioned": marin_versioned,
}
OVERRIDES: Final[Mapping[str, Mapping[str, Any]]] = {
    "marin.execution": _EXECUTOR,
    "marin.execution.executor": _EXECUTOR,
}
"""Marin's module -> name -> Tradewind's object."""
