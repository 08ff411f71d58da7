"""Runs that have no result, for people: in an error, and on the page that shows the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.one_line import in_a_line
from tradewind.text_table import markdown_text

MOST_NAMED: Final = 10
LONGEST_REASON: Final = 200
"""Characters."""


class MissingRunsError(RuntimeError):
    """Some of the runs that were to be read together have no result."""


@dataclass(frozen=True)
class MissingRun:
    """A run that has no result, and why."""

    label: str
    reason: str


def without_number(label: str, results: Mapping[str, Any], name: str) -> MissingRun:
    """A run that ended, but not with a number of this name."""
    known = ", ".join(list(results)[:MOST_NAMED]) or "no numbers"
    return MissingRun(label, f"returned no {name!r}, but {known}")


def missing_runs(total: int, missing: Sequence[MissingRun], done: str) -> MissingRunsError:
    """The error that names them; ``done`` is a sentence on what was done with the others."""
    named = "; ".join(f"{run.label} ({_one_line(run.reason)})" for run in missing[:MOST_NAMED])
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return MissingRunsError(f"{len(missing)} of {total} runs have no result: {named}{more}. {done}".rstrip())


def without_result(missing: Sequence[MissingRun]) -> list[str]:
    """The section of a page in Markdown that names them, if there are any."""
    lines = "\n".join(f"- {markdown_text(f'{run.label}: {_one_line(run.reason)}')}" for run in missing)
    return [f"## Without a result\n\n{lines}"] if missing else []


def _one_line(text: str) -> str:
    return in_a_line(text, LONGEST_REASON)
