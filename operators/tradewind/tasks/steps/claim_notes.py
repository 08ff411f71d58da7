"""Which turns a task claimed, noted in its task state store where its claims do not tell.

A claim names the Airflow that it was made in, its dag, run, task and map index. Airflows without a name can share all
of those on one prefix; what each keeps in its own database they cannot share. So a task of such an Airflow notes the
job of a claim before it makes it, and takes no turn for its own that it has not noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk import Context

from tradewind.turns.start import is_unnamed

NOTE: Final = "claimed"
"""Key of the note in the task state store."""
MOST_NOTED: Final = 10


class ClaimNotes:
    """The claims of one task.

    Args:
        context: The task's.
        by: How the task's claims name it.
    """

    def __init__(self, context: Context, by: Mapping[str, Any]) -> None:
        self._is_needed = is_unnamed(by)
        self._store: Any = context["task_state_store"]

    def jobs(self) -> tuple[str, ...]:
        """The jobs of the last turns that the task claimed, or was about to; none where its claims tell."""
        return tuple(self._store.get(NOTE) or ()) if self._is_needed else ()

    def add(self, job: str) -> None:
        """Note that the turn of ``job`` is the task's, if its claim stands."""
        if self._is_needed:
            self._store.set(NOTE, [*self.jobs(), job][-MOST_NOTED:])
