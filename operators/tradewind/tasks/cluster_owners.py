"""A cluster that the fleet file gives to one owner takes nobody else's work: refused before anything is spent.

The owner of a task is Airflow's: ``owner`` of the operator, or of the DAG's ``default_args``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tradewind.deployment.fleet import configured_fleet
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.errors import BadRequestError

logger = logging.getLogger(__name__)


class NotTheOwnerError(BadRequestError):
    """A cluster is for the work of somebody else."""


def refuse_others_clusters(clusters: Iterable[str], owner: str, who: str) -> None:
    """Refuse clusters that are for others than ``owner``, who may be several with commas between them.

    A fleet file that cannot be used keeps no task from its work: a warning says so.

    Args:
        clusters: Their names in the fleet file, or their connections.
        who: The task, for the message.

    Raises:
        NotTheOwnerError: There is one; it names the first.
    """
    try:
        fleet = configured_fleet()
    except FleetError as error:
        logger.warning("Whose clusters these are is not known: %s", error)
        return
    names = {name.strip() for name in owner.split(",")}
    for cluster in filter(None, map(fleet.called, clusters)) if fleet else ():
        if cluster.owner not in (None, *names):
            raise NotTheOwnerError(
                f"{who}: {cluster.not_for(owner)} Set 'owner' of the task if it is, or name another cluster."
            )
