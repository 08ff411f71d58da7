"""The ``ray`` connection: from an Airflow connection to a Ray cluster."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError, slice_type
from tradewind.deployment.fleet_connection import fleet_cluster, head_address, no_such_cluster
from tradewind.deployment.ray_token import forget_token, token_of
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import BadAddressError, RayAuthenticationError, RayJobsError

if TYPE_CHECKING:
    from tradewind.ray_jobs.client import RayJobs


class RayHook(BaseHook):
    """Talks to the Ray cluster that a ``ray`` connection describes.

    The host is the dashboard's address (``http://HOST:8265``). A cluster that asks for a token gets it from one of: the
    password field, the extra ``token_file`` (path, on the Airflow machines, of a file with mode 0600), or the extra
    ``token_secret`` (``projects/PROJECT/secrets/SECRET`` in Secret Manager). Further extras: ``verify`` (check the TLS
    certificate), ``ca`` (path of a CA bundle), ``region``, ``bucket``, ``slice_types`` (the types of TPU slices that
    the cluster has, as a list or as text with commas).

    ``ray_conn_id`` may also be the name of a cluster in the fleet file. A connection with that id comes first, then the
    one that the file names for the cluster; if there is neither, the cluster is found by its labels in Google Cloud.
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
            BadAddressError: There is no such connection, or it is no good.
        """
        from tradewind.ray_jobs.client import RayJobs

        connection = self._connection()
        try:
            return RayJobs(cluster_of(connection))
        except RayAuthenticationError:
            if not forget_token(connection):
                raise
        return RayJobs(cluster_of(connection))  # the token in Secret Manager may be a new one

    def cluster(self) -> RayCluster:
        """The cluster that the connection describes.

        Raises:
            BadAddressError: There is no such connection, its host is no URL, or its token cannot be had.
            RayUnreachableError: Its token is in Secret Manager, which does not answer.
        """
        return cluster_of(self._connection())

    def bucket(self) -> str | None:
        """The bucket that the cluster's connection names, if any."""
        return self._described().extra_dejson.get("bucket")

    def region(self) -> str | None:
        """The region that the cluster's connection names, if any; None too if there is no such connection."""
        try:
            return self._described().extra_dejson.get("region")
        except BadAddressError:  # whoever connects to the cluster says so
            return None

    def slice_types(self) -> tuple[str, ...]:
        """The types of TPU slices that the cluster says it has; none if it does not say.

        Raises:
            BadAddressError: The connection names a type that does not exist.
        """
        connection = self._found()
        return () if connection is None else _slice_types(_of_type_ray(connection))

    def _connection(self) -> Connection:
        """The connection, with an address."""
        return _with_address(self._described())

    def _described(self) -> Connection:
        """The connection, without an address if it is made up from the fleet file.

        Raises:
            BadAddressError: There is none, and no cluster of this name.
        """
        connection = self._found()
        if connection is None:
            raise no_such_cluster(self.ray_conn_id)
        return _of_type_ray(connection)

    def stored_cluster(self) -> RayCluster | None:
        """The cluster of a connection that Airflow has with this very id; None if it has none. Raises the same."""
        try:
            return cluster_of(_with_address(_of_type_ray(self.get_connection(self.ray_conn_id))))
        except AirflowNotFoundException:
            return None

    def _found(self) -> Connection | None:
        with suppress(AirflowNotFoundException):
            return self.get_connection(self.ray_conn_id)
        cluster = fleet_cluster(self.ray_conn_id)
        if cluster is None:
            return None
        with suppress(AirflowNotFoundException):
            return self.get_connection(cluster.connection)
        return made_up(cluster, self.ray_conn_id)

    @classmethod
    async def _found_from_trigger(cls, ray_conn_id: str) -> Connection:
        with suppress(AirflowNotFoundException):
            return await cls.aget_connection(ray_conn_id)
        cluster = await asyncio.to_thread(fleet_cluster, ray_conn_id)
        if cluster is None:
            raise no_such_cluster(ray_conn_id)
        with suppress(AirflowNotFoundException):
            return await cls.aget_connection(cluster.connection)
        return made_up(cluster, ray_conn_id)

    @classmethod
    async def cluster_from_trigger(cls, ray_conn_id: str) -> RayCluster:
        """The same as ``cluster``, for the triggerer's event loop, which it does not block."""
        connection = _of_type_ray(await cls._found_from_trigger(ray_conn_id))
        return await asyncio.to_thread(lambda: cluster_of(_with_address(connection)))

    @classmethod
    async def cluster_read_again(cls, ray_conn_id: str) -> RayCluster:
        """The same, because the cluster refuses the token: none that was kept is used."""
        connection = _of_type_ray(await cls._found_from_trigger(ray_conn_id))
        forget_token(connection)
        return await asyncio.to_thread(lambda: cluster_of(_with_address(connection)))

    def test_connection(self) -> tuple[bool, str]:
        """What the connection form's Test button shows."""
        from importlib.metadata import version

        from tradewind.ray_jobs.probe import glance

        try:
            connection = self._connection()
            forget_token(connection)  # whoever asks wants to know how it is now
            cluster = cluster_of(connection)
            _slice_types(connection)
            return True, glance(cluster).sentence(cluster, version("ray"))
        except RayJobsError as error:
            return False, str(error)


def cluster_of(connection: Connection) -> RayCluster:
    """The cluster that ``connection`` describes; a host without a scheme gets the schema field's, or http.

    It may read a file or ask Secret Manager.
    """
    address = address_of(connection)
    verify = _verify(connection.extra_dejson, connection.conn_id)
    RayCluster(connection.conn_id, address)  # an address that is no good is the first thing to say
    return RayCluster(connection.conn_id, address, token_of(connection), verify)


def address_of(connection: Connection) -> str:
    """The address in the fields of ``connection``, whether or not it is one."""
    host = connection.host or ""
    address = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if connection.port and not address.rpartition(":")[2].isdigit():
        address = f"{address}:{connection.port}"
    return address


def _verify(extra: Mapping[str, Any], conn_id: str) -> bool | str:
    """Whether to check the certificate, or the CA bundle to check it with; texts come from connections in the env."""
    if str(extra.get("verify", True)).strip().lower() in ("false", "0", "no"):
        return False
    ca = str(extra.get("ca") or "").strip()
    if ca and not os.path.isfile(ca):
        raise BadAddressError(f"Connection {conn_id!r}: there is no CA bundle {ca!r} on this machine.")
    return ca or True


def _slice_types(connection: Connection) -> tuple[str, ...]:
    given = connection.extra_dejson.get("slice_types") or []
    names = given.split(",") if isinstance(given, str) else given
    try:
        return tuple(slice_type(str(name).strip()).name for name in names if str(name).strip())
    except (UnknownSliceTypeError, TypeError) as error:
        raise BadAddressError(f"Connection {connection.conn_id!r}: 'slice_types' is {given!r}: {error}") from error


def _of_type_ray(connection: Connection) -> Connection:
    """``connection``, if it describes a Ray cluster: the password of another service must not be sent to its host.

    Raises:
        BadAddressError: It is of another type.
    """
    if connection.conn_type != RayHook.conn_type:
        raise BadAddressError(
            f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}, and a Ray cluster needs one of "
            f"type {RayHook.conn_type!r}: name another, or correct its type."
        )
    return connection


def made_up(cluster: FleetCluster, conn_id: str) -> Connection:
    """What the connection of a cluster would say, but for its address, which is asked for when it is needed."""
    return Connection(conn_id=conn_id, conn_type=RayHook.conn_type, extra=json.dumps(cluster.connection_extra))


def _with_address(connection: Connection) -> Connection:
    """``connection``, with where the head is now if it is the one of a fleet cluster and says nothing."""
    name = connection.extra_dejson.get("fleet_cluster")
    if connection.host or not name:
        return connection
    cluster = fleet_cluster(str(name))
    if cluster is not None:
        connection.host = head_address(cluster)
    return connection
