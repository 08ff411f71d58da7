"""Follow a job to its ending and classify it: a kind for retry decisions, a sentence for users.

Ray's messages decide, and where they leave it open, whether the node is still alive. When neither decides, the ending
counts as no user error: a user error ends a task for good, every other ending allows another attempt. A followed job is
stopped only after its deadline.

Deliberately not detected: a driver that fails for a reason of its own *after* it has caught the death of an actor. Only
the exception that ended the driver counts, and only if the node that it names is really gone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from tradewind.ray_jobs.demand import Demand, explain_pending_job
from tradewind.ray_jobs.details import NODE_GONE, JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayJobsError
from tradewind.ray_jobs.nodes import NodeInfo, fetch_nodes
from tradewind.timeouts import within

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.ray_jobs.follow.follow import ReloadConnection
    from tradewind.ray_jobs.follow.log_lines import JobLog


_FIRST_LINE = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(\(\w+\))?(: |$)")
_RAY_EXCEPTION = "ray.exceptions."


def last_traceback(lines: Sequence[str]) -> str | None:
    """Return the last Python traceback at the start of a line; those of tasks have Ray's prefix."""
    starts = [number for number, line in enumerate(lines) if line.rstrip() == _FIRST_LINE]
    if not starts:
        return None
    found = list(lines[starts[-1] :])
    end = next((number for number, line in enumerate(found) if number and line and not line[0].isspace()), None)
    if end is None:
        return "\n".join(found)
    if not found[end].startswith(_RAY_EXCEPTION):  # Ray's exceptions continue in further lines, to the end of the log
        rest = found[end + 1 :]
        found = found[: end + 1 + next((n for n, line in enumerate(rest) if not line[:1].isspace()), len(rest))]
    return "\n".join(found).rstrip()


def last_exception(lines: Sequence[str], longest: int = 300) -> str | None:
    """Return the first line of the exception that :func:`last_traceback` ends with."""
    traceback = last_traceback(lines)
    if traceback is None:
        return None
    named = [line for line in traceback.splitlines()[1:] if _EXCEPTION.match(line)]
    return named[0][:longest] if named else None


_MAX_LAST_LINES = 50
SETTLE_S = 20.0
"""How long a dead node can appear alive: Ray first misses heartbeats for about 17 s."""
_SETTLE_STEP_S = 2.0
_SIGNALS = {9: "SIGKILL", 15: "SIGTERM"}
_NODE_GONE = ("its node has died", "node was preempted", "node was terminated", "The node has died")
_REMOTE_DEATHS = re.compile(
    r"(?:ray\.exceptions\.)?(?:RayTaskError\()?"
    r"(?:ActorDiedError|ActorUnavailableError|NodeDiedError|ObjectLostError|OwnerDiedError|WorkerCrashedError"
    r"|LocalRayletDiedError)\b"
)
_NODE_ID = re.compile(r"Node Id: ([0-9a-f]{56})")
_UNAVAILABLE_ACTOR = re.compile(r"ActorUnavailableError.{0,2000}?\bactor ([0-9a-f]{32}) is unavailable", re.DOTALL)


class EndingKind(Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    """Its entrypoint ended with 0."""
    USER_ERROR = "user_error"
    """Its entrypoint failed by itself; a retry would fail as well."""
    RUNTIME_ENV = "runtime_env"
    """Its environment could not be built; the entrypoint never ran."""
    INFEASIBLE = "infeasible"
    """No node of the cluster could ever run it."""
    PREEMPTED = "preempted"
    """The node of the job or of its work is gone: the next attempt may continue."""
    HEAD_LOST = "head_lost"
    """The head forgot it, or was restarted during it; parts of it may still run."""
    STOPPED = "stopped"
    """A user or another process stopped it."""
    TIMED_OUT = "timed_out"
    """It exceeded its caller's time limit, and the caller stopped it."""
    QUEUE_TIMED_OUT = "queue_timed_out"
    """It waited too long for its resources; it never ran."""
    NOT_STARTED = "not_started"
    """Ray gave it up before its start; it never ran. Queueing is no failure: it can be queued again."""
    START_FAILED = "start_failed"
    """Ray could not start its supervisor, or lost it on a live node: a loss, worth another attempt."""
    UNKNOWN = "unknown"
    """Ray's message is unknown; worth another attempt."""


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        kind: Category, for decisions.
        sentence: Cause, job, and next step.
        exit_code: Exit code of the entrypoint, if it exited by itself.
        traceback: The last Python traceback in the last lines.
        last_lines: Of the job's log, or of Ray's message if there is no log.
    """

    kind: EndingKind
    sentence: str
    exit_code: int | None = None
    traceback: str | None = None
    last_lines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; ``from_json`` reads it."""
        return asdict(self) | {"kind": self.kind.value, "last_lines": list(self.last_lines)}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Ending:
        """Return the ending that ``to_json`` wrote."""
        return Ending(
            EndingKind(fields["kind"]),
            fields["sentence"],
            fields.get("exit_code"),
            fields.get("traceback"),
            tuple(fields.get("last_lines") or ()),
        )


def classify(
    job: str, details: JobDetails | None, last_lines: Sequence[str] = (), node: NodeInfo | None = None
) -> Ending:
    """Classify how ``job`` ended.

    Args:
        job: Its ID.
        details: Ray's state of it; None if Ray does not know it although it was submitted.
        last_lines: The end of its log; if empty, Ray's message replaces it.
        node: The node that :func:`node_in_question` names, if known.
    """
    lines = list(last_lines) or (details.message.splitlines() if details else [])
    kind, sentence = _judge(f"Ray job {job!r}", details, lines, node)
    return Ending(
        kind,
        sentence,
        details.exit_code if details else None,
        None if kind is EndingKind.SUCCEEDED else last_traceback(lines),
        tuple(lines[-_MAX_LAST_LINES:]),
    )


async def judge_ending(
    api: JobsApi,
    job: str,
    details: JobDetails | None,
    last_lines: Sequence[str] = (),
    *,
    settle_s: float = SETTLE_S,
) -> Ending:
    """Classify how ``job`` ended, and query its node if that matters; an outage does not prevent it.

    A killed entrypoint, or one with an unresponsive actor, may have lost a node before the head noticed. Then the call
    waits for up to ``settle_s``.
    """
    wanted = node_in_question(details, last_lines)
    if wanted is None or details is None:
        return classify(job, details, last_lines)
    actor = _unresponsive_actor(list(last_lines) or details.message.splitlines())
    if actor is not None:
        wanted = await _node_of_actor(api, actor) or wanted
    node = await _node(api, wanted)
    deadline = asyncio.get_running_loop().time() + settle_s
    while (actor or _killed_by(details.exit_code)) and node and node.is_alive and not node.is_head:
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(_SETTLE_STEP_S)
        node = await _node(api, wanted)
    return classify(job, details, last_lines, node)


def node_in_question(details: JobDetails | None, last_lines: Sequence[str] = ()) -> str | None:
    """Return the ID of the decisive node: the job's own, or the one that its last exception names."""
    if details is None or details.status != "FAILED":
        return None
    if details.error_type == "JOB_ENTRYPOINT_COMMAND_ERROR":
        death = _remote_death(list(last_lines) or details.message.splitlines())
        if death and (named := _NODE_ID.search(death)):
            return named[1]
    return details.node_id


async def _node(api: JobsApi, node_id: str) -> NodeInfo | None:
    try:
        return next((node for node in await fetch_nodes(api) if node.node_id == node_id), None)
    except (RayJobsError, KeyError, TypeError):  # outage, or another Ray with another response
        return None


async def _node_of_actor(api: JobsApi, actor: str) -> str | None:
    wanted = {"filter_keys": "actor_id", "filter_predicates": "=", "filter_values": actor, "detail": "true"}
    try:
        answer = await api.get_json("/api/v0/actors", wanted)
        return str(answer["data"]["result"]["result"][0]["node_id"])
    except (RayJobsError, KeyError, TypeError, IndexError):
        return None


_Judged = tuple[EndingKind, str]


def _judge(job: str, details: JobDetails | None, lines: Sequence[str], node: NodeInfo | None) -> _Judged:
    if details is None:
        return EndingKind.HEAD_LOST, f"{job} is unknown to its cluster: the head lost its memory. Submit it again."
    if details.status == "SUCCEEDED":
        return EndingKind.SUCCEEDED, f"{job} succeeded."
    if details.status == "STOPPED":
        return EndingKind.STOPPED, f"{job} was stopped: submit it again if that was not intended."
    if details.status != "FAILED":
        return EndingKind.UNKNOWN, f"{job} has not ended: Ray says {details.status}."
    error_type = details.error_type or ""
    if error_type in _NEVER_RAN:
        kind, sentence = _NEVER_RAN[error_type]
        return kind, sentence.format(job=job, reason=_last(details.message))
    return _JUDGES.get(error_type, _of_unknown_error)(job, details, lines, node)


def _of_entrypoint(job: str, details: JobDetails, lines: Sequence[str], node: NodeInfo | None) -> _Judged:
    code = details.exit_code
    gone = node is not None and not node.is_alive and not node.is_head
    death = _remote_death(lines)
    if (death and node is None) or (gone and (death or _unresponsive_actor(lines))):
        reason = _why(node, death or "")
        return EndingKind.PREEMPTED, f"{job} lost the node that its work ran on ({reason}): {_TRY_AGAIN}."
    if (signal := _killed_by(code)) and gone:
        return EndingKind.PREEMPTED, f"{job} was ended with its node ({_why(node, '')}): {_TRY_AGAIN}."
    if signal == "SIGKILL":
        advice = "most often because memory ran out: request more, or use less"
        return EndingKind.USER_ERROR, f"{job} was killed by SIGKILL (exit code {code}), {advice}."
    if signal:
        advice = "by another process of its node: find the cause there"
        return EndingKind.USER_ERROR, f"{job} was ended by {signal} (exit code {code}), {advice}."
    if code == 127:
        return EndingKind.USER_ERROR, f"{job} failed with exit code 127: its command is not on the cluster's PATH."
    error = last_exception(lines)
    cause = f" ({error})" if error else ""
    return EndingKind.USER_ERROR, f"{job} failed with exit code {code}{cause}: correct what it runs, then run it again."


def _of_dead_supervisor(job: str, details: JobDetails, lines: Sequence[str], node: NodeInfo | None) -> _Judged:
    message = details.message
    if "killed by `ray.kill`" in message:
        return EndingKind.STOPPED, f"{job} was stopped before it ran: submit it again if that was not intended."
    said_gone = any(words in message for words in _NODE_GONE)
    if not said_gone and (node is None or node.is_alive):
        return EndingKind.START_FAILED, f"{job} lost its supervisor process, perhaps to a lack of memory: {_TRY_AGAIN}."
    if node is not None and node.is_head:
        return EndingKind.HEAD_LOST, f"{job} ran on the cluster's head, which is gone: {_TRY_AGAIN}."
    return EndingKind.PREEMPTED, f"{job} lost the node that it ran on ({_why(node, message)}): {_TRY_AGAIN}."


def _of_failed_start(job: str, details: JobDetails, lines: Sequence[str], node: NodeInfo | None) -> _Judged:
    if "failed to get job supervisor" in details.message:  # a restarted head remembers the job, but not its actor
        return EndingKind.HEAD_LOST, f"{job} was running while its cluster's head was started again: {_TRY_AGAIN}."
    return EndingKind.START_FAILED, f"{job} could not be started by Ray ({_last(details.message)}): {_TRY_AGAIN}."


def _of_unknown_error(job: str, details: JobDetails, lines: Sequence[str], node: NodeInfo | None) -> _Judged:
    if node is not None and not node.is_alive:
        return _of_dead_supervisor(job, details, lines, node)
    kind = details.error_type or "no type"
    return EndingKind.UNKNOWN, f"{job} failed with an unknown error of Ray ({kind}: {_last(details.message)})."


_TRY_AGAIN = "the next attempt may continue"
_NEVER_RAN: Mapping[str, _Judged] = {
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": (
        EndingKind.NOT_STARTED,
        "{job} waited in the queue for longer than the head allows, and never ran: submit it again, or set "
        "RAY_JOB_START_TIMEOUT_SECONDS higher on the head.",
    ),
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": (
        EndingKind.INFEASIBLE,
        "{job} can run on no node, says Ray ({reason}): request resources that the cluster has.",
    ),
    "RUNTIME_ENV_SETUP_FAILURE": (
        EndingKind.RUNTIME_ENV,
        "{job} never ran, because its runtime_env could not be built ({reason}): correct that.",
    ),
}
_JUDGES: Mapping[str, Callable[[str, JobDetails, Sequence[str], NodeInfo | None], _Judged]] = {
    "JOB_ENTRYPOINT_COMMAND_ERROR": _of_entrypoint,
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": _of_failed_start,
    "JOB_SUPERVISOR_ACTOR_DIED": _of_dead_supervisor,
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": _of_failed_start,
    NODE_GONE: _of_dead_supervisor,
}


def _remote_death(lines: Sequence[str]) -> str | None:
    """Return the exception that ended the driver, if Ray reports a node lost under its work."""
    traceback = (last_traceback(lines) or "").splitlines()
    starts = [number for number, line in enumerate(traceback) if _REMOTE_DEATHS.match(line)]
    if not starts:
        return None
    text = "\n".join(traceback[starts[-1] :])
    return text if any(words in text for words in _NODE_GONE) else None


def _unresponsive_actor(lines: Sequence[str]) -> str | None:
    """Return the unresponsive actor that ended the driver, if there is one."""
    end = last_traceback(lines) or next((line for line in reversed(lines) if line.strip()), "")
    found = _UNAVAILABLE_ACTOR.search(end)
    return found[1] if found else None


def _killed_by(code: int | None) -> str | None:
    """Return the signal of an exit code, as Python or a shell encodes it."""
    return _SIGNALS.get(-code if code is not None and code < 0 else (code or 0) - 128)


def _why(node: NodeInfo | None, message: str) -> str:
    words = (node.why if node else "") or next((line for line in message.splitlines() if "node was" in line), "")
    return words.strip() or "its node has died"


def _last(message: str, longest: int = 300) -> str:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:longest] if lines else "no reason given"


@dataclass(frozen=True)
class FollowRequest:
    """A job to follow, with its limits.

    Attributes:
        job: Its submission ID.
        demand: Its entrypoint's demand, to explain its wait.
        result_marker: Prefix of the log line with its result, if it has one.
        queue_timeout_s: How long it may wait for its resources; None: no limit.
        queued_since: Local Unix time since which it waits to start; None: from now on.
        deadline: Local Unix time at which it is stopped; None: never.
    """

    job: str
    demand: Demand
    result_marker: str | None = None
    queue_timeout_s: float | None = None
    queued_since: float | None = None
    deadline: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"demand": self.demand.to_json()}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> FollowRequest:
        """Return the request that ``to_json`` wrote."""
        return FollowRequest(**{**fields, "demand": Demand.from_json(fields["demand"])})


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended, and the result that it printed, if any."""

    ending: Ending
    result: str | None = None


async def await_outcome(
    cluster: RayCluster,
    watch: FollowRequest,
    log: JobLog | None,
    notice: Callable[[str], None],
    reload: ReloadConnection | None = None,
) -> JobOutcome:
    """Follow the job of ``watch`` until it has ended; stop it at its deadline.

    Args:
        cluster: Cluster of its submission.
        watch: The job and its limits.
        log: Takes its log lines.
        notice: Takes sentences for the waiting user.
        reload: Returns the cluster as its connection describes it now. With it, a token refusal is waited out, and
            the interrupted operation is repeated once the cluster accepts the token.

    Raises:
        RayAuthenticationError: The cluster refuses the token, and ``reload`` is not given.
    """
    if reload is None:
        return await _outcome(cluster, watch, log, notice)
    from tradewind.ray_jobs.follow.follow import TokenRefusalHandler

    refusals = TokenRefusalHandler(watch.job, reload, notice)
    while True:
        try:
            return await _outcome(cluster, watch, log, notice)
        except RayAuthenticationError:
            cluster = await refusals.wait(cluster)


async def _outcome(
    cluster: RayCluster, watch: FollowRequest, log: JobLog | None, notice: Callable[[str], None]
) -> JobOutcome:
    from tradewind.ray_jobs.api import JobsApi

    left = None if watch.deadline is None else max(0.0, watch.deadline - time.time())
    async with JobsApi(cluster) as api:
        try:
            async with within(left) as limit:
                return await _follow(api, watch, log, notice)
        except TimeoutError:
            if not limit.expired():
                raise
        over = Ending(EndingKind.TIMED_OUT, f"Ray job {watch.job!r} ran longer than its timeout and was stopped.")
        return await _stopped(api, watch, over, notice)


async def _follow(api: JobsApi, watch: FollowRequest, log: JobLog | None, notice: Callable[[str], None]) -> JobOutcome:
    from tradewind.ray_jobs.follow.follow import follow_job

    since = watch.queued_since or time.time()
    end = await follow_job(
        api.cluster,
        watch.job,
        log=log,
        notice=notice,
        result_marker=watch.result_marker,
        queue_timeout_s=watch.queue_timeout_s,
        explain_wait=lambda api: explain_pending_job(api, watch.demand, waited_s=time.time() - since),
    )
    if end.infeasible:
        ending = Ending(EndingKind.INFEASIBLE, f"Ray job {watch.job!r} can never run: {end.infeasible}")
        return await _stopped(api, watch, ending, notice)
    if reason := end.queue_timed_out:
        ending = Ending(
            EndingKind.QUEUE_TIMED_OUT,
            f"Ray job {watch.job!r} was not started within {watch.queue_timeout_s:.0f} s, its queue timeout, and is "
            f"removed from the queue: {replace(reason, outlook='').text} Raise the queue timeout, request less, or add "
            "nodes to the cluster.",
        )
        return await _stopped(api, watch, ending, notice)
    return JobOutcome(await judge_ending(api, watch.job, end.details, end.last_lines), end.result)


async def _stopped(api: JobsApi, watch: FollowRequest, ending: Ending, notice: Callable[[str], None]) -> JobOutcome:
    """Stop the job and return ``ending`` once it has ended; a success before that counts instead."""
    from tradewind.ray_jobs.follow.stopping import stop_job

    notice(ending.sentence)
    details = await stop_job(api, watch.job, notice)
    return await _follow(api, watch, None, notice) if details and details.status == "SUCCEEDED" else JobOutcome(ending)
