"""What is looked at in the steps of a file: that nothing unknown counts, and that two evaluations give the same."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from tradewind.marin.evaluation.running import Run
from tradewind.marin.refusals import Reason, SourceLine, refused_file
from tradewind.marin.world.captured import Captured
from tradewind.marin.world.own_names import unknown_in
from tradewind.marin.world.standins import Opaque, origin_of, place_of
from tradewind.steps import ExecutorStep, InputName, Lazy, MirroredValue, OutputName, VersionedValue
from tradewind.steps.values.bounds import PLAIN

Identity = tuple[str, ...]
_REFERENCES = (ExecutorStep, InputName, OutputName, VersionedValue, MirroredValue)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_SAY_NOTHING = PLAIN | {types.FunctionType, type}


class _UnknownValues:
    """All steps that some steps refer to, and of each what its version and its path come from."""

    def __init__(self, shown: str, captured: Captured) -> None:
        self._shown, self._captured = shown, captured
        self._numbers: dict[int, int] = {}
        self._pending: list[ExecutorStep] = []

    def identities(self) -> list[Identity]:
        """Of each step, in an order that the file alone decides."""
        for wanted in self._captured.steps:
            self._reach(wanted.step if isinstance(wanted, InputName) else wanted)
        found = []
        while self._pending:
            step = self._pending.pop()
            if not isinstance(step.name, str) or not isinstance(step.override_output_path, str | None):
                raise self._refused(step, "override_output_path must be a text.")
            parts = [step.name, str(step.override_output_path)]
            self._add_parts(parts, step, step.config, "config")
            found.append(tuple(parts))
        return found

    def _reach(self, step: ExecutorStep | None) -> str:
        if step is None:
            return ""
        if id(step) not in self._numbers:
            self._numbers[id(step)] = len(self._numbers)
            self._pending.append(step)
        return f"#{self._numbers[id(step)]}"

    def _add_parts(self, parts: list[str], step: ExecutorStep, value: Any, path: str) -> None:
        """Of what at ``path`` of a step's config counts; a list that grows, since there are millions of values."""
        if isinstance(value, InputName):
            parts.append(f"{path}={self._reach(value.step)}/{value.name} {value.block_on_step}")
        elif (inside := _inside(value)) is not None:
            for name, inner in inside:
                kind = type(inner)
                if kind not in _SAY_NOTHING and (kind is not list or inner):  # which most are, and which say nothing
                    self._add_parts(parts, step, inner, f"{path}.{name}")
        elif isinstance(value, ExecutorStep):
            parts.append(f"{path}={self._reach(value)}")
        elif isinstance(value, VersionedValue):
            if (unknown := unknown_in(value.value)) is not None:
                raise self._refused(step, f"{path} is versioned and holds {unknown}, known only on the cluster.")
            parts.append(f"{path}={value.value!r}")
        elif isinstance(value, MirroredValue):
            self._add_parts(parts, step, value.value, path)
        elif isinstance(value, Opaque) and held_reference(value):
            raise self._refused(
                step,
                f"{path} is {origin_of(value).label}, which is known only on the cluster and is given a step, a "
                "path or a versioned value: its fields, and with them the step's version, are not known here.",
                place_of(value),
            )

    def _refused(self, step: ExecutorStep, text: str, place: SourceLine | None = None) -> Exception:
        return refused_file(self._shown, Reason(place or self._captured.place, f"step {step.name!r}: {text}"))


def check_known(run: Run) -> list[list[Identity]]:
    """What identifies the steps of each call, if nothing unknown takes part in it.

    Raises:
        RefusedFileError: Something does.
    """
    return [_UnknownValues(run.file, captured).identities() for captured in run.calls]


def held_reference(value: Any) -> bool:
    """Whether a placeholder was given, somewhere, to make what only a cluster knows."""
    if isinstance(value, _REFERENCES):
        return True
    if isinstance(value, Opaque):
        origin = origin_of(value)
        return any(map(held_reference, (origin.of, *origin.args, *origin.kwargs.values())))
    return any(held_reference(inner) for _, inner in _inside(value) or ())


def first_difference(first: Sequence[Sequence[Identity]], second: Sequence[Sequence[Identity]]) -> str | None:
    """What two evaluations of one file have different, in words; None if nothing."""
    if len(first) != len(second):
        return f"executor_main is called {len(first)} times, then {len(second)} times"
    for ours, theirs in zip(first, second, strict=True):
        if len(ours) != len(theirs):
            return f"there are {len(ours)} steps, then {len(theirs)}"
        for one, other in zip(ours, theirs, strict=True):
            if one[0] != other[0]:
                return f"a step is called {one[0]!r}, then {other[0]!r}"
            if one != other:
                return f"step {one[0]!r} has another version or path"
    return None


def _inside(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """What ``value`` is made of, with its name in there; None of what nothing looks into."""
    kind = type(value)
    if (fields := _fields_of(kind)) is not None:  # type: ignore[arg-type]
        names, values_of = fields
        return zip(names, values_of(value), strict=True)
    if issubclass(kind, dict):
        return [(name if isinstance(name, (str, int, float)) else "?", inner) for name, inner in value.items()]
    if issubclass(kind, (list, tuple)):
        return [(f"[{index}]", inner) for index, inner in enumerate(value) if type(inner) not in _SAY_NOTHING]
    if issubclass(kind, (set, frozenset)):
        return [("{}", inner) for inner in value]
    return value.kwargs.items() if issubclass(kind, Lazy) else None


@lru_cache(maxsize=1024)
def _fields_of(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """The names of a config's class, and what gives their values; None of another, and a placeholder's."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, (type, Lazy, *_REFERENCES, *_CONTAINERS)):
        return None
    names = tuple(spec.name for spec in dataclasses.fields(kind))
    if len(names) < 2:  # for which attrgetter gives no tuple
        return names, lambda value: tuple(getattr(value, name) for name in names)
    return names, attrgetter(*names)
