"""From a task instance to the output of its step: the ids of an address lead to a path that may be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from airflow.api_fastapi.common.db.common import SessionDep
from fastapi import Depends, HTTPException, Query
from sqlalchemy.orm import Session

from tradewind.plans.plan import BadPlanError, PlannedStep, UnplannedStep
from tradewind.storage import StorageError, UnsupportedStoreError, UnusablePathError
from tradewind.storage.confinement import confined_to
from tradewind.storage.errors import StoreError
from tradewind_ui.api.security import AllowedRoots
from tradewind_ui.api.xcoms import UnreadableXComError, plan_tasks, read_step

NO_PLAN: Final = "This run has no plan, and this task has reported no step."
NO_STEP: Final = "This task is no step of the run's plan."
MAX_READS: Final = 12
"""Requests that read stores at a time. Each takes one of the 40 threads that all routes of Airflow share, and a store
that does not answer keeps it for 20 seconds or more."""
MAX_PLANS: Final = 4
"""Requests that read whole plans at a time: one may take 64 MB."""
_WAIT_S: Final = 10.0
_KEEP_S: Final = 5.0
_MAX_KEPT: Final = 100
MAX_TEXT: Final = 5_000
"""Characters of a text of a plan, longer than any path: any task can write long XComs."""
_kept: dict[TaskIds, tuple[float, PlannedStep | UnplannedStep]] = {}
"""Steps of the last seconds: a page that is open asks several routes at once, and a plan of 1,000 steps is long. Their
texts are cut, so all of them together take 22 MB at most."""


class FewAtOnce:
    """Lets so many requests pass at a time, confined to the allowed roots; others wait for a while."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def __call__(self, roots: AllowedRoots) -> AsyncIterator[None]:
        """Wait until the request may pass.

        Raises:
            HTTPException: 503: no other has ended.
        """
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            busy = "The API server has many such requests, or waits for stores that do not answer. Try again soon."
            raise HTTPException(503, busy, {"Retry-After": "5"}) from None
        try:
            with confined_to(roots):
                yield
        finally:
            self._free.release()


# They end with their route, before the answer is sent: a client that does not read it keeps no other waiting.
READS_STORE: Final = [Depends(FewAtOnce(MAX_READS), scope="function")]
"""For a route in a thread of Airflow's that reads a store; after the guards."""
READS_PLANS: Final = [Depends(FewAtOnce(MAX_PLANS), scope="function")]
"""For a route that reads all plans of a run; after the guards."""


@dataclass(frozen=True)
class TaskIds:
    """Ids of a task instance; ``map_index`` is -1 for a task that is not mapped."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int


def task_ids(
    dag_id: str, task_id: str, run_id: str, map_index: Annotated[int, Query(ge=-1, le=1_000_000_000)] = -1
) -> TaskIds:
    """Return the ids in the address of a route."""
    return TaskIds(dag_id, task_id, run_id, map_index)


Ids = Annotated[TaskIds, Depends(task_ids)]


def find_step(ids: TaskIds, session: Session) -> PlannedStep | UnplannedStep | str:
    """Return the step of a task, without the names of its inputs and with texts of ``MAX_TEXT``; or why there is none.

    Raises:
        HTTPException: 422: its plan or its XCom cannot be read.
    """
    now = time.monotonic()
    kept_at, kept = _kept.get(ids, (0.0, None))
    if kept is not None and now - kept_at < _KEEP_S:
        return kept
    try:
        step = read_step(ids.dag_id, ids.run_id, ids.task_id, ids.map_index, session)
    except (BadPlanError, UnreadableXComError) as error:
        raise HTTPException(422, str(error)) from None
    if step is None:
        return NO_STEP if plan_tasks(ids.dag_id, ids.run_id, session) else NO_PLAN
    session.rollback()  # no transaction stays open while a store is read
    if len(_kept) >= _MAX_KEPT:
        _kept.clear()
    short = _shortened(step)
    _kept[ids] = (now, short)
    return short


def _shortened(step: PlannedStep | UnplannedStep) -> PlannedStep | UnplannedStep:
    texts: dict[str, Any] = {name: value[:MAX_TEXT] for name, value in vars(step).items() if isinstance(value, str)}
    if isinstance(step, PlannedStep):
        texts |= {"inputs": (), "changed_inputs": ()}
    return replace(step, **texts)


def output_path(ids: Ids, session: SessionDep) -> str:
    """Return the output path of a task's step, after the check that it may be read: an XCom can be forged.

    Raises:
        HTTPException: 404: the task has no step; 403: the path is outside the allowed roots.
    """
    step = find_step(ids, session)
    if isinstance(step, str):
        raise HTTPException(404, step)
    with answering_for_stores():
        check_path(step.output_path)
    return step.output_path


OutputPath = Annotated[str, Depends(output_path)]


def check_path(path: str) -> None:
    """Refuse a path outside the allowed roots.

    Raises:
        StorageError: It is, or it is no path.
    """
    from tradewind.deployment.fleet import deployment_roots

    deployment_roots().check(path, "The output path of this step")


@contextmanager
def answering_for_stores() -> Iterator[None]:
    """Translate errors of paths, stores and records to answers.

    Raises:
        HTTPException: 403: a path may not be read; 422: a file is not what it should be; 503: the store does not
            answer.
    """
    try:
        yield
    except (UnusablePathError, UnsupportedStoreError) as error:
        raise HTTPException(403, _printable(error)) from None
    except StoreError as error:
        raise HTTPException(503, _printable(error)) from None
    except (StorageError, ValueError) as error:
        raise HTTPException(422, _printable(error)) from None


def _printable(error: Exception) -> str:
    return str(error).encode(errors="replace").decode()
