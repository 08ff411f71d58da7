"""End a trigger that ``airflow dags test`` runs in line, and with it the command, at Ctrl-C and SIGTERM.

``airflow dags test``, ``airflow tasks test`` and ``dag.test()`` run triggers in the process of their user. Airflow
calls neither ``on_kill`` nor ``cleanup`` there. Its handler of SIGTERM, left by the last task, only calls the
``on_kill`` of that task's operator, and does not end the process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from airflow.triggers.base import BaseTrigger

logger = logging.getLogger(__name__)


def waits_in_line() -> bool:
    """Whether the running task is such a one. It should defer even if it is not ``deferrable``.

    Airflow makes a signal to a task that waits by itself an error of this task, and continues with the next one.
    """
    from airflow.sdk.execution_time import task_runner

    return type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms"


@asynccontextmanager
async def ending_in_line(
    trigger: BaseTrigger, outlook: str, stop: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> AsyncIterator[None]:
    """Let Ctrl-C and SIGTERM end the wait in this block if ``trigger`` runs in line; in a triggerer, do nothing.

    Args:
        outlook: What becomes of the job, for the user.
        stop: Stops the job. A second signal interrupts it.
    """
    if trigger.trigger_id is not None:
        yield
        return
    loop, waiting, signals = asyncio.get_running_loop(), asyncio.current_task(), []
    assert waiting is not None

    def terminate() -> None:
        signals.append(signal.SIGTERM)
        waiting.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        logger.warning("Interrupted. %s", outlook)
        try:
            if stop is not None:
                await stop()
        except Exception as error:  # Airflow would continue with the next task
            logger.warning("The job may run on: %s", error)
        finally:
            if signals:
                raise SystemExit(128 + signal.SIGTERM)
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
