"""Who may see what: a DAG's readers its runs, those with a permission of its own the data, connections' readers the clusters.

Each is a list of dependencies for a route. The ids in a path are checked before any query.
"""

from __future__ import annotations

from typing import Annotated, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_connection, requires_access_dag
from fastapi import Depends, HTTPException, Request

DATA_RESOURCE: Final = "Tradewind Data"
"""The name of the permission: with FAB, ``airflow roles add-perms ROLE -r "Tradewind Data" -a can_read``."""
BAD_IDS: Final = "No run, DAG or task has this id."


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
        raise HTTPException(403, f"Your role has no permission to read {DATA_RESOURCE!r}. An administrator can give it.")


READS_RUN: Final = [Depends(plain_ids), Depends(requires_access_dag("GET", DagAccessEntity.XCOM))]
"""For what belongs to a DAG: its id is in the path, as ``dag_id``."""
READS_DATA: Final = [Depends(may_read_data)]
"""For files below the allowed roots. A route also checks each path by ``deployment_roots()``."""
READS_CLUSTERS: Final = [Depends(requires_access_connection("GET"))]
"""For facts about clusters and tokens."""
