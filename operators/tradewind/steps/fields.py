"""Types of config fields, checked when the config is made, so that an error shows before any step runs.

Placeholders pass and are checked once they are values: a run value when the plan fills it in, a lazy object on the
cluster. For a versioned value, its content is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from tradewind.steps.amounts import MAX_AMOUNT
from tradewind.steps.placeholders import InputName, Lazy, MirroredValue, OutputName, VersionedValue
from tradewind.steps.run_values import RunPath, RunValue, RunValueText
from tradewind.steps.step import ExecutorStep
from tradewind.text import truncated_repr

_KNOWN_LATER: Final = (RunPath, RunValue, RunValueText, Lazy)
_KNOWN_AS_PATHS: Final = (ExecutorStep, InputName, OutputName, MirroredValue)


@dataclass(frozen=True)
class FieldRule:
    """A rule for a field's values.

    Attributes:
        wanted: The rule in words.
        fits: Whether a value satisfies the rule.
        references: Placeholders accepted until the config is filled in.
    """

    wanted: str
    fits: Callable[[Any], bool]
    references: tuple[type, ...] = ()

    def or_none(self) -> FieldRule:
        """Return the same rule for a field that may be None."""
        return replace(self, wanted=f"{self.wanted}, or None", fits=lambda value: value is None or self.fits(value))

    def check(self, field: str, given: Any) -> None:
        """Refuse a value that breaks the rule.

        Raises:
            ValueError: The value breaks the rule; the message begins with the field and its value.
        """
        value = given.value if isinstance(given, VersionedValue) else given
        if not isinstance(value, (*_KNOWN_LATER, *self.references)) and not self.fits(value):
            raise ValueError(f"{field}={truncated_repr(value)}: give {self.wanted}.")


def check_fields(config: Any, /, **rules: FieldRule) -> None:
    """Check the named fields of ``config``, in the order of ``rules``.

    Raises:
        ValueError: A value breaks its rule.
    """
    for field, rule in rules.items():
        rule.check(field, getattr(config, field))


def integer(minimum: int = -MAX_AMOUNT) -> FieldRule:
    """Rule: a whole number of at most 64 bits."""
    bound = "" if minimum == -MAX_AMOUNT else f" of at least {minimum}"
    return FieldRule(f"a whole number{bound}", lambda value: _is_number(value, int) and minimum <= value <= MAX_AMOUNT)


def number(*, above: float | None = None, minimum: float = -MAX_AMOUNT, below: float | None = None) -> FieldRule:
    """Rule: a finite number within bounds; ``above`` and ``below`` are exclusive."""
    bounds = [f"above {above:g}"] if above is not None else [f"of at least {minimum:g}"]
    bounds += [f"below {below:g}"] if below is not None else []

    def fits(value: Any) -> bool:
        return (
            _is_number(value, (int, float))
            and minimum <= value <= MAX_AMOUNT  # NaN fails too
            and (above is None or value > above)
            and (below is None or value < below)
        )

    return FieldRule(f"a number {' and '.join(bounds)}", fits)


def one_of(values: Collection[str]) -> FieldRule:
    """Rule: one of these texts."""
    return FieldRule(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


def instance(wanted: str, kind: type) -> FieldRule:
    """Rule: an object of this class; ``wanted`` describes it in words."""
    return FieldRule(wanted, lambda value: isinstance(value, kind))


PATH: Final = FieldRule(
    "a step, a path inside one, or another path",
    lambda value: isinstance(value, (str, PurePath)) and value != "",
    _KNOWN_AS_PATHS,
)
TEXT: Final = instance("a text", str)
SOME_TEXT: Final = FieldRule("a text of at least one character", lambda value: isinstance(value, str) and value != "")
TEXTS: Final = FieldRule(
    "a list of texts",
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, (str, RunValue)) for each in value),
)
FLAG: Final = instance("True or False", bool)


def _is_number(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
