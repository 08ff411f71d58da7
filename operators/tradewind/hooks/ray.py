"""The ``ray`` connection: from an Airflow connection to a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import BadAddressError, RayJobsError

if TYPE_CHECKING:
    from tradewind.ray_jobs.client import RayJobs


class RayHook(BaseHook):
    """Talks to the Ray cluster that a ``ray`` connection describes.

    The host is the dashboard's address (``http://HOST:8265``), the password a bearer token if the cluster wants one.
    Extras: ``verify`` (check the TLS certificate), ``ca`` (path of a CA bundle), ``region``, ``bucket``.
    """

    conn_name_attr = "ray_conn_id"
    default_conn_name = "ray_default"
    conn_type = "ray"
    hook_name = "Ray"

    def __init__(self, ray_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id

    def get_conn(self) -> RayJobs:
        """The cluster's jobs.

        Raises:
            RayUnreachableError: It does not answer.
            RayAuthenticationError: It refuses the token.
        """
        from tradewind.ray_jobs.client import RayJobs

        return RayJobs(self.cluster())

    def cluster(self) -> RayCluster:
        """The cluster that the connection describes.

        Raises:
            BadAddressError: There is no such connection, or its host is no URL.
        """
        return cluster_of(self._connection())

    def bucket(self) -> str | None:
        """The bucket that the cluster's connection names, if any."""
        return self._connection().extra_dejson.get("bucket")

    def _connection(self) -> Connection:
        try:
            return self.get_connection(self.ray_conn_id)
        except AirflowNotFoundException as error:
            raise BadAddressError(
                f"There is no connection {self.ray_conn_id!r}: add one of type 'Ray' with the dashboard's address."
            ) from error

    @classmethod
    async def cluster_from_trigger(cls, ray_conn_id: str) -> RayCluster:
        """The same as ``cluster``, inside the triggerer's event loop."""
        return cluster_of(await cls.aget_connection(ray_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """What the connection form's Test button shows."""
        try:
            jobs = self.get_conn()
            return True, f"{jobs.cluster} runs Ray {jobs.version()}."
        except RayJobsError as error:
            return False, str(error)


def cluster_of(connection: Connection) -> RayCluster:
    """The cluster that ``connection`` describes; a host without a scheme gets the schema field's, or http."""
    extra: dict[str, Any] = connection.extra_dejson
    host = connection.host or ""
    address = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if connection.port and not address.rpartition(":")[2].isdigit():
        address = f"{address}:{connection.port}"
    verify = extra.get("ca") or extra.get("verify", True)
    return RayCluster(connection.conn_id, address, connection.password or None, verify)
