"""What a person asks of one run: which steps to look at and which to make again. It never counts in a version.

Steps are named by regular expressions, searched for anywhere in the step's name, as Marin's executor does, but in
linear time (``linear_regex``), since whoever triggers a run writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tradewind.plans.linear_regex import RegexError, linear_regex
from tradewind.steps import ExperimentError, shortened

MOST_REGEXES = 1000
_LONGEST_REGEXES = 20_000


class SelectionError(ExperimentError):
    """A run's selection cannot be understood."""


@dataclass(frozen=True)
class Selection:
    """What runs, beyond what must.

    Attributes:
        run_only: Run these steps, and of their inputs those that are not finished; everything, if none is given.
        force: Make these steps again, also where they are finished. Their finished inputs are reused all the same.
        force_downstream: Make again, too, what reads the output of a forced step, at any depth.
        force_run_failed: Run steps again that failed in an earlier run; otherwise they are BLOCKED.

    Raises:
        SelectionError: One of the expressions is not a regular expression, or none that linear time suffices for.
    """

    run_only: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    force_downstream: bool = False
    force_run_failed: bool = True

    def __post_init__(self) -> None:
        for param in ("run_only", "force"):
            object.__setattr__(self, param, _checked(param, getattr(self, param)))


@dataclass(frozen=True)
class Matches:
    """What expressions found.

    Attributes:
        names: The step names that at least one of them matches.
        unused: Those expressions that match no name.
    """

    names: frozenset[str]
    unused: tuple[str, ...]


def find_matches(regexes: Sequence[str], names: Iterable[str]) -> Matches:
    """Search every name for every expression."""
    distinct = set(names)
    found = {regex: {name for name in distinct if linear_regex(regex).search(name)} for regex in regexes}
    unused = tuple(regex for regex, matched in found.items() if not matched)
    return Matches(frozenset().union(*found.values()), unused)


def _checked(param: str, regexes: object) -> tuple[str, ...]:
    if not isinstance(regexes, (list, tuple)) or not all(isinstance(regex, str) for regex in regexes):
        raise SelectionError(
            f'{param} must be a list of regular expressions such as ["^train/"], but is {shortened(regexes)}.'
        )
    if len(regexes) > MOST_REGEXES or sum(map(len, regexes)) > _LONGEST_REGEXES:
        raise SelectionError(
            f"{param} holds {len(regexes)} regular expressions: give {MOST_REGEXES} at most, of {_LONGEST_REGEXES} "
            "characters together; one can find many steps."
        )
    for regex in regexes:
        try:
            linear_regex(regex)
        except RegexError as error:
            raise SelectionError(f"{param}: {shortened(regex)} {error}.") from None
    return tuple(regexes)
