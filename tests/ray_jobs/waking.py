"""A head that was started again judges its old jobs only once somebody submits, stops or reads a log there.

Until then a job that died with the former head shows as running, for ever: asking for its status wakes nothing. So
whoever follows jobs wakes the head after a silence.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tradewind.ray_jobs.errors import RayUnreachableError

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

_NEVER_ACCEPTED = {"entrypoint": "true", "entrypoint_label_selector": {"not a key!": ""}}


async def wake_head(api: JobsApi) -> None:
    """Make the head look at its jobs, by a submission that it refuses; harmless at any time."""
    with contextlib.suppress(RayUnreachableError):  # so its refusal shows here
        async with api.request("POST", "/api/jobs/", json=_NEVER_ACCEPTED):
            pass
