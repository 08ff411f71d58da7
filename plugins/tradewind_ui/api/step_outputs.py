"""From a task instance to the output of its step: the ids of an address lead to a path that may be read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Final

from airflow.api_fastapi.common.db.common import SessionDep
from fastapi import Depends, HTTPException, Query, Response
from sqlalchemy.orm import Session

from tradewind.plans.plan import BadPlanError, PlannedStep, UnplannedStep
from tradewind.storage import StorageError, UnsupportedStoreError, UnusablePathError
from tradewind.storage.confinement import confined_to
from tradewind.storage.errors import StoreError
from tradewind_ui.api.security import AllowedRoots
from tradewind_ui.api.xcoms import UnreadableXComError, plan_tasks, read_step

NO_PLAN: Final = "This run has no plan yet, and this task has not reported its step."
NO_STEP: Final = "This task is no step of the run's plan."
MAX_READS: Final = 12
"""Requests that read stores at a time. Each takes one of the 40 threads that all routes of Airflow share, and a store
that does not answer keeps it for 20 seconds or more."""
_WAIT_S: Final = 10.0
_reads = asyncio.Semaphore(MAX_READS)
_KEEP_S: Final = 5.0
_MAX_KEPT: Final = 100
MAX_TEXT: Final = 5_000
"""Characters of a text of a plan, longer than any path: any task can write long XComs."""
_kept: dict[TaskIds, tuple[float, PlannedStep | UnplannedStep]] = {}
"""Steps of the last seconds: a page that is open asks several routes at once, and a plan of 1,000 steps is long. Their
texts are cut, so all of them together take 22 MB at most."""


async def few_at_once(roots: AllowedRoots) -> AsyncIterator[None]:
    """Let ``MAX_READS`` requests pass at a time, confined to the allowed roots; others wait for a while.

    Raises:
        HTTPException: 503: no other has ended.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            await _reads.acquire()
    except TimeoutError:
        busy = "The API server waits for stores that do not answer. Try again in a moment."
        raise HTTPException(503, busy, {"Retry-After": "5"}) from None
    try:
        with confined_to(roots):
            yield
    finally:
        _reads.release()


READS_STORE: Final = [Depends(few_at_once)]
"""For a route in a thread of Airflow's that reads a store; after the guards."""


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


def json_response(value: object) -> Response:
    """Return a dataclass, or None, as JSON. Half a surrogate pair, which UTF-8 cannot encode, is escaped."""
    text = json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"))
    return Response(text, media_type="application/json")


def _plain(value: object) -> Any:
    return value.value if isinstance(value, Enum) else vars(value)


def _printable(error: Exception) -> str:
    return str(error).encode(errors="replace").decode()
