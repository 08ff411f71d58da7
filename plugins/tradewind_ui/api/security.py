"""Who may see what: readers of a DAG its runs, those with a permission of its own data, those of connections clusters.

Each is a list of dependencies for a route. The ids in a path are checked before any query.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Annotated, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_connection, requires_access_dag
from fastapi import Depends, HTTPException, Request

from tradewind.storage import Roots, StorageError

logger = logging.getLogger(__name__)

DATA_RESOURCE: Final = "Tradewind Data"
"""The name of the permission: with FAB, ``airflow roles add-perms ROLE -r "Tradewind Data" -a can_read``."""
BAD_IDS: Final = "No run, DAG or task has this id."
NO_LOGS: Final = "Your role may not read task logs of this DAG, and what is here may quote them or rows of data."


def plain_ids(request: Request) -> None:
    """Refuse ids that no database accepts, before a query.

    Raises:
        HTTPException: 404: an id has a character that cannot be printed.
    """
    if not all(str(part).isprintable() for part in request.path_params.values()):
        raise HTTPException(404, BAD_IDS)


def may_read_data(user: Annotated[BaseUser, Depends(get_user)]) -> None:
    """Refuse users without the permission to read files below the allowed roots.

    Raises:
        HTTPException: 403: an administrator has not given it.
    """
    if not get_auth_manager().is_authorized_custom_view(method="GET", resource_name=DATA_RESOURCE, user=user):
        raise HTTPException(
            403, f"Your role has no permission to read {DATA_RESOURCE!r}. An administrator can give it."
        )


def allowed_roots() -> Roots:
    """Return the deployment's roots, from its configuration only.

    Raises:
        HTTPException: 503: the configuration has paths that are none.
    """
    from tradewind.deployment.fleet import deployment_roots

    try:
        return deployment_roots()
    except StorageError as error:
        raise HTTPException(503, f"allowed_roots in the [tradewind] section of airflow.cfg: {error}") from None


AllowedRoots = Annotated[Roots, Depends(allowed_roots)]


@functools.cache
def declare_data_permission() -> None:
    """Create the permission in FAB's tables, where it can then be given to roles, and give it to ``Admin``.

    FAB knows the permissions of its own views only, and its commands and settings refuse others. Other auth managers
    decide by name.
    """
    fab: Any = sys.modules.get("airflow.providers.fab.auth_manager.fab_auth_manager")
    manager: Any = get_auth_manager()
    if fab is None or not isinstance(manager, fab.FabAuthManager):
        return
    try:
        with manager.flask_app.app_context():
            security = manager.security_manager
            permission = security.create_permission("can_read", DATA_RESOURCE)
            security.add_permission_to_role(security.find_role("Admin"), permission)
    except Exception:  # the pages about runs need no such permission
        logger.exception("Cannot create the permission %r, so no role can be given it.", DATA_RESOURCE)


_reads_logs: Final = requires_access_dag("GET", DagAccessEntity.TASK_LOGS)


def may_read_logs(request: Request, user: Annotated[BaseUser, Depends(get_user)]) -> None:
    """Refuse users who may not read the logs of the DAG's tasks.

    Raises:
        HTTPException: 403: they may not.
    """
    try:
        _reads_logs(request, user)
    except HTTPException as error:
        raise HTTPException(error.status_code, NO_LOGS) from None


_reads_connections: Final = requires_access_connection("GET")


async def may_read_clusters(request: Request, user: Annotated[BaseUser, Depends(get_user)]) -> bool:
    """Return whether the user passes ``READS_CLUSTERS``: the home page asks for every user, and none is refused."""
    try:
        await _reads_connections(request, user)
    except HTTPException:
        return False
    return True


READS_RUN: Final = [Depends(plain_ids), Depends(requires_access_dag("GET", DagAccessEntity.XCOM))]
"""For what belongs to a DAG: its id is in the path, as ``dag_id``."""
READS_LOGS: Final = [Depends(may_read_logs)]
"""In addition to READS_RUN, for what may show rows of data, as the log of the task does: in errors, for example."""
READS_DATA: Final = [Depends(may_read_data)]
"""For files below the allowed roots. A route also checks each path by ``deployment_roots()``."""
READS_CLUSTERS: Final = [Depends(_reads_connections)]
"""For facts about clusters and tokens."""
ASKS_FOR_CLUSTERS: Final = [Depends(may_read_clusters)]
"""For a route that answers users without ``READS_CLUSTERS`` too, and tells them nothing."""
