"""``airflow api-server`` that goes on answering while somebody else writes to its SQLite.

Airflow 3.3 writes its audit log on the event loop. SQLite has one writer at a time: while the request of a task is that
one, its commit waits for its turn on the loop, which waits for the database. For a minute nothing is answered; then the
audit log gives up, and who has triggered a run is told of a "Database error". Here a thread writes it, an entry at a
time.

Run as ``python -m tradewind.rehearsal.local.airflow_server api-server``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

LogAction = Callable[..., Coroutine[Any, Any, None]]


class _Entries(list[Any]):
    """What Airflow takes for its session, which keeps what is to be written."""

    add = list.append

    def commit(self) -> None:
        """Later, in a thread."""


def in_threads(action_logging: Callable[[str | None], LogAction]) -> Callable[[str | None], LogAction]:
    """Airflow's ``action_logging``, whose dependencies of FastAPI write without holding up the event loop."""
    import anyio

    one_at_a_time = anyio.CapacityLimiter(1)  # more would take from requests the connections that those need to go on

    def logging_of(event: str | None = None) -> LogAction:
        log_action = action_logging(event)

        @wraps(log_action)  # by it FastAPI knows what to hand over
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
    """What ``airflow`` would do with this command line."""
    from airflow.__main__ import main as airflow
    from airflow.api_fastapi.logging import decorators

    decorators.action_logging = in_threads(decorators.action_logging)  # type: ignore[assignment]
    airflow()


if __name__ == "__main__":
    main()
