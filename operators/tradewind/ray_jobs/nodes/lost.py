"""A job whose node is gone has ended, also where Ray goes on calling it running.

Ray judges a dead job in an agent on one of the nodes, and only if that agent lives and was asked for something since
it started. A head that came back without its node, or lost the node under it, answers for ever that such a job runs.
So whoever waits for a job's end looks at which nodes live: one request for all jobs of a cluster, once a minute, and
soon when the cluster was silent. A node whose job has just printed a line need not be looked at. A node that is missing
is believed to be gone after longer than Ray needs to judge.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError
from tradewind.ray_jobs.nodes.nodes import fetch_living

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

LOOK_S = 60.0
AGAIN_S = 10.0
"""The same while a node is missing."""
BELIEVE_S = 40.0
"""For how long a node must be missing. Ray tells of a job's end a few seconds after it tells of its node's."""


class LostNodes:
    """The nodes of running jobs that are gone, as one cluster tells."""

    def __init__(self, api: JobsApi) -> None:
        self._api = api
        self._look_at = time.monotonic() + LOOK_S
        self._missing_since: dict[str, float] = {}
        self._gone: frozenset[str] = frozenset()

    def look_soon(self) -> None:
        """The cluster was silent: nodes may have gone meanwhile."""
        self._look_at = time.monotonic()

    async def judged(
        self, found: Mapping[str, JobDetails | None], proven: Collection[str] = ()
    ) -> dict[str, JobDetails | None]:
        """The jobs that were ``found``, where a running one whose node is gone has failed.

        Those of ``proven`` are known to live: their nodes are not looked at.
        """
        nodes = {
            node for job, details in found.items() if details and job not in proven and (node := details.running_on)
        }
        if nodes and time.monotonic() >= self._look_at:
            await self._look(nodes)
        return {
            job: details.without_node() if details and details.running_on in self._gone else details
            for job, details in found.items()
        }

    async def _look(self, nodes: Collection[str]) -> None:
        now = time.monotonic()
        try:
            living = await fetch_living(self._api, nodes)
        except (RayUnreachableError, RayAuthenticationError, KeyError, TypeError):  # silent, forbidden, or another Ray
            self._look_at = now + LOOK_S
            return
        self._missing_since = {node: self._missing_since.get(node, now) for node in nodes if node not in living}
        self._gone = frozenset(node for node, since in self._missing_since.items() if now - since >= BELIEVE_S)
        self._look_at = now + (AGAIN_S if self._missing_since else LOOK_S)
