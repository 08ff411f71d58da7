"""One step of a run: its version, config, attempts, curves and results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import State
from fastapi import APIRouter, HTTPException, Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from tradewind.datasets.stored_progress import PipelineProgress, progress_path, read_progress
from tradewind.evaluation.results import RECORD_FILE, read_record
from tradewind.evaluation.summary import ScoreTable, score_table
from tradewind.links.ray import RayJobLink, RayLogLink
from tradewind.plans.plan import PlannedStep, UnplannedStep
from tradewind.plans.stored_versions import (
    StepConfig,
    StepResult,
    StoredVersionList,
    VersionDifference,
    compare_stored_versions,
    list_versions,
    path_of_version,
    read_step_config,
    read_step_result,
    result_path,
)
from tradewind.recipes.metrics.curves import MAX_CURVES, Curves, metrics_path, read_curves
from tradewind.recipes.metrics.tracker_links import TrackerLink, tracker_links
from tradewind.records.producers import TaskOfRun, task_of
from tradewind.records.record import Record, RecordState
from tradewind.records.record import read_record as read_output_record
from tradewind.storage import StorageError
from tradewind.storage.files import existing_many
from tradewind.tasks.attempt_history import AttemptHistory, read_attempt_history
from tradewind.text import format_producer
from tradewind_ui.api.json_response import JsonResponse
from tradewind_ui.api.security import READS_LOGS, READS_RUN
from tradewind_ui.api.step_outputs import (
    MAX_TEXT,
    READS_STORE,
    Ids,
    OutputPath,
    TaskIds,
    answering_for_stores,
    check_path,
    find_step,
)
from tradewind_ui.api.xcoms import UnreadableXComError, read_xcom

router = APIRouter(prefix="/steps", dependencies=READS_RUN + READS_STORE)

_LINKS: Final = (RayJobLink, RayLogLink)
_MAX_URL: Final = 2_000
_TASK: Final = "{dag_id}/{task_id}/{run_id:path}"
Hash = Annotated[str, Query(pattern="^[0-9a-f]{6}$")]


@dataclass(frozen=True)
class StepLink:
    """A link to another system, whose address the task has stored."""

    name: str
    url: str


@dataclass(frozen=True)
class StepAbout:
    """What a page needs before it asks for more.

    Attributes:
        why_empty: Why there is no step; the other fields are empty then.
        decision: The plan's; None outside a plan.
        producer: The run or script that made or makes the output.
        made_by: The task that did; None outside Airflow.
        is_by_other_run: The producer is another run than this one.
        state: State of the output; None if the store does not say.
        written_at: When its lease was last written, in seconds since 1970.
        task_state: State of the task in Airflow.
        is_active: Something may change soon: the page asks again.
        shows: Which results the output has: ``result``, ``metrics``, ``progress``, ``evaluation``.
        problem: Why the store's part is missing.
    """

    why_empty: str | None = None
    name: str = ""
    hash: str = ""
    output_path: str = ""
    decision: str | None = None
    reason: str | None = None
    producer: str | None = None
    made_by: TaskOfRun | None = None
    is_by_other_run: bool = False
    estimate: str | None = None
    place: str | None = None
    is_forced: bool = False
    state: RecordState | None = None
    attempt: int = 0
    written_at: float | None = None
    task_state: str | None = None
    is_active: bool = False
    shows: tuple[str, ...] = ()
    links: tuple[StepLink, ...] = ()
    problem: str | None = None


@router.get(f"/about/{_TASK}", response_model=StepAbout)
def about_step(ids: Ids, session: SessionDep) -> Response:
    """Return what is known of a task's step, also if its store does not answer."""
    step = find_step(ids, session)
    task_state = _task_state(ids, session)
    if isinstance(step, str):
        return JsonResponse(StepAbout(why_empty=step, task_state=task_state))
    links = tuple(_links(ids, session))
    session.rollback()  # no transaction stays open while the store is read
    fields: dict[str, Any] = {**_planned(step), "task_state": task_state, "links": links}
    is_waited_for = task_state is not None and task_state not in State.finished
    try:
        check_path(step.output_path)
        record = read_output_record(step.output_path)
        fields |= {**_recorded(record, ids), "shows": _shown(step.output_path)}
        fields["is_active"] = is_waited_for or record.state is RecordState.AT_WORK
    except StorageError as error:
        fields |= {"problem": str(error)[:MAX_TEXT], "is_active": is_waited_for}
    return JsonResponse(StepAbout(**fields))


@dataclass(frozen=True)
class ConfigOfStep:
    """The config of a step, and the trackers that it names."""

    config: StepConfig
    trackers: tuple[TrackerLink, ...]


@router.get(f"/config/{_TASK}", response_model=ConfigOfStep)
def config_of_step(path: OutputPath) -> Response:
    """Return the config of a step as the lines of a tree, and its inputs."""
    from tradewind.deployment.fleet import deployment_roots

    with answering_for_stores():
        config = read_step_config(path, deployment_roots())
        return JsonResponse(ConfigOfStep(config, tracker_links(config, path)))


@router.get(f"/attempts/{_TASK}", response_model=AttemptHistory, dependencies=READS_LOGS)
def attempts_of_step(path: OutputPath) -> Response:
    """Return the newest attempts at a step's output, each as intervals and events."""
    with answering_for_stores():
        return JsonResponse(read_attempt_history(path, read_output_record(path), time.time()))


@router.get(f"/metrics/{_TASK}", response_model=Curves | None)
def metrics_of_step(
    path: OutputPath,
    name: Annotated[list[str] | None, Query(max_length=MAX_CURVES)] = None,
    after: Annotated[str, Query(max_length=30)] = "",
    version: Hash | None = None,
) -> Response:
    """Return curves of the metrics of a step, or of another version of it.

    Args:
        name: Only these metrics; repeat the parameter.
        after: ``place`` of the answer before: only rows after it.
        version: Hash of another version of the same step.
    """
    with answering_for_stores():
        return JsonResponse(read_curves(metrics_path(_version_path(path, version)), name or (), after))


@router.get(f"/progress/{_TASK}", response_model=PipelineProgress | None, dependencies=READS_LOGS)
def progress_of_step(path: OutputPath) -> Response:
    """Return how far the pipeline of a data step is, with the rows that failed; null without one."""
    with answering_for_stores():
        return JsonResponse(read_progress(path))


@router.get(f"/evaluation/{_TASK}", response_model=ScoreTable)
def evaluation_of_step(path: OutputPath) -> Response:
    """Return the scores of an evaluation.

    Raises:
        HTTPException: 422: the output is no evaluation.
    """
    with answering_for_stores():
        return JsonResponse(score_table(path, read_record(path)))


@router.get(f"/result/{_TASK}", response_model=StepResult | None, dependencies=READS_LOGS)
def result_of_step(path: OutputPath) -> Response:
    """Return what the step's function returned; null if that is nothing."""
    with answering_for_stores():
        return JsonResponse(read_step_result(path))


@router.get(f"/versions/{_TASK}", response_model=StoredVersionList)
def versions_of_step(path: OutputPath) -> Response:
    """Return the versions of a step that are beside its output, the newest first."""
    with answering_for_stores():
        return JsonResponse(list_versions(path))


@router.get(f"/difference/{_TASK}", response_model=VersionDifference)
def difference_of_versions(path: OutputPath, old: Hash, new: Hash) -> Response:
    """Return in what two versions of a step differ."""
    from tradewind.deployment.fleet import deployment_roots

    with answering_for_stores():
        before, after = _version_path(path, old), _version_path(path, new)
        return JsonResponse(compare_stored_versions(before, after, deployment_roots()))


def _version_path(path: str, version: str | None) -> str:
    """Return the output path of a version of the step whose output is ``path``, after the check that it may be read."""
    if version is None:
        return path
    other = path_of_version(path, version)
    if other is None:
        raise HTTPException(422, "The step sets its own output path, so no other version is beside it.")
    check_path(other)
    return other


def _planned(step: PlannedStep | UnplannedStep) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": step.name, "hash": step.hash, "output_path": step.output_path}
    if isinstance(step, PlannedStep):
        texts = ("reason", "producer", "estimate", "place")
        fields |= {"decision": step.decision.value, "is_forced": step.is_forced}
        fields |= {name: getattr(step, name) for name in texts}
    return fields


def _recorded(record: Record, ids: TaskIds) -> dict[str, Any]:
    lease = record.lease
    if lease is None:
        return {"state": record.state}
    if lease.flaw is not None:
        return {"state": record.state, "problem": lease.why_unreadable[:MAX_TEXT]}
    fields = {"state": record.state, "attempt": lease.attempt, "written_at": lease.timestamp or None}
    producer = format_producer(lease.by)[:MAX_TEXT]
    if not producer:
        return fields
    made_by = task_of(lease.by)
    is_by_other_run = made_by is None or (made_by.dag, made_by.run) != (ids.dag_id, ids.run_id)
    return {**fields, "producer": producer, "made_by": made_by, "is_by_other_run": is_by_other_run}


def _shown(path: str) -> tuple[str, ...]:
    files = {
        "result": result_path(path),
        "metrics": metrics_path(path),
        "progress": progress_path(path),
        "evaluation": f"{path.rstrip('/')}/{RECORD_FILE}",
    }
    existing = existing_many(files.values())
    return tuple(name for name, file in files.items() if file in existing)


def _links(ids: TaskIds, session: Session) -> Iterator[StepLink]:
    """Yield the links that the task has stored, if they lead to web pages: an XCom can be forged."""
    for link in _LINKS:
        try:
            key = link().xcom_key
            url = read_xcom(ids.dag_id, ids.run_id, ids.task_id, key, session, ids.map_index)
            url = str(url).strip().strip('"')
            parts = urlsplit(url)
        except (UnreadableXComError, ValueError):
            continue
        if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and len(url) <= _MAX_URL:
            yield StepLink(link.name, url)


def _task_state(ids: TaskIds, session: Session) -> str | None:
    row = (
        TaskInstance.dag_id == ids.dag_id,
        TaskInstance.run_id == ids.run_id,
        TaskInstance.task_id == ids.task_id,
        TaskInstance.map_index == ids.map_index,
    )
    return session.scalar(select(TaskInstance.state).where(*row))
