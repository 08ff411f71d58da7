"""Evaluate files, each twice in separate sandboxes: a difference would also occur between parses."""

from __future__ import annotations

import dataclasses
import logging
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tradewind.marin.refusals import (
    OutOfTime,
    Reason,
    RefusedFileError,
    SourceLine,
    notes,
    place_of_error,
    refuse,
    refused_file,
)
from tradewind.marin.sandbox.executor_api import Captured, find_stub
from tradewind.marin.sandbox.guards import clock_reads, guarded
from tradewind.marin.sandbox.import_map import ANY_LIBRARY, ModuleSandbox
from tradewind.marin.sandbox.perturbation import walked
from tradewind.marin.sandbox.process_state import ForFile, is_by_signal, preserved_process_state, tracked_signals
from tradewind.marin.sandbox.running import Run, error_message, run_file
from tradewind.marin.sandbox.stubs import Stub, source_line_of, stub_origin
from tradewind.steps import ExecutorStep, InputName, Lazy, MirroredValue, OutputName, VersionedValue
from tradewind.steps.bounds import PLAIN

# Checks of a file's steps: no versioned value is unknown, and two evaluations agree.

Identity = tuple[str, ...]
_REFERENCES = (ExecutorStep, InputName, OutputName, VersionedValue, MirroredValue)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_WITHOUT_IDENTITY = PLAIN | {types.FunctionType, type}


class _UnknownValues:
    """All steps that some steps refer to, and for each the values that determine its version and path."""

    def __init__(self, shown: str, captured: Captured) -> None:
        self._shown, self._captured = shown, captured
        self._numbers: dict[int, int] = {}
        self._pending: list[ExecutorStep] = []

    def identities(self) -> list[Identity]:
        """Return the identity of each step, in an order that depends only on the file."""
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
        """Append the identity of versioned values at ``path`` to a list, since there are millions of values."""
        if isinstance(value, InputName):
            parts.append(f"{path}={self._reach(value.step)}/{value.name} {value.block_on_step}")
        elif (inside := _inside(value)) is not None:
            for name, inner in inside:
                kind = type(inner)
                if kind not in _WITHOUT_IDENTITY and (kind is not list or inner):  # most say nothing
                    self._add_parts(parts, step, inner, f"{path}.{name}")
        elif isinstance(value, ExecutorStep):
            parts.append(f"{path}={self._reach(value)}")
        elif isinstance(value, VersionedValue):
            if (unknown := find_stub(value.value)) is not None:
                raise self._refused(step, f"{path} is versioned and holds {unknown}, known only on the cluster.")
            parts.append(f"{path}={self._text_of(value.value, step, path)}")
        elif isinstance(value, MirroredValue):
            self._add_parts(parts, step, value.value, path)
        elif isinstance(value, Stub) and holds_reference(value):
            raise self._refused(
                step,
                f"{path} is {stub_origin(value).label}, which is known only on the cluster and is given a step, a "
                "path or a versioned value: its fields, and with them the step's version, are not known here.",
                source_line_of(value),
            )

    def _text_of(self, value: Any, step: ExecutorStep, path: str) -> str:
        try:
            return repr(value)
        except ValueError as error:  # an integer of thousands of digits
            raise self._refused(step, f"{path} is versioned and has no text: {error}") from None

    def _refused(self, step: ExecutorStep, text: str, place: SourceLine | None = None) -> Exception:
        return refused_file(self._shown, Reason(place or self._captured.place, f"step {step.name!r}: {text}"))


def check_known(run: Run) -> list[list[Identity]]:
    """Return the identities of the steps of each call, if they contain nothing unknown.

    Raises:
        RefusedFileError: They contain an unknown value.
    """
    return [_UnknownValues(run.file, captured).identities() for captured in run.calls]


def holds_reference(value: Any) -> bool:
    """Whether a cluster value was created from a placeholder."""
    if isinstance(value, _REFERENCES):
        return True
    if isinstance(value, Stub):
        origin = stub_origin(value)
        return any(map(holds_reference, (origin.of, *origin.args, *origin.kwargs.values())))
    return any(holds_reference(inner) for _, inner in _inside(value) or ())


def first_difference(first: Sequence[Sequence[Identity]], second: Sequence[Sequence[Identity]]) -> str | None:
    """Describe the first difference between two evaluations of one file; None if they agree."""
    if len(first) != len(second):
        return f"executor_main is called {len(first)} times, then {len(second)} times"
    for steps, others in zip(first, second, strict=True):
        if len(steps) != len(others):
            return f"there are {len(steps)} steps, then {len(others)}"
        for one, other in zip(steps, others, strict=True):
            if one[0] != other[0]:
                return f"a step is called {one[0]!r}, then {other[0]!r}"
            if one != other:
                return f"step {one[0]!r} has another version or path"
    return None


def _inside(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of ``value`` with their names; None for values without inspected parts."""
    kind = type(value)
    if (fields := _fields_of(kind)) is not None:  # type: ignore[arg-type]
        names, values_of = fields
        return zip(names, values_of(value), strict=True)
    if issubclass(kind, dict):
        return [(name if isinstance(name, (str, int, float)) else "?", inner) for name, inner in value.items()]
    if issubclass(kind, (list, tuple)):
        return [(f"[{index}]", inner) for index, inner in enumerate(value) if type(inner) not in _WITHOUT_IDENTITY]
    if issubclass(kind, (set, frozenset)):
        return [("{}", inner) for inner in value]
    return value.kwargs.items() if issubclass(kind, Lazy) else None


@lru_cache(maxsize=1024)
def _fields_of(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """Return field names and a getter of a config class; None for other classes and placeholders."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, (type, Lazy, *_REFERENCES, *_CONTAINERS)):
        return None
    names = tuple(spec.name for spec in dataclasses.fields(kind))
    if len(names) < 2:  # attrgetter then returns no tuple
        return names, lambda value: tuple(getattr(value, name) for name in names)
    return names, attrgetter(*names)


_SALT: Final = 0x2545F4914F6CDD1D
"""As long as a hash, so that its first digits differ, too."""
_lock = threading.RLock()
_shared: dict[Path, SharedSandbox] = {}


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A file's run, and the number of steps of each call."""

    run: Run
    counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Evaluation:
    run: Run
    identities: list[list[Identity]]
    sandbox: ModuleSandbox


_Outcome = _Evaluation | RefusedFileError


@dataclass
class SharedSandbox:
    """The sandbox that a checkout's files share, and the outcomes verified in two sandboxes."""

    sandbox: ModuleSandbox
    verified: dict[Path, _Evaluation] = field(default_factory=dict)


def evaluate(root: Path, files: Sequence[Path], limit_s: float) -> dict[Path, Evaluated | RefusedFileError]:
    """Run each file below the checkout ``root``; return its outcome, or why it cannot be a DAG.

    Each file runs once per process, until a file of the checkout or an environment variable that was read changes.
    """
    if notes.root is not None:
        raise refuse("it loads Marin's files while it is itself loaded.")
    with _lock, tracked_signals(), preserved_process_state() as for_file:
        logging.disable(max(logging.INFO, logging.root.manager.disable))  # files log their whole configs, twice
        evaluate_file = partial(_evaluate_once, limit_s=limit_s, for_file=for_file)
        shared = _shared.get(root)
        if shared is None or not shared.sandbox.is_fresh():
            shared = _shared[root] = SharedSandbox(ModuleSandbox(root))
        outcomes: dict[Path, _Outcome] = {}
        for file in files:
            outcomes[file] = shared.verified.get(file) or evaluate_file(shared.sandbox, file)
        new = [file for file in files if outcomes[file] is not shared.verified.get(file)]
        others = _PerturbedRuns(root, evaluate_file)
        for file in reversed(new):  # so that effects on shared modules differ, too
            outcome = outcomes[file]
            if isinstance(outcome, _Evaluation):
                outcome = _verify(root, file, outcome, others)
            if isinstance(outcome, _Evaluation):
                shared.verified[file] = outcome
            outcomes[file] = outcome
        if (changed := shared.sandbox.changed_file()) is not None:
            for file in [file for file in new if isinstance(outcomes[file], RefusedFileError)]:
                outcomes[file] = _edited_error(root, file, changed)
        return {file: _summary(outcomes[file]) for file in files}


_Evaluate = Callable[[ModuleSandbox, Path], _Outcome]


def _evaluate_once(sandbox: ModuleSandbox, file: Path, limit_s: float, for_file: ForFile) -> _Outcome:
    root = sandbox.root
    try:
        run = run_file(sandbox, file, limit_s, for_file)
        with guarded(limit_s):  # inspecting values runs methods of their classes
            return _Evaluation(run, check_known(run), sandbox)
    except RefusedFileError as error:
        return error
    except BaseException as error:
        if is_by_signal(error):
            raise
        why = f"it takes more than {limit_s:g} s" if isinstance(error, OutOfTime) else error_message(error)
        if isinstance(error, RecursionError):
            why = "a config contains itself, or nests too deep: write it flatter"
        reason = Reason(place_of_error(root, error), f"its steps cannot be inspected: {why}")
        return refused_file(file.relative_to(root).as_posix(), reason)


def _summary(outcome: _Outcome) -> Evaluated | RefusedFileError:
    if isinstance(outcome, RefusedFileError):
        return outcome
    return Evaluated(outcome.run, tuple(map(len, outcome.identities)))


def _edited_error(root: Path, file: Path, changed: Path) -> RefusedFileError:
    shown = changed.relative_to(root) if changed.is_relative_to(root) else changed
    reason = f"{shown} was changed while it was being loaded: the next parse loads the new version."
    return refused_file(file.relative_to(root).as_posix(), Reason(None, reason))


class _PerturbedRuns:
    """The second evaluations, in shared sandboxes: one per set of absent libraries."""

    def __init__(self, root: Path, evaluate_file: _Evaluate) -> None:
        self._root, self.evaluate_file = root, evaluate_file
        self._sandboxes: dict[frozenset[str], ModuleSandbox] = {}

    def without(self, libraries: frozenset[str], file: Path) -> _Outcome:
        """Return the outcome of ``file`` without these libraries, where files can do without them."""
        if libraries not in self._sandboxes:
            self._sandboxes[libraries] = ModuleSandbox(self._root, _SALT, libraries)
        return self.evaluate_file(self._sandboxes[libraries], file)


def _verify(root: Path, file: Path, first: _Evaluation, others: _PerturbedRuns) -> _Outcome:
    """Return the outcome if two runs agree; run in separate sandboxes if other files may have interfered."""
    if _agree(first, others.without(ANY_LIBRARY, file)):
        return first
    if not _agree(first, others.without(frozenset(), file)):
        alone, again = (others.evaluate_file(ModuleSandbox(root, salt), file) for salt in (0, _SALT))
        if not isinstance(alone, _Evaluation) or not _agree(alone, again):
            return _unstable_error(root, file, alone, again, others.evaluate_file)
        return _without_libraries(alone, lambda names: others.evaluate_file(ModuleSandbox(root, _SALT, names), file))
    return _without_libraries(first, lambda names: others.without(names, file))


def _without_libraries(first: _Evaluation, evaluated: Callable[[frozenset[str]], _Outcome]) -> _Outcome:
    """Return the outcome if it is the same without each optional library and without all of them."""
    optional = first.sandbox.optional
    spared: set[str] = set()
    for each in [*({name} for name in optional), spared]:  # all together last, when the set is known
        without = evaluated(frozenset(each)) if each else first
        if _agree(first, without):
            spared |= each
        elif not isinstance(without, RefusedFileError) or not without.is_own:  # else Marin's runs always had it
            names = " and ".join(sorted(each))
            return refused_file(first.run.file, _undecided(names, optional[min(each)], first, without))
    return first


def _undecided(libraries: str, place: SourceLine | None, alone: _Evaluation, without: _Outcome) -> Reason:
    if isinstance(without, _Evaluation):
        what = first_difference(alone.identities, without.identities)
    else:
        what = f"without it, {without.reason.text if without.reason is not None else without}"
    return Reason(
        place,
        f"without {libraries} installed it makes other steps, and whether Marin had it is not known here: {what}. Keep "
        f"one of the two cases, with or without {libraries}.",
    )


def _agree(first: _Outcome, second: _Outcome) -> bool:
    return (
        isinstance(first, _Evaluation)
        and isinstance(second, _Evaluation)
        and first_difference(first.identities, second.identities) is None
    )


def _unstable_error(
    root: Path, file: Path, first: _Outcome, second: _Outcome, evaluate_file: _Evaluate
) -> RefusedFileError:
    """Explain why two evaluations differ, with the line that reads the clock, chance or a hash."""
    for outcome in (first, second):
        if isinstance(outcome, RefusedFileError):
            return outcome
    assert isinstance(first, _Evaluation) and isinstance(second, _Evaluation)
    difference = first_difference(first.identities, second.identities)
    in_sets = list(walked)
    with clock_reads(root) as reads:
        evaluate_file(ModuleSandbox(root), file)
    places = [*second.sandbox.builtins.hash_places, *reads, *in_sets]
    own = [place for place in places if place.file == first.run.file]
    place = next(iter([*own, *places]), None)
    instead = ", or take it from run_param()" if "another version" in (difference or "") else ""
    return refused_file(
        first.run.file,
        Reason(
            place,
            f"evaluated twice, {difference}: it depends on a clock, on chance, a hash(), the machine or the order of a "
            f"set, so each parse would give another DAG. Replace it by a fixed value{instead}.",
        ),
    )
