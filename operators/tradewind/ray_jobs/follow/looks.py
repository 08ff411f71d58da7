"""What a cluster says of many jobs, asked for at the least cost to the head, to the network and to us.

``GET /api/jobs/`` tells of every job that the head remembers, which may be thousands that ended long ago. So few jobs
are asked for one by one. For more, one small question comes first: how many jobs there are, and how many of them have
not started, or not ended. Jobs only ever go on, and a new one raises the first number: while both numbers stay, none
of them has changed. (One that is submitted while another is deleted and a third changes could hide that, until the
next look at each: ``AGAIN_S``.) When they do not stay, the jobs are asked for one by one, or with the whole list where
that is less. A head that remembers so much that even counting takes it long is asked for each of few jobs, and seldom.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tradewind.ray_jobs.details import TERMINAL, JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

FEW = 3
"""So many jobs are asked for one by one, whatever else there is."""
LOOK_COST = 20
"""A look at one job costs as much as so many jobs in the list."""
AGAIN_S = 300.0
"""A job is asked for itself at least so often."""
SLOW_S = 1.5
"""A head that takes longer to count remembers too much to be asked often, and is asked for single jobs instead."""
SLOWLY_S = 60.0
"""How often for each of them."""
_AT_ONCE = 8

Details = Mapping[str, JobDetails | None]
_Question = tuple[tuple[str, str], ...]
_NOT_STARTED: _Question = (("=", "PENDING"),)
_NOT_ENDED: _Question = tuple(("!=", status) for status in sorted(TERMINAL))


class JobLooks:
    """The looks of one follower at the jobs of one cluster: it remembers the numbers that were told."""

    def __init__(self, api: JobsApi) -> None:
        self._api = api
        self._told: dict[_Question, tuple[int, int] | None] = {}
        self._looked_at: dict[str, float] = {}
        self._all_jobs: int | None = None
        """How many jobs the head remembers, as far as it was told."""
        self._slow_until = float("-inf")

    async def look(
        self, known: Mapping[str, JobDetails | None], doubtful: Collection[str]
    ) -> dict[str, JobDetails | None]:
        """The jobs of ``known``, each with its last details, as they are now; None where there is no such job.

        Args:
            known: The jobs that are asked for, and what was last heard of each.
            doubtful: Those of them that may have changed, or were not heard of yet, whatever numbers say.

        Raises:
            RayUnreachableError: No answer.
            RayAuthenticationError: The token is refused.
        """
        now = time.monotonic()
        counts_slowly = now < self._slow_until and self._are_few(known)
        again_s = SLOWLY_S if counts_slowly else AGAIN_S
        changed = {job for job in known if job in doubtful or now - self.looked_at(job) >= again_s}
        told: dict[_Question, tuple[int, int] | None] = {}
        if len(known) <= FEW:
            changed = set(known)
        elif not counts_slowly:
            for question, jobs in _by_question(known).items():
                if jobs - changed:
                    told[question] = await self._ask(question)
                    if told[question] is None or told[question] != self._told.get(question):
                        changed |= jobs
        found = await self._ask_for(changed)
        self._told |= told  # only now: what was not looked at would else seem to be unchanged next time
        self._looked_at |= dict.fromkeys(changed, now)
        return {**known, **found}

    def looked_at(self, job: str) -> float:
        """When the job was last asked for itself, by this process's monotonic clock."""
        return self._looked_at.get(job, float("-inf"))

    def forget(self, job: str) -> None:
        """Nobody follows the job any more."""
        self._looked_at.pop(job, None)

    async def _ask(self, question: _Question) -> tuple[int, int] | None:
        """How many jobs there are, and how many are as ``question`` says; None where that is not told."""
        params = [("limit", "0"), ("timeout", "20")]
        for predicate, status in question:
            params += [("filter_keys", "status"), ("filter_predicates", predicate), ("filter_values", status)]
        started = time.monotonic()
        try:
            answer = await self._api.get_json("/api/v0/jobs", params)
            if (now := time.monotonic()) - started > SLOW_S:
                self._slow_until = now + AGAIN_S
            numbers = answer["data"]["result"]
            self._all_jobs = int(numbers["total"])
            return self._all_jobs, int(numbers["num_filtered"])
        except (RayUnreachableError, RayAuthenticationError, KeyError, TypeError):
            return None  # the looks that follow say whether the cluster answers at all

    async def _ask_for(self, jobs: Collection[str]) -> dict[str, JobDetails | None]:
        if len(jobs) <= FEW or self._are_few(jobs):
            return await self._one_by_one(jobs)
        listed = {details.job: details for details in await self._api.jobs()}
        self._all_jobs = len(listed)
        found: dict[str, JobDetails | None] = {job: listed[job] for job in jobs if job in listed}
        return found | await self._one_by_one([job for job in jobs if job not in listed])

    def _are_few(self, jobs: Collection[str]) -> bool:
        """Whether looks at each of ``jobs`` cost less than the list of all."""
        return len(jobs) * LOOK_COST <= (self._all_jobs or 0)

    async def _one_by_one(self, jobs: Collection[str]) -> dict[str, JobDetails | None]:
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def details_of(job: str) -> JobDetails | None:
            async with at_once:
                return await self._api.details(job)

        try:
            async with asyncio.TaskGroup() as group:  # with the first that fails, all others end
                looks = {job: group.create_task(details_of(job)) for job in jobs}
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return {job: look.result() for job, look in looks.items()}


def _by_question(known: Details) -> dict[_Question, set[str]]:
    """The jobs that have not ended, by the question whose answer changes when one of them changes."""
    found: dict[_Question, set[str]] = {}
    for job, details in known.items():
        is_pending = details is not None and details.status == "PENDING"
        found.setdefault(_NOT_STARTED if is_pending else _NOT_ENDED, set()).add(job)
    return found
