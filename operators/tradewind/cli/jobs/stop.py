"""``tradewind jobs stop``: it ends when the jobs have ended, not when Ray says that they were told."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence

from tradewind.cli.errors import UsageError
from tradewind.cli.interrupts import Interrupts
from tradewind.cli.jobs.logs import unknown_job
from tradewind.cli.output import say, write_lines
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.finding import JobQuery


def stop(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Stop the jobs that are named, or those with some metadata.

    Raises:
        UsageError: Neither is given, or both are.
    """
    if bool(arguments.jobs) == bool(arguments.metadata):
        raise UsageError("say which jobs are meant: by their ids or by --metadata, one of them.")
    return interrupts.run(_stop(list(dict.fromkeys(arguments.jobs)), dict(arguments.metadata), cluster))


async def _stop(ids: Sequence[str], metadata: Mapping[str, str], cluster: RayCluster) -> int:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    async with JobsApi(cluster) as api:
        if metadata:
            found = [job for job in JobQuery(metadata=metadata).matching(await api.jobs()) if not job.has_ended]
            known, unknown = [job.job for job in found], []
            if not known:
                say("No job with these metadata is active.")
        else:
            asked = {job: await api.details(job) for job in ids}  # a cluster that is silent ends the command here
            known = [job for job, state in asked.items() if state is not None]
            unknown = [job for job, state in asked.items() if state is None]
        ended = await asyncio.gather(*(stop_job(api, job, say) for job in known))
    states = [details.status if details else "unknown by now" for details in ended]
    write_lines([f"{job}: {state}" for job, state in zip(known, states, strict=True)])
    for job in unknown:
        say(str(unknown_job(job, cluster)))
    return 1 if unknown or None in ended else 0
