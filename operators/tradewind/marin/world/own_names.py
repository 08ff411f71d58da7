"""The names of Marin that are ours: what makes steps and experiments. One object each, however it is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from tradewind.marin.names.steps import MarinStep
from tradewind.marin.refusals import refuse
from tradewind.marin.world.captured import ExecutorMainConfig, executor_main
from tradewind.marin.world.standins import Opaque, StandInBase, origin_of
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
from tradewind.steps.values.bounds import PLAIN


def marin_versioned(value: Any) -> Any:
    """``versioned``, which refuses at once what only a cluster knows."""
    _check_known(value)
    return versioned(value)


def marin_ensure_versioned(value: Any) -> Any:
    """The same of ``ensure_versioned``."""
    _check_known(value)
    return ensure_versioned(value)


def unwrap_versioned_value(value: Any) -> Any:
    """The value itself, whether it is versioned or not."""
    return value.value if isinstance(value, VersionedValue) else value


def get_executor_step(run: ExecutorStep | InputName) -> ExecutorStep:
    """The step that ``run`` is or is a path of.

    Raises:
        ValueError: It is a hard-coded path, or neither.
    """
    if isinstance(run, ExecutorStep):
        return run
    if isinstance(run, InputName):
        if run.step is None:
            raise ValueError(f"Hardcoded path {run.name} is not part of the pipeline")
        return run.step
    raise ValueError(f"Unexpected type {type(run)} for run: {run}")


def unknown_in(value: Any) -> str | None:
    """What in ``value`` only a cluster knows, or None."""
    if type(value) in PLAIN:
        return None
    if isinstance(value, Opaque):
        return origin_of(value).label
    if isinstance(value, StandInBase):
        return f"a {type(value).__name__}, which inherits fields that are not known here"
    for inner in _held(type(value))(value):  # type: ignore[arg-type]
        if type(inner) not in PLAIN and (found := unknown_in(inner)) is not None:
            return found
    return None


@lru_cache(maxsize=1024)
def _held(kind: type[Any]) -> Callable[[Any], Iterable[Any]]:
    """What gives all that a value of the class holds."""
    if issubclass(kind, Mapping):
        return lambda value: (*value.keys(), *value.values())
    if issubclass(kind, (list, tuple, set, frozenset)):
        return iter
    if dataclasses.is_dataclass(kind) and not issubclass(kind, (type, ExecutorStep)):
        names = tuple(spec.name for spec in dataclasses.fields(kind))
        return lambda value: (getattr(value, name, None) for name in names)
    return lambda value: ()


def _check_known(value: Any) -> None:
    if (found := unknown_in(value)) is not None:
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
    "unwrap_versioned_value": unwrap_versioned_value,
    "versioned": marin_versioned,
}
OWN: Final[Mapping[str, Mapping[str, Any]]] = {"marin.execution": _EXECUTOR, "marin.execution.executor": _EXECUTOR}
"""Module of Marin -> name -> ours."""
