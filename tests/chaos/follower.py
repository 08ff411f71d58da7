"""Run a step on a cluster without Airflow: claim, submit and follow it as its task does, but without deferring."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from tradewind.attempts.decisions import (
    Claim,
    Finished,
    InheritFailure,
    NextAction,
    RerunRequest,
    TaskIdentity,
    decide_start,
    next_action,
)
from tradewind.attempts.renewal import renewing_while_claimed
from tradewind.attempts.step_lease import StepLease
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.follow.outcomes import FollowRequest, await_outcome
from tradewind.records.attempts import Attempt, AttemptOutcome
from tradewind.records.lifecycle import complete_commit
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ResolvedStep
from tradewind.storage.errors import StoreUnavailableError
from tradewind.tasks.attempt_runner import to_job_result
from tradewind.tasks.jobs.following import retry_for
from tradewind.tasks.step_job import demand_of, step_request
from tradewind.triggers.lease import wait_for_release

REPOSITORY = Path(__file__).parents[2]
BY = {"dag": "chaos", "run": "r", "task": "train", "map_index": -1, "try": 1, "max_tries": 0}
CONNECT_S = 120.0
PAUSE_S = 0.5


class FollowedStep:
    """A step that a separate thread runs; ``state`` returns the Airflow state of its run."""

    def __init__(self, step: ResolvedStep, cluster: RayCluster, heartbeat_s: float) -> None:
        self._lease = StepLease(step, BY, heartbeat_s)
        self._cluster = cluster
        self._state = "running"
        threading.Thread(target=self._run, daemon=True, name="follower").start()

    def state(self) -> str:
        return self._state

    def _run(self) -> None:
        try:
            self._state = "success" if self._run_attempts() else "failed"
        except BaseException:
            self._state = "failed"
            raise

    def _run_attempts(self) -> bool:
        while True:
            try:
                match decide_start(self._lease.read(), TaskIdentity(dict(BY)), RerunRequest()):
                    case Finished():
                        return True
                    case InheritFailure():
                        return False
                    case Claim():
                        end = self._attempt()
                        if end is not None:
                            return end
                    case _:
                        self._wait_for_end()
            except StoreUnavailableError:
                time.sleep(PAUSE_S)

    def _attempt(self) -> bool | None:
        """Run one attempt; return whether it made the output, or None if another attempt is due."""
        seen = self._lease.read()
        claimed = self._lease.claim(seen.lease, self._spec, cluster="chaos")
        if claimed is None:
            return None
        with renewing_while_claimed(self._lease.path, claimed.attempt.job):
            action = self._follow(claimed.attempt)
        if action is NextAction.NEXT_ATTEMPT:
            self._lease.end_unstarted(claimed.attempt.job, AttemptOutcome.LOST)
        elif action is NextAction.WAIT_UNTIL_STALE:
            self._wait_for_end()
        return {NextAction.SUCCEED: True, NextAction.FAILED: False, NextAction.CONTRADICTION: False}.get(action)

    def _follow(self, attempt: Attempt) -> NextAction:
        request = step_request(attempt, StepSpec.from_json(attempt.spec), REPOSITORY)
        retry_for(lambda: RayJobs(self._cluster).submit_or_attach(request), CONNECT_S, print)
        follow = FollowRequest(attempt.job, demand_of(attempt.job, self._lease.step.step))
        ending = asyncio.run(await_outcome(self._cluster, follow, None, print)).ending
        print(f"chaos: attempt {attempt.number}: {ending.sentence}", flush=True)
        record = self._lease.store.read()
        lease = record.lease if record else None
        action = next_action(lease, attempt.job, to_job_result(ending))
        if action is NextAction.SUCCEED and lease is not None:
            complete_commit(self._lease.path, lease)
        return action

    def _wait_for_end(self) -> None:
        seen = self._lease.read()
        asyncio.run(wait_for_release(self._lease.path, seen.lease.attempt if seen.lease else 0, print))

    def _spec(self) -> StepSpec:
        return step_spec(self._lease.step, CodeFolder(REPOSITORY))
