"""``airflow api-server`` that keeps answering while another process writes to its SQLite database.

Airflow 3.3 writes its audit log on the event loop. SQLite has one writer at a time. While a task's request is that
writer, its commit must run on the loop, which waits for the database. The server answers no request for a minute. Then
the audit log gives up, and the user who triggered a run gets a "Database error". Here a thread writes the log, an entry
at a time.

Run as ``python -m tradewind.rehearsal.local.airflow_server api-server``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

LogAction = Callable[..., Coroutine[Any, Any, None]]


class _Entries(list[Any]):
    """Replaces Airflow's session and collects the entries to write."""

    add = list.append

    def commit(self) -> None:
        """Defer the commit to a thread."""


def in_threads(action_logging: Callable[[str | None], LogAction]) -> Callable[[str | None], LogAction]:
    """Wrap Airflow's ``action_logging``: its FastAPI dependencies write without blocking the event loop."""
    import anyio

    one_at_a_time = anyio.CapacityLimiter(1)  # more would take connections that requests need to finish

    def logging_of(event: str | None = None) -> LogAction:
        log_action = action_logging(event)

        @wraps(log_action)  # FastAPI reads the signature from it
        async def log_in_thread(request: Any, session: Any, user: Any) -> None:
            entries = _Entries()
            await log_action(request, entries, user)
            await anyio.to_thread.run_sync(_write, session, entries, limiter=one_at_a_time)

        return log_in_thread

    return logging_of


def _write(session: Any, entries: _Entries) -> None:
    session.add_all(entries)
    session.commit()


def main() -> None:
    """Run the ``airflow`` command with this command line."""
    from airflow.__main__ import main as airflow
    from airflow.api_fastapi.logging import decorators

    decorators.action_logging = in_threads(decorators.action_logging)  # type: ignore[assignment]
    airflow()


if __name__ == "__main__":
    main()
