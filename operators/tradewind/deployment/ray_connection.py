"""The ``ray`` connection: from an Airflow connection to a Ray cluster."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError, slice_type
from tradewind.deployment.fleet_connection import fleet_cluster, head_address, no_such_cluster
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.cluster import BadTokenFileError, RayCluster, read_token_file
from tradewind.ray_jobs.errors import (
    BadAddressError,
    BadTokenError,
    RayAuthenticationError,
    RayJobsError,
    RayUnreachableError,
)
from tradewind.steps import SecretReference

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from tradewind.ray_jobs.client import RayJobs

# The token of a ``ray`` connection: from its password field, a file of mode 0600, or Secret Manager; one of the three.
#
# Wherever it comes from, it is masked in logs before anyone can use it. What Secret Manager gave, or why it gave
# nothing, is kept in this process for a while, so that hundreds of tasks on one cluster ask once.

CACHE_TTL_S = 300.0
FAILURE_TTL_S = 15.0
_NOT_SHOWN = "(not shown, for it may be the token itself)"


def token_of(connection: Connection) -> str | None:
    """The token that ``connection`` names, masked in logs from now on; None if it names none. It may block.

    Raises:
        BadTokenError: There are two sources, or the one that there is does not give a token.
        RayUnreachableError: Secret Manager does not answer.
    """
    token = _read(connection)
    if token:
        from airflow.sdk.log import mask_secret

        mask_secret(token)
    return token


def drop_cached_token(connection: Connection) -> bool:
    """Drop what is kept for ``connection``, because the cluster refuses it; whether asking anew can help."""
    return secret_tokens.forget(_text(connection.extra_dejson, "token_secret"))


def _read(connection: Connection) -> str | None:
    extra = connection.extra_dejson
    file, secret = _text(extra, "token_file"), _text(extra, "token_secret")
    whose = f"Connection {connection.conn_id!r}"
    if sum(map(bool, (connection.password, file, secret))) > 1:
        raise BadTokenError(
            f"{whose} names its token more than once: fill in one of password, token_file and token_secret."
        )
    if file:
        return _token_in_file(file, whose)
    if secret:
        return _token_in_secret(secret, whose)
    return connection.password or None


def _text(extra: Mapping[str, Any], name: str) -> str:
    return str(extra.get(name) or "").strip()


def _token_in_file(path: str, whose: str) -> str:
    if not os.path.isabs(path) or "\0" in path:
        raise BadTokenError(
            f"{whose}: token_file names no whole path (it is not shown, for it may be the token itself): give an "
            "absolute path."
        )
    try:
        return read_token_file(path)
    except BadTokenFileError as error:
        raise BadTokenError(f"{whose}: token_file {path} {error}") from None
    except OSError as error:
        shown = path if os.path.isdir(os.path.dirname(path)) and path.count("/") > 1 else _NOT_SHOWN
        raise BadTokenError(f"{whose}: token_file {shown} cannot be read here ({error.strerror}).") from None


def _token_in_secret(name: str, whose: str) -> str:
    reference = SecretReference.parse(name)
    if reference is None or reference.version is None:
        raise BadTokenError(
            f"{whose}: token_secret is no name of a secret (it is not shown, for it may be the token itself): write "
            "projects/PROJECT/secrets/SECRET."
        )
    return secret_tokens.get(name, lambda: _fetch(reference, whose))


def _fetch(reference: SecretReference, whose: str) -> str:
    from tradewind.cloud_tpu.secret_manager import SecretManagerError, SecretManagerUnreachableError, read_secret

    try:
        token = read_secret(str(reference)).strip()
    except SecretManagerUnreachableError as error:
        raise RayUnreachableError(f"{whose}: the token cannot be read from {reference}: {error}.") from None
    except SecretManagerError as error:
        raise BadTokenError(f"{whose}: the token cannot be read from {reference}: {error}.") from None
    if not token:
        raise BadTokenError(f"{whose}: {reference} is empty.")
    return token


@dataclass
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: str | RayJobsError | None = field(default=None, repr=False)
    until: float = 0.0


class TokenCache:
    """What was fetched, by the name of its secret, for ``CACHE_TTL_S``; a failure for ``FAILURE_TTL_S``.

    Threads that want the same secret at once wait for one of them to fetch it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def get(self, name: str, fetch: Callable[[], str]) -> str:
        """The token in the secret ``name``."""
        with self._lock:
            kept = self._kept.setdefault(name, _Kept())
        with kept.lock:
            if kept.found is None or self._clock() >= kept.until:
                self._renew(kept, fetch)
            if isinstance(kept.found, RayJobsError):
                raise type(kept.found)(*kept.found.args)
            assert kept.found is not None
            return kept.found

    def forget(self, name: str) -> bool:
        """Fetch it anew next time; whether anything was kept."""
        with self._lock:
            return self._kept.pop(name, None) is not None

    def _renew(self, kept: _Kept, fetch: Callable[[], str]) -> None:
        try:
            kept.found, lifetime = fetch(), CACHE_TTL_S
        except RayJobsError as error:
            kept.found, lifetime = error.with_traceback(None), FAILURE_TTL_S
        kept.until = self._clock() + lifetime


secret_tokens = TokenCache()


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
            if not drop_cached_token(connection):
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
        return synthetic_connection(cluster, self.ray_conn_id)

    @classmethod
    async def _found_from_trigger(cls, ray_conn_id: str) -> Connection:
        with suppress(AirflowNotFoundException):
            return await cls.aget_connection(ray_conn_id)
        cluster = await asyncio.to_thread(fleet_cluster, ray_conn_id)
        if cluster is None:
            raise no_such_cluster(ray_conn_id)
        with suppress(AirflowNotFoundException):
            return await cls.aget_connection(cluster.connection)
        return synthetic_connection(cluster, ray_conn_id)

    @classmethod
    async def cluster_from_trigger(cls, ray_conn_id: str) -> RayCluster:
        """The same as ``cluster``, for the triggerer's event loop, which it does not block."""
        connection = _of_type_ray(await cls._found_from_trigger(ray_conn_id))
        return await asyncio.to_thread(lambda: cluster_of(_with_address(connection)))

    @classmethod
    async def reload_cluster(cls, ray_conn_id: str) -> RayCluster:
        """The same, because the cluster refuses the token: none that was kept is used."""
        connection = _of_type_ray(await cls._found_from_trigger(ray_conn_id))
        drop_cached_token(connection)
        return await asyncio.to_thread(lambda: cluster_of(_with_address(connection)))

    def test_connection(self) -> tuple[bool, str]:
        """What the connection form's Test button shows."""
        from importlib.metadata import version

        from tradewind.ray_jobs.probe import check_connection

        try:
            connection = self._connection()
            drop_cached_token(connection)  # whoever asks wants to know how it is now
            cluster = cluster_of(connection)
            _slice_types(connection)
            return True, check_connection(cluster).sentence(cluster, version("ray"))
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


def synthetic_connection(cluster: FleetCluster, conn_id: str) -> Connection:
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
