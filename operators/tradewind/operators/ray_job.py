"""Any Ray job as an Airflow task: submitted once, followed to its end, stopped only on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator, BaseOperatorLink, Context, conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from tradewind.deployment.fleet import check_cluster_access
from tradewind.deployment.ray_connection import RayHook
from tradewind.deployment.task_instances import TaskAddress, stop_from_on_kill, stop_plain_job
from tradewind.links.ray import RayJobLink, RayLogLink, push_links
from tradewind.ray_jobs.claims import JobClaim, Submit, decide_submission
from tradewind.ray_jobs.demand import Demand
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, FollowRequest, JobOutcome
from tradewind.ray_jobs.request import JobRequest
from tradewind.serialization.shipping import decode_result, result_marker
from tradewind.steps.amounts import check_amount
from tradewind.tasks.address import TaskKey, clears_now
from tradewind.tasks.errors import failing_without_retry, translated_cluster_errors
from tradewind.tasks.jobs.errors import LOSSES, MAX_LOSSES, job_error
from tradewind.tasks.jobs.following import (
    as_seconds,
    follow_in_worker,
    log_last_lines,
    pause_before_attempt,
    retry_always,
    retry_for,
    stop_in_worker,
)
from tradewind.tasks.jobs.request import job_request, load_claim, save_claim
from tradewind.tasks.xcom_texts import check_xcom_texts
from tradewind.triggers.in_line import waits_in_line
from tradewind.triggers.ray_job import DEFAULT_LOG_BYTES, RayJobTrigger

if TYPE_CHECKING:
    from tradewind.ray_jobs.client import RayJobs
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.steps import Resources

T = TypeVar("T")


@dataclass(frozen=True)
class _TaskResult:
    """The task has its result."""

    result: Any


class RayJobOperator(BaseOperator):
    """Runs a command or a Python function as a Ray job.

    However often the task is retried, cleared or backfilled, each job is submitted once: a try joins a job that an
    earlier try left running. A lost node or head costs an attempt, not one of Airflow's retries. An error of the job
    itself fails the task at once, unless the task has a ``retry_policy``.

    XComs: ``submission_id``, ``status``, and as return value the result of ``python_callable``, or the submission id.

    Args:
        entrypoint: Command to run on the cluster: a text for the shell, or a list of the program and its arguments,
            which are quoted for the shell. Items may be XComs and numbers.
        python_callable: Function to run there instead; see ``tradewind.runtime.run_callable`` for what it may use.
        op_args: Its positional arguments.
        op_kwargs: Its keyword arguments.
        ray_conn_id: Connection of the cluster.
        submission_id: Id of the job, if you choose it. The task joins a job with an existing id, so use a different one
            per run, as in ``"train-{{ ds }}"``.
        runtime_env: Ray's runtime environment: ``working_dir``, ``py_modules``, ``pip``, ``uv``, ``env_vars``.
        secrets: Environment variable → the reference to its value; never the value.
        runs_on: ``Cpu``, ``Gpu``, ``TpuSlice`` of one host, or ``on_head_node()``.
        num_cpus: CPUs for the entrypoint; use it and the next four instead of ``runs_on``.
        num_gpus: GPUs for the entrypoint.
        memory_bytes: Memory for the entrypoint.
        custom_resources: Further Ray resources for the entrypoint.
        label_selector: Labels of the node that the entrypoint may run on.
        metadata: Texts that Ray stores with the job.
        timeout: Time from submission (``timedelta`` or seconds) after which the job is stopped and the task fails.
            Airflow's ``execution_timeout`` does the same from the start of the try; the nearer one counts.
        queue_timeout: The same for the time until the job starts. Without it, a job waits without limit.
        connect_timeout: Seconds to retry an unresponsive cluster before the try fails; a cluster that has, or had, the
            task's job is retried without limit.
        log_bytes: Maximum bytes of the job's log to copy to the task's log; 0 for none.
        wait_for_completion: Off: the task ends once the job is submitted. Only clearing the task stops the job.
        durable: Off: a job that an earlier try left running is stopped and run again instead of joined.
        ship_tradewind: Ship this package with a ``python_callable`` or ``secrets``, which need it on the cluster. Off:
            the cluster's image has it.
        max_losses: How many consecutive nodes or heads the job may lose.
        deferrable: Follow the job in the triggerer, which needs no worker slot.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = (
        "entrypoint",
        "op_args",
        "op_kwargs",
        "ray_conn_id",
        "submission_id",
        "runtime_env",
        "secrets",
        "num_cpus",
        "num_gpus",
        "memory_bytes",
        "custom_resources",
        "label_selector",
        "metadata",
    )
    template_fields_renderers = {"entrypoint": "bash", "runtime_env": "json", "metadata": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (RayJobLink(), RayLogLink())

    def __init__(
        self,
        *,
        entrypoint: str | Sequence[Any] | None = None,
        python_callable: Callable[..., Any] | None = None,
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        ray_conn_id: str = RayHook.default_conn_name,
        submission_id: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        runs_on: Resources | None = None,
        num_cpus: float | str | None = None,
        num_gpus: float | str | None = None,
        memory_bytes: int | str | None = None,
        custom_resources: Mapping[str, float | str] | None = None,
        label_selector: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: timedelta | float | None = None,
        queue_timeout: timedelta | float | None = None,
        connect_timeout: float = 60.0,
        log_bytes: int = DEFAULT_LOG_BYTES,
        wait_for_completion: bool = True,
        durable: bool = True,
        ship_tradewind: bool = True,
        max_losses: int = MAX_LOSSES,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.entrypoint = entrypoint
        self.python_callable = python_callable
        self.op_args = op_args
        self.op_kwargs = op_kwargs or {}
        self.ray_conn_id = ray_conn_id
        self.submission_id = submission_id
        self.runtime_env = runtime_env
        self.secrets = secrets
        self.runs_on = runs_on
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.memory_bytes = memory_bytes
        self.custom_resources = custom_resources
        self.label_selector = label_selector
        self.metadata = metadata
        self.timeout = timeout
        self.queue_timeout = queue_timeout
        self.connect_timeout = connect_timeout
        self.log_bytes = log_bytes
        self.wait_for_completion = wait_for_completion
        self.durable = durable
        self.ship_tradewind = ship_tradewind
        self.max_losses = max_losses
        self.deferrable = deferrable
        for name in ("timeout", "queue_timeout", "connect_timeout"):
            check_amount(as_seconds(getattr(self, name)), name)
        self._followed: tuple[RayCluster, str, TaskAddress] | None = None

    def prepare_template(self) -> None:
        """Refuse texts that need another task's XCom without waiting for it; Airflow calls this with the whole DAG."""
        check_xcom_texts(self)

    def execute(self, context: Context) -> Any:
        """Submit the job, or join the one of an earlier try, and wait for its end."""
        claim = load_claim(context)
        if claim is None:
            with failing_without_retry():
                check_cluster_access([self.ray_conn_id], self.owner, self._subject)
        jobs = self._connect(has_job=claim is not None and not claim.was_judged)
        with translated_cluster_errors(self._subject):
            claim = self._claim(jobs, context)
        return self._result(jobs, claim, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Act on the end of the job, from the trigger's event."""
        outcome = JobOutcome(Ending.from_json(event["ending"]), event["result"])
        progress = self._after_end(JobClaim.from_json(event["claim"]), outcome, context)
        if isinstance(progress, _TaskResult):
            return progress.result
        return self._result(self._connect(has_job=True), progress, context)

    def on_kill(self) -> None:
        """Stop the job that this worker follows, if a user marked or cleared the task."""
        if self._followed is not None:
            cluster, job, address = self._followed
            stop_from_on_kill(lambda: stop_plain_job(cluster, job), address)

    @property
    def _subject(self) -> str:
        return f"Task {self.task_id!r}"

    def _connect(self, *, has_job: bool) -> RayJobs:
        """Return the cluster's jobs. An outage or a refused token ends only a task without a submitted job."""
        get_conn = RayHook(self.ray_conn_id).get_conn
        with translated_cluster_errors(self._subject):
            if has_job:
                return retry_always(get_conn, self.log.warning)
            return retry_for(get_conn, self.connect_timeout, self.log.warning)

    def _retried(self, jobs: RayJobs, call: Callable[[RayJobs], T], *, has_job: bool) -> T:
        """Return the cluster's answer; wait without limit if the task has, or had, a job there."""
        if not has_job:
            return retry_for(lambda: call(jobs), self.connect_timeout, self.log.warning)
        return retry_always(lambda: call(RayHook(self.ray_conn_id).get_conn()), self.log.warning)

    def _claim(self, jobs: RayJobs, context: Context) -> JobClaim:
        """Store and return this try's claim, once earlier jobs that it must not leave running have ended."""
        names, tries_allowed = TaskKey.of(context).names, context["ti"].max_tries
        claim = load_claim(context)
        if claim is None:
            chosen = self.submission_id
            new = JobClaim.named(chosen, tries_allowed) if chosen else JobClaim.first(names, tries_allowed)
            return save_claim(context, new)
        details = self._retried(jobs, lambda jobs: jobs.details(claim.job), has_job=not claim.was_judged)
        clears = clears_now(context)
        decision = decide_submission(claim, details, tries_allowed, clears=clears, durable=self.durable)
        if isinstance(decision, Submit) and decision.cancel_previous:
            self.log.info("The task was cleared. Stopping Ray job %s before it runs again.", decision.cancel_previous)
            stop_in_worker(jobs.cluster, decision.cancel_previous, self.log.info)
        return claim if decision.claim == claim else save_claim(context, decision.claim)

    def _result(self, jobs: RayJobs, claim: JobClaim, context: Context) -> Any:
        """Run the job until it has a result: a loop, since a try's job can queue and be lost many times."""
        while isinstance(progress := self._run(jobs, claim, context), JobClaim):
            jobs, claim = self._connect(has_job=True), progress
        return progress.result

    def _run(self, jobs: RayJobs, claim: JobClaim, context: Context) -> _TaskResult | JobClaim:
        """Submit under ``claim`` unless that is done, and follow the job; return the result or the next claim."""
        with (
            failing_without_retry(),
            job_request(self, claim.job, context) as request,
            translated_cluster_errors(self._subject),
        ):
            is_new = claim.submitted_at is None and self._retried(
                jobs, lambda jobs: jobs.submit_or_attach(request), has_job=claim.attempt > 1
            )
        if claim.submitted_at is None:
            claim = save_claim(context, claim.submitted(time.time()))
        verb = "submitted" if is_new else "joined: it was submitted before"
        self.log.info("Ray job %s %s (attempt %d).", claim.job, verb, claim.attempt)
        context["ti"].xcom_push(key="submission_id", value=claim.job)
        push_links(context["ti"], jobs.cluster, claim.job)
        if not self.wait_for_completion:
            return _TaskResult(claim.job)
        return self._follow(jobs.cluster, claim, self._follow_request(claim, request, context), context)

    def _follow_request(self, claim: JobClaim, request: JobRequest, context: Context) -> FollowRequest:
        submitted_at = claim.submitted_at or time.time()
        queue_timeout = as_seconds(self.queue_timeout)
        queued_before_s = submitted_at - (claim.queued_since or submitted_at)
        return FollowRequest(
            claim.job,
            Demand.of(request),
            result_marker=result_marker(claim.job) if self.python_callable else None,
            queue_timeout_s=None if queue_timeout is None else max(0.0, queue_timeout - queued_before_s),
            queued_since=claim.queued_since,
            deadline=min((end for _, end in self._limits(claim, context)), default=None),
        )

    def _limits(self, claim: JobClaim, context: Context) -> list[tuple[str, float]]:
        """Return the limits of the job, and when each ends: Airflow's counts from the first start of the try."""
        timeout, limits = as_seconds(self.timeout), []
        if timeout is not None:
            limits.append((f"timeout of {timeout:g} s", (claim.submitted_at or time.time()) + timeout))
        if self.execution_timeout is not None:
            allowed_s, started = self.execution_timeout.total_seconds(), context["ti"].start_date
            limits.append((f"execution_timeout of {allowed_s:g} s", started.timestamp() + allowed_s))
        return limits

    def _follow(
        self, cluster: RayCluster, claim: JobClaim, request: FollowRequest, context: Context
    ) -> _TaskResult | JobClaim:
        """Wait for the end of the job, in the triggerer or here."""
        full_log = cluster.job_url(claim.job)
        if self.deferrable or waits_in_line():
            trigger = RayJobTrigger(
                self.ray_conn_id,
                request.to_json(),
                log_bytes=self.log_bytes,
                full_log=full_log,
                owns_job=True,
                payload={"claim": claim.to_json()},
            )
            self.defer(trigger=trigger, method_name=self.execute_complete.__name__)
        self._followed = (cluster, claim.job, TaskKey.of(context).address)
        try:
            outcome = follow_in_worker(cluster, request, self.log_bytes, full_log)
        except AirflowTaskTimeout:  # raised once; the next lines have all the time they need
            stop_in_worker(cluster, claim.job, self.log.info)
            outcome = JobOutcome(Ending(EndingKind.TIMED_OUT, f"Ray job {claim.job!r} was stopped."))
        return self._after_end(claim, outcome, context)

    def _after_end(self, claim: JobClaim, outcome: JobOutcome, context: Context) -> _TaskResult | JobClaim:
        """End the task according to the job's ending, or return the claim of the next attempt."""
        ending = outcome.ending
        context["ti"].xcom_push(key="status", value=ending.kind.name)
        if ending.kind is EndingKind.SUCCEEDED:
            save_claim(context, claim.judged(succeeded=True, clears=clears_now(context)))
            self.log.info("%s", ending.sentence)
            if self.python_callable is None:
                return _TaskResult(claim.job)
            with failing_without_retry():
                return _TaskResult(decode_result(outcome.result, claim.job))
        if ending.kind is EndingKind.NOT_STARTED:
            self.log.info("%s It queues again.", ending.sentence)
            return save_claim(context, claim.requeued())
        if ending.kind in LOSSES and claim.losses < self.max_losses:
            return self._next_claim(claim, ending, context)
        save_claim(context, claim.judged(succeeded=False, clears=clears_now(context)))
        log_last_lines(self.log, ending)
        if ending.kind is EndingKind.TIMED_OUT and (limits := self._limits(claim, context)):
            limit, _ = min(limits, key=lambda each: each[1])
            ending = replace(ending, sentence=f"Ray job {claim.job!r} was stopped: it exceeded its task's {limit}.")
        raise job_error(ending, at_once=self.retry_policy is None)

    def _next_claim(self, claim: JobClaim, ending: Ending, context: Context) -> JobClaim:
        """Return the claim for the next attempt within this try, after a pause: a loss is not the job's fault."""
        pause_s = pause_before_attempt(claim.losses)
        log_last_lines(self.log, ending)
        self.log.warning("%s Attempt %d follows in %.0f s.", ending.sentence, claim.attempt + 1, pause_s)
        time.sleep(pause_s)
        return save_claim(context, claim.next(claim.tries_allowed, lost=True))
