"""Files are evaluated, each twice in worlds apart: what differs between the two would differ from parse to parse."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tradewind.marin.evaluation.checks import Identity, check_known, first_difference
from tradewind.marin.evaluation.clocks import clock_reads
from tradewind.marin.evaluation.guards import guarded
from tradewind.marin.evaluation.process_state import ForFile, kept_process
from tradewind.marin.evaluation.running import Run, run_file, told
from tradewind.marin.evaluation.signals import is_by_signal, told_signals
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
from tradewind.marin.world.import_map import ANY_LIBRARY, World
from tradewind.marin.world.second.order import walked

_SALT: Final = 0x2545F4914F6CDD1D
"""As long as a hash, so that its first digits differ, too."""
_lock = threading.RLock()
_shared: dict[Path, SharedWorld] = {}


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A file's run, and how many steps each call has."""

    run: Run
    counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Attempt:
    run: Run
    identities: list[list[Identity]]
    world: World


_Outcome = _Attempt | RefusedFileError


@dataclass
class SharedWorld:
    """The world that the files of a checkout share, and what came of those that are the same in two worlds."""

    world: World
    kept: dict[Path, _Attempt] = field(default_factory=dict)


def evaluate(root: Path, files: Sequence[Path], limit_s: float) -> dict[Path, Evaluated | RefusedFileError]:
    """Run each file below the checkout ``root``; what came of it, or why it cannot be a DAG.

    As long as no file of the checkout changes, and nothing that they read of the environment, each is run once for the
    life of this process.
    """
    if notes.root is not None:
        raise refuse("it loads Marin's files while it is itself loaded.")
    with _lock, told_signals(), kept_process() as for_file:
        logging.disable(max(logging.INFO, logging.root.manager.disable))  # files tell their whole configs, twice
        attempt = partial(_attempt, limit_s=limit_s, for_file=for_file)
        shared = _shared.get(root)
        if shared is None or not shared.world.is_fresh():
            shared = _shared[root] = SharedWorld(World(root))
        outcomes: dict[Path, _Outcome] = {}
        for file in files:
            outcomes[file] = shared.kept.get(file) or attempt(shared.world, file)
        new = [file for file in files if outcomes[file] is not shared.kept.get(file)]
        others = _Others(root, attempt)
        for file in reversed(new):  # so that what one file does to shared modules differs, too
            outcome = outcomes[file]
            if isinstance(outcome, _Attempt):
                outcome = _verified(root, file, outcome, others)
            if isinstance(outcome, _Attempt):
                shared.kept[file] = outcome
            outcomes[file] = outcome
        if (changed := shared.world.changed_file()) is not None:
            for file in [file for file in new if isinstance(outcomes[file], RefusedFileError)]:
                outcomes[file] = _edited(root, file, changed)
        return {file: _evaluated(outcomes[file]) for file in files}


_Attempting = Callable[[World, Path], _Outcome]


def _attempt(world: World, file: Path, limit_s: float, for_file: ForFile) -> _Outcome:
    root = world.root
    try:
        run = run_file(world, file, limit_s, for_file)
        with guarded(limit_s):  # to look at values runs methods of their classes
            return _Attempt(run, check_known(run), world)
    except RefusedFileError as error:
        return error
    except BaseException as error:
        if is_by_signal(error):
            raise
        why = f"it takes more than {limit_s:g} s" if isinstance(error, OutOfTime) else told(error)
        reason = Reason(place_of_error(root, error), f"its steps cannot be looked at: {why}")
        return refused_file(file.relative_to(root).as_posix(), reason)


def _evaluated(outcome: _Outcome) -> Evaluated | RefusedFileError:
    if isinstance(outcome, RefusedFileError):
        return outcome
    return Evaluated(outcome.run, tuple(map(len, outcome.identities)))


def _edited(root: Path, file: Path, changed: Path) -> RefusedFileError:
    shown = changed.relative_to(root) if changed.is_relative_to(root) else changed
    reason = f"{shown} was changed while it was being loaded: the next parse loads it as it is then."
    return refused_file(file.relative_to(root).as_posix(), Reason(None, reason))


class _Others:
    """The second evaluations, in worlds that the files share: one for the same libraries that are not there."""

    def __init__(self, root: Path, attempt: _Attempting) -> None:
        self._root, self.attempt = root, attempt
        self._worlds: dict[frozenset[str], World] = {}

    def without(self, libraries: frozenset[str], file: Path) -> _Outcome:
        """What comes of ``file`` where these are not there, as far as files can do without."""
        if libraries not in self._worlds:
            self._worlds[libraries] = World(self._root, _SALT, libraries)
        return self.attempt(self._worlds[libraries], file)


def _verified(root: Path, file: Path, first: _Attempt, others: _Others) -> _Outcome:
    """The outcome, if it is the same twice; alone in worlds of its own, where other files may have interfered."""
    if _same(first, others.without(ANY_LIBRARY, file)):
        return first
    if not _same(first, others.without(frozenset(), file)):
        alone, again = others.attempt(World(root), file), others.attempt(World(root, _SALT), file)
        if not isinstance(alone, _Attempt) or not _same(alone, again):
            return _unstable(root, file, alone, again, others.attempt)
        return _without_libraries(alone, lambda names: others.attempt(World(root, _SALT, names), file))
    return _without_libraries(first, lambda names: others.without(names, file))


def _without_libraries(first: _Attempt, evaluated: Callable[[frozenset[str]], _Outcome]) -> _Outcome:
    """The outcome, if it is the same without each library that the file can do without, and without all of those."""
    optional = first.world.optional
    spared: set[str] = set()
    for each in [*({name} for name in optional), spared]:  # all of them come last, when it is known which they are
        without = evaluated(frozenset(each)) if each else first
        if _same(first, without):
            spared |= each
        elif not _needs(without):
            names = " and ".join(sorted(each))
            return refused_file(first.run.file, _undecided(names, optional[min(each)], first, without))
    return first


def _needs(without: _Outcome) -> bool:
    """Whether a file comes to nothing without a library: then it was there whenever the file has made anything."""
    return isinstance(without, RefusedFileError) and without.is_own


def _undecided(libraries: str, place: SourceLine | None, alone: _Attempt, without: _Outcome) -> Reason:
    if isinstance(without, _Attempt):
        what = first_difference(alone.identities, without.identities)
    else:
        what = f"without it, {without.reason.text if without.reason is not None else without}"
    return Reason(
        place,
        f"without {libraries} installed it comes to other steps, and what Marin had installed is not known here: "
        f"{what}. Write down the one that is meant, with or without {libraries}.",
    )


def _same(first: _Outcome, second: _Outcome) -> bool:
    return (
        isinstance(first, _Attempt)
        and isinstance(second, _Attempt)
        and first_difference(first.identities, second.identities) is None
    )


def _unstable(root: Path, file: Path, first: _Outcome, second: _Outcome, attempt: _Attempting) -> RefusedFileError:
    """Why two evaluations differ: with the line that reads the clock, chance or a hash."""
    for outcome in (first, second):
        if isinstance(outcome, RefusedFileError):
            return outcome
    assert isinstance(first, _Attempt) and isinstance(second, _Attempt)
    difference = first_difference(first.identities, second.identities)
    in_sets = list(walked)
    with clock_reads(root) as reads:
        attempt(World(root), file)
    places = [*second.world.builtins.hash_places, *reads, *in_sets]
    own = [place for place in places if place.file == first.run.file]
    place = next(iter([*own, *places]), None)
    instead = ", or take it from run_param()" if "another version" in (difference or "") else ""
    return refused_file(
        first.run.file,
        Reason(
            place,
            f"evaluated twice, {difference}: a clock, chance or a hash() is in it, or what the machine is or the order "
            f"of a set, and its DAG would be another one at every parse. Write the value down{instead}.",
        ),
    )
