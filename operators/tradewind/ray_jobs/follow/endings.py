"""Every ending of a job has a kind, which says whether trying again can help, and one sentence for people.

Ray's own words decide, and where they leave it open, whether the node is still alive. When neither tells, the ending
is no user error: a user error ends a task for good, everything else gives it another attempt.

What is left out on purpose: a driver that fails for a reason of its own *after* it has caught the death of an actor.
Only the exception that ended the driver counts, and only if the node that it names is really gone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tradewind.ray_jobs.details import NODE_GONE, JobDetails
from tradewind.ray_jobs.follow.tracebacks import last_exception, last_traceback
from tradewind.ray_jobs.nodes.nodes import NodeFacts, fetch_nodes

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

LAST_LINES = 50
SETTLE_S = 20.0
"""How long a dead node can look alive: Ray misses heartbeats for about 17 s first."""
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
    """Its entrypoint failed by itself: trying again gives the same."""
    RUNTIME_ENV = "runtime_env"
    """Its environment could not be made; the entrypoint never ran."""
    INFEASIBLE = "infeasible"
    """No node of the cluster could ever run it."""
    PREEMPTED = "preempted"
    """The node that it ran on, or that its work ran on, is gone: the next attempt may go on."""
    HEAD_LOST = "head_lost"
    """The head forgot it, or was started again under it; something of it may still run."""
    STOPPED = "stopped"
    """Somebody stopped it."""
    TIMED_OUT = "timed_out"
    """It ran for longer than its caller allows, who stopped it."""
    QUEUE_TIMED_OUT = "queue_timed_out"
    """It waited too long for its turn; it never ran."""
    NOT_STARTED = "not_started"
    """Ray gave up on it while it waited for its turn; it never ran. Queueing is no failure: it can queue again."""
    START_FAILED = "start_failed"
    """Ray could not start its supervisor or lost it while the node lived: the infrastructure's, worth an attempt."""
    UNKNOWN = "unknown"
    """Ray says nothing that we know; worth another attempt."""


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        kind: What whoever comes after needs to know.
        sentence: Cause, job, and what to do next.
        exit_code: Of the entrypoint, if it ran to an end of its own.
        traceback: The last Python traceback in the last lines.
        last_lines: Of the job's log, or of Ray's message where there is no log.
    """

    kind: EndingKind
    sentence: str
    exit_code: int | None = None
    traceback: str | None = None
    last_lines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``from_json`` reads it."""
        return {
            "kind": self.kind.value,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "traceback": self.traceback,
            "last_lines": list(self.last_lines),
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Ending:
        """The ending that ``to_json`` wrote."""
        return Ending(
            EndingKind(fields["kind"]),
            fields["sentence"],
            fields.get("exit_code"),
            fields.get("traceback"),
            tuple(fields.get("last_lines") or ()),
        )


def classify(
    job: str, details: JobDetails | None, last_lines: Sequence[str] = (), node: NodeFacts | None = None
) -> Ending:
    """How ``job`` ended, from what is known.

    Args:
        job: Its id.
        details: What Ray says of it; None if Ray does not know it although it was submitted.
        last_lines: The end of its log; without it, Ray's message stands in.
        node: The node that :func:`node_in_question` names, if anything is known of it.
    """
    lines = list(last_lines) or (details.message.splitlines() if details else [])
    kind, sentence = _judge(f"Ray job {job!r}", details, lines, node)
    return Ending(
        kind,
        sentence,
        details.exit_code if details else None,
        None if kind is EndingKind.SUCCEEDED else last_traceback(lines),
        tuple(lines[-LAST_LINES:]),
    )


async def judge_ending(
    api: JobsApi,
    job: str,
    details: JobDetails | None,
    last_lines: Sequence[str] = (),
    *,
    settle_s: float = SETTLE_S,
) -> Ending:
    """How ``job`` ended, asking the cluster after its node where that matters; a cluster that is silent is no matter.

    An entrypoint that was killed, or whose actor fell silent, may have lost a node before the head noticed: then it
    waits ``settle_s``.
    """
    wanted = node_in_question(details, last_lines)
    if wanted is None or details is None:
        return classify(job, details, last_lines)
    actor = _silent_actor(list(last_lines) or details.message.splitlines())
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
    """The id of the node whose fate decides how the job ended: its own, or the one that its last exception names."""
    if details is None or details.status != "FAILED":
        return None
    if details.error_type == "JOB_ENTRYPOINT_COMMAND_ERROR":
        death = _remote_death(list(last_lines) or details.message.splitlines())
        if death and (named := _NODE_ID.search(death)):
            return named[1]
    return details.node_id


async def _node(api: JobsApi, node_id: str) -> NodeFacts | None:
    from tradewind.ray_jobs.errors import RayJobsError

    try:
        return next((node for node in await fetch_nodes(api) if node.node_id == node_id), None)
    except (RayJobsError, KeyError, TypeError):  # silent, or another Ray with another answer
        return None


async def _node_of_actor(api: JobsApi, actor: str) -> str | None:
    from tradewind.ray_jobs.errors import RayJobsError

    wanted = {"filter_keys": "actor_id", "filter_predicates": "=", "filter_values": actor, "detail": "true"}
    try:
        answer = await api.get_json("/api/v0/actors", wanted)
        return str(answer["data"]["result"]["result"][0]["node_id"])
    except (RayJobsError, KeyError, TypeError, IndexError):
        return None


_Judged = tuple[EndingKind, str]


def _judge(job: str, details: JobDetails | None, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    if details is None:
        return EndingKind.HEAD_LOST, f"{job} is unknown to its cluster, whose head has lost its memory: submit it anew."
    if details.status == "SUCCEEDED":
        return EndingKind.SUCCEEDED, f"{job} succeeded."
    if details.status == "STOPPED":
        return EndingKind.STOPPED, f"{job} was stopped: submit it anew if that was not meant."
    if details.status != "FAILED":
        return EndingKind.UNKNOWN, f"{job} has not ended: Ray says {details.status}."
    judge = _JUDGES.get(details.error_type or "", _of_the_unknown)
    return judge(job, details, lines, node)


def _of_entrypoint(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    code = details.exit_code
    gone = node is not None and not node.is_alive and not node.is_head
    if (death := _remote_death(lines)) and (node is None or gone):
        return EndingKind.PREEMPTED, f"{job} lost the node that its work ran on ({_why(node, death)}): {_TRY_AGAIN}."
    if gone and _silent_actor(lines):
        return EndingKind.PREEMPTED, f"{job} lost the node that its work ran on ({_why(node, '')}): {_TRY_AGAIN}."
    if (signal := _killed_by(code)) and gone:
        return EndingKind.PREEMPTED, f"{job} was ended with its node ({_why(node, '')}): {_TRY_AGAIN}."
    if signal == "SIGKILL":
        advice = "most often because memory ran out: ask for more of it, or use less"
        return EndingKind.USER_ERROR, f"{job} was killed by SIGKILL (exit code {code}), {advice}."
    if signal:
        advice = "by something on its node: look there for what did it"
        return EndingKind.USER_ERROR, f"{job} was ended by {signal} (exit code {code}), {advice}."
    if code == 127:
        return EndingKind.USER_ERROR, f"{job} failed with exit code 127: its command is not on the cluster's PATH."
    error = last_exception(lines)
    cause = f" ({error})" if error else ""
    return EndingKind.USER_ERROR, f"{job} failed with exit code {code}{cause}: correct what it runs, then run it again."


def _of_dead_supervisor(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    message = details.message
    if "killed by `ray.kill`" in message:
        return EndingKind.STOPPED, f"{job} was stopped before it ran: submit it anew if that was not meant."
    said_gone = any(words in message for words in _NODE_GONE)
    if not said_gone and (node is None or node.is_alive):
        return EndingKind.START_FAILED, f"{job} lost its supervisor process, perhaps to a lack of memory: {_TRY_AGAIN}."
    if node is not None and node.is_head:
        return EndingKind.HEAD_LOST, f"{job} ran on the cluster's head, which is gone: {_TRY_AGAIN}."
    return EndingKind.PREEMPTED, f"{job} lost the node that it ran on ({_why(node, message)}): {_TRY_AGAIN}."


def _of_failed_start(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    if "failed to get job supervisor" in details.message:  # what a head says that remembers the job, but not its actor
        return EndingKind.HEAD_LOST, f"{job} was running while its cluster's head was started again: {_TRY_AGAIN}."
    return EndingKind.START_FAILED, f"{job} could not be started by Ray ({_last(details.message)}): {_TRY_AGAIN}."


def _of_runtime_env(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    return (
        EndingKind.RUNTIME_ENV,
        f"{job} never ran, because its runtime_env could not be made ({_last(details.message)}): correct that.",
    )


def _of_late_start(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    return (
        EndingKind.NOT_STARTED,
        f"{job} waited in the queue for longer than the head allows, and never ran: submit it anew, or set "
        "RAY_JOB_START_TIMEOUT_SECONDS higher on the head.",
    )


def _of_unschedulable(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    asks = "ask for what the cluster has"
    return EndingKind.INFEASIBLE, f"{job} can be placed nowhere, says Ray ({_last(details.message)}): {asks}."


def _of_the_unknown(job: str, details: JobDetails, lines: Sequence[str], node: NodeFacts | None) -> _Judged:
    if node is not None and not node.is_alive:
        return _of_dead_supervisor(job, details, lines, node)
    kind = details.error_type or "no type"
    return EndingKind.UNKNOWN, f"{job} failed with an error that only Ray knows ({kind}: {_last(details.message)})."


_TRY_AGAIN = "the next attempt may go on"
_JUDGES: Mapping[str, Callable[[str, JobDetails, Sequence[str], NodeFacts | None], _Judged]] = {
    "JOB_ENTRYPOINT_COMMAND_ERROR": _of_entrypoint,
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": _of_failed_start,
    "JOB_SUPERVISOR_ACTOR_DIED": _of_dead_supervisor,
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": _of_failed_start,
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": _of_late_start,
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": _of_unschedulable,
    "RUNTIME_ENV_SETUP_FAILURE": _of_runtime_env,
    NODE_GONE: _of_dead_supervisor,
}


def _remote_death(lines: Sequence[str]) -> str | None:
    """The text of the exception that ended the driver, if it is Ray's word that a node was lost under its work."""
    traceback = (last_traceback(lines) or "").splitlines()
    starts = [number for number, line in enumerate(traceback) if _REMOTE_DEATHS.match(line)]
    if not starts:
        return None
    text = "\n".join(traceback[starts[-1] :])
    return text if any(words in text for words in _NODE_GONE) else None


def _silent_actor(lines: Sequence[str]) -> str | None:
    """The actor that the driver could not reach any more, if that is what ended it."""
    last_words = last_traceback(lines) or next((line for line in reversed(lines) if line.strip()), "")
    found = _UNAVAILABLE_ACTOR.search(last_words)
    return found[1] if found else None


def _killed_by(code: int | None) -> str | None:
    """The signal that an exit code tells of, as Python or as a shell puts it."""
    return _SIGNALS.get(-code if code is not None and code < 0 else (code or 0) - 128)


def _why(node: NodeFacts | None, message: str) -> str:
    words = (node.why if node else "") or next((line for line in message.splitlines() if "node was" in line), "")
    return words.strip() or "its node has died"


def _last(message: str, longest: int = 300) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:longest] if lines else "no reason given"
