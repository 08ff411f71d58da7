"""Build the job of a task from its fields, check it before submission, and store the task's claim on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Context

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.claims import JobClaim
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.request import JobRequest, check_request, shell_command
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.ray_jobs.worker_python import start_command
from tradewind.runtime.with_secrets import with_secrets
from tradewind.serialization.callables import describe_call
from tradewind.serialization.job_start import start_env
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.shipping import CALL_ENTRYPOINT, call_runtime_env, result_marker
from tradewind.tasks.address import TaskKey
from tradewind.tasks.code import code_folder
from tradewind.tasks.jobs.exposed_secrets import check_call
from tradewind.tasks.jobs.placement import Placement, place_entrypoint

if TYPE_CHECKING:
    from tradewind.steps import Resources

CLAIM_KEY = "ray_job"
"""Key of a task's claim on its job in Airflow's task state store: it survives the try, the worker and a Clear."""


class JobDescription(Protocol):
    """An operator's description of its job; the names are those of ``RayJobOperator``."""

    task_id: str
    ray_conn_id: str
    entrypoint: str | Sequence[Any] | None
    python_callable: Callable[..., Any] | None
    op_args: Sequence[Any]
    op_kwargs: Mapping[str, Any]
    runtime_env: Mapping[str, Any] | None
    secrets: Mapping[str, str] | None
    runs_on: Resources | None
    num_cpus: float | str | None
    num_gpus: float | str | None
    memory_bytes: int | str | None
    custom_resources: Mapping[str, float | str] | None
    label_selector: Mapping[str, str] | None
    metadata: Mapping[str, str] | None
    wait_for_completion: bool
    ship_tradewind: bool


@contextmanager
def job_request(operator: JobDescription, job: str, context: Context) -> Iterator[JobRequest]:
    """Build the job of ``operator`` with ID ``job``; submit it within the block.

    Raises:
        BadRequestError: A field is invalid.
        SpecError: The function or an argument of it cannot travel.
        UnknownSliceTypeError: It requests a slice of a type that does not exist.
        SecretReferenceError: A secret is given as something other than a reference.
    """
    key = TaskKey.of(context)
    with _entrypoint(operator, job, context) as (command, runtime_env, needed):
        secrets, unmasked = operator.secrets or {}, [result_marker(job)] if operator.python_callable else []
        entrypoint, secret_env = with_secrets(command, secrets, f"Task {key.task!r}", unmasked)
        if secret_env:
            runtime_env = {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), **secret_env}}
        if operator.python_callable or operator.secrets:
            start = RayHook(operator.ray_conn_id).job_start()
            runtime_env = start_env(runtime_env, start, ships=operator.ship_tradewind)
            entrypoint = start_command(entrypoint)
        request = JobRequest(
            submission_id=job,
            entrypoint=entrypoint,
            runtime_env=prepare_runtime_env(runtime_env, needed),
            metadata={**(operator.metadata or {}), **key.metadata(waits=operator.wait_for_completion)},
            **_placement(operator).fields(),
        )
        yield check_request(request)


@contextmanager
def _entrypoint(
    operator: JobDescription, job: str, context: Context
) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Provide the entrypoint, its runtime environment, and the files of the code folder that must be in this."""
    runtime_env = dict(operator.runtime_env or {})
    if (operator.entrypoint is None) == (operator.python_callable is None):
        raise BadRequestError(f"Task {operator.task_id!r} needs either an entrypoint or a python_callable.")
    if operator.entrypoint is not None:
        yield shell_command(operator.entrypoint), runtime_env, []  # checked before secrets wrap it
        return
    code = code_folder(context["dag"])
    kwargs = _with_context(operator.python_callable, operator.op_args, operator.op_kwargs, context)
    call = describe_call(operator.python_callable, operator.op_args, kwargs, CodeFolder(code), result_marker(job))
    needed: list[str] = []
    if call.travels and "working_dir" not in runtime_env:
        runtime_env["working_dir"] = str(code)
        needed = CodeFolder(code).files_of(call.modules)
    check_call(call)
    with call_runtime_env(call, runtime_env) as call_env:
        # Behind secrets, the entrypoint is a shell's: it then starts in the Python that started the secrets.
        yield (start_command(CALL_ENTRYPOINT) if operator.secrets else CALL_ENTRYPOINT), call_env, needed


def _with_context(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Return ``kwargs`` and the parts of Airflow's context that the function's other parameters name."""
    parameters = list(inspect.signature(function).parameters)[len(args) :]
    known: Mapping[str, Any] = context
    return {name: known[name] for name in parameters if name in known and name not in kwargs} | dict(kwargs)


def _placement(operator: JobDescription) -> Placement:
    """Return where the job runs: by ``runs_on``, or by amounts."""
    memory_bytes = _number(operator.memory_bytes, "memory_bytes")
    amounts = Placement(
        num_cpus=_number(operator.num_cpus, "num_cpus"),
        num_gpus=_number(operator.num_gpus, "num_gpus"),
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
        resources={name: _number(amount, name) or 0.0 for name, amount in (operator.custom_resources or {}).items()},
        label_selector=operator.label_selector,
    )
    if operator.runs_on is None:
        return amounts
    if any(amounts.fields().values()):
        raise BadRequestError(f"Task {operator.task_id!r} has both runs_on and amounts: give only one of them.")
    return place_entrypoint(operator.runs_on)


def _number(value: float | str | None, name: str) -> float | None:
    """Parse a templated amount; an empty text is None."""
    if value is None or value == "":
        return None
    try:
        return float(value)
    except ValueError:
        raise BadRequestError(f"{name}={value!r} is not a number.") from None


def load_claim(context: Context) -> JobClaim | None:
    """Return the claim of an earlier try, if any."""
    fields: Any = context["task_state_store"].get(CLAIM_KEY)
    return JobClaim.from_json(fields) if fields else None


def save_claim(context: Context, claim: JobClaim) -> JobClaim:
    """Store ``claim``; it is durable when this returns."""
    fields: Any = claim.to_json()
    context["task_state_store"].set(CLAIM_KEY, fields)
    return claim
