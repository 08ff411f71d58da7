"""Ray cluster of a ``ray`` Airflow connection.

A connection's token comes from exactly one of three sources: its password field, a file of mode 0600, or Secret
Manager. It is masked in logs before any code can use it. A token from Secret Manager, or its error, is cached in this
process for a while, so that hundreds of tasks on one cluster cause one request.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import BaseHook, Connection, conf
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
from tradewind.serialization.job_start import SHIP, JobStart
from tradewind.steps import SecretReference, truncated_repr

if TYPE_CHECKING:
    from tradewind.ray_jobs.client import RayJobs


CACHE_TTL_S = 300.0
FAILURE_TTL_S = 15.0
_MAX_PATH_CHARS = 1000
_NOT_SHOWN = "(not shown, for it may be the token itself)"


def token_of(connection: Connection) -> str | None:
    """Return the token of ``connection``, masked in logs from now on; None if it has none. May block.

    Raises:
        BadTokenError: There are two sources, or the source yields no token.
        RayUnreachableError: Secret Manager does not answer.
    """
    token = _token(connection)
    if token:
        from airflow.sdk.log import mask_secret

        mask_secret(token)
    return token


def drop_cached_token(connection: Connection) -> bool:
    """Drop the refused token of ``connection`` from the cache; return whether fetching it again can help."""
    return secret_tokens.forget(_text(extras_of(connection), "token_secret"))


def _token(connection: Connection) -> str | None:
    extra = extras_of(connection)
    file, secret = _text(extra, "token_file"), _text(extra, "token_secret")
    subject = f"Connection {connection.conn_id!r}"
    if sum(map(bool, (connection.password, file, secret))) > 1:
        raise BadTokenError(
            f"{subject} names its token more than once: fill in one of password, token_file and token_secret."
        )
    if file:
        return _token_in_file(file, subject)
    if secret:
        return _token_in_secret(secret, subject)
    return connection.password or None


def extras_of(connection: Connection) -> dict[str, Any]:
    """Return the extras of ``connection``, masked in logs from now on.

    Raises:
        BadAddressError: They are no JSON object, or hold a number that is too long.
    """
    try:
        extra = connection.extra_dejson if json.loads(connection.extra or "{}") else {}
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise BadAddressError(
            f"Connection {connection.conn_id!r}: its extra fields (not shown, as they may hold a secret) are no JSON "
            'object: write them as {"region": "us-central2"}.'
        )
    return extra


def _text_extra(connection: Connection, name: str) -> str | None:
    value = extras_of(connection).get(name)
    if value is not None and not isinstance(value, str):
        raise BadAddressError(
            f"Connection {connection.conn_id!r}: {name!r} must be text, but is {truncated_repr(value)}."
        )
    return value


def _text(extra: Mapping[str, Any], name: str) -> str:
    return str(extra.get(name) or "").strip()


def _token_in_file(path: str, subject: str) -> str:
    if not os.path.isabs(path) or "\0" in path:
        raise BadTokenError(f"{subject}: token_file is not an absolute path {_NOT_SHOWN}: give an absolute path.")
    try:
        return read_token_file(path)
    except BadTokenFileError as error:
        raise BadTokenError(f"{subject}: token_file {path} {error}") from None
    except OSError as error:
        shown = path if os.path.isdir(os.path.dirname(path)) and path.count("/") > 1 else _NOT_SHOWN
        raise BadTokenError(f"{subject}: token_file {shown} cannot be read here ({error.strerror}).") from None


def _token_in_secret(name: str, subject: str) -> str:
    reference = SecretReference.parse(name)
    if reference is None or reference.version is None:
        raise BadTokenError(
            f"{subject}: token_secret is not the name of a secret {_NOT_SHOWN}: write projects/PROJECT/secrets/SECRET."
        )
    return secret_tokens.get(name, lambda: _fetch(reference, subject))


def _fetch(reference: SecretReference, subject: str) -> str:
    from tradewind.cloud_tpu.secret_manager import SecretManagerError, SecretManagerUnreachableError, read_secret

    try:
        token = read_secret(str(reference)).strip()
    except SecretManagerUnreachableError as error:
        raise RayUnreachableError(f"{subject}: the token cannot be read from {reference}: {error}.") from None
    except SecretManagerError as error:
        raise BadTokenError(f"{subject}: the token cannot be read from {reference}: {error}.") from None
    if not token:
        raise BadTokenError(f"{subject}: {reference} is empty.")
    return token


@dataclass
class _CachedToken:
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: str | RayJobsError | None = field(default=None, repr=False)
    until: float = 0.0


class TokenCache:
    """Tokens by the name of their secret, cached for ``CACHE_TTL_S``; failures for ``FAILURE_TTL_S``.

    Threads that need the same secret at once wait for one of them to fetch it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: dict[str, _CachedToken] = {}

    def get(self, name: str, fetch: Callable[[], str]) -> str:
        """Return the token in the secret ``name``."""
        with self._lock:
            cached = self._cached.setdefault(name, _CachedToken())
        with cached.lock:
            if cached.found is None or self._clock() >= cached.until:
                self._renew(cached, fetch)
            if isinstance(cached.found, RayJobsError):
                raise type(cached.found)(*cached.found.args)
            assert cached.found is not None
            return cached.found

    def forget(self, name: str) -> bool:
        """Drop the entry, so that the next call fetches it; return whether there was one."""
        with self._lock:
            return self._cached.pop(name, None) is not None

    def _renew(self, cached: _CachedToken, fetch: Callable[[], str]) -> None:
        try:
            cached.found, lifetime = fetch(), CACHE_TTL_S
        except RayJobsError as error:
            cached.found, lifetime = error.with_traceback(None), FAILURE_TTL_S
        cached.until = self._clock() + lifetime


secret_tokens = TokenCache()


class RayHook(BaseHook):
    """Access to the Ray cluster that a ``ray`` connection describes.

    The host is the dashboard's address (``http://HOST:8265``). A cluster that requires a token gets it from one of: the
    password field, the extra ``token_file`` (path, on the Airflow machines, of a file with mode 0600), or the extra
    ``token_secret`` (``projects/PROJECT/secrets/SECRET`` in Secret Manager). Further extras: ``verify`` (check the TLS
    certificate), ``ca`` (path of a CA bundle), ``region``, ``bucket``, ``slice_types`` (types of the cluster's TPU
    slices, as a list or as text with commas), ``ship`` (when Tradewind travels with a job) and ``python`` (the
    cluster's interpreter for it).

    ``ray_conn_id`` may also be the name of a cluster in the fleet file. A connection with that ID precedes the one that
    the file names for the cluster. Without both, the cluster is found by its labels in Google Cloud.
    """

    conn_name_attr = "ray_conn_id"
    default_conn_name = "ray_default"
    conn_type = "ray"
    hook_name = "Ray"

    def __init__(self, ray_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id

    def get_conn(self) -> RayJobs:
        """Return the client of the cluster's jobs.

        Raises:
            RayUnreachableError: The cluster does not answer.
            RayAuthenticationError: The cluster refuses the token.
            BadAddressError: There is no such connection, or it is invalid.
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
        """Return the cluster that the connection describes.

        Raises:
            BadAddressError: There is no such connection, its host is no URL, or its token is unavailable.
            RayUnreachableError: Its token is in Secret Manager, which does not answer.
        """
        return cluster_of(self._connection())

    def bucket(self) -> str | None:
        """Return the bucket that the cluster's connection names, if any."""
        return _text_extra(self._described(), "bucket")

    def region(self) -> str | None:
        """Return the region that the cluster's connection names; None also without a connection."""
        try:
            return _text_extra(self._described(), "region")
        except BadAddressError:  # connecting to the cluster reports it
            return None

    def slice_types(self) -> tuple[str, ...]:
        """Return the types of TPU slices that the cluster's connection names; none if it names none.

        Raises:
            BadAddressError: The connection names a type that does not exist.
        """
        connection = self._find()
        return () if connection is None else _slice_types(_of_type_ray(connection))

    def job_start(self) -> JobStart:
        """Return how Tradewind starts on the cluster: the extras ``ship`` and ``python``, else the settings.

        Raises:
            BadAddressError: An extra or the setting has a wrong value.
        """
        return _job_start(self._described())

    def _connection(self) -> Connection:
        """Return the connection, with an address."""
        return _with_address(self._described())

    def _described(self) -> Connection:
        """Return the connection, without an address if it is built from the fleet file.

        Raises:
            BadAddressError: There is no such connection and no such cluster.
        """
        connection = self._find()
        if connection is None:
            raise no_such_cluster(self.ray_conn_id)
        return _of_type_ray(connection)

    def stored_cluster(self) -> RayCluster | None:
        """Return the cluster of Airflow's connection with this ID; None without one. Raises as ``cluster``."""
        try:
            return cluster_of(_with_address(_of_type_ray(self.get_connection(self.ray_conn_id))))
        except AirflowNotFoundException:
            return None

    def _find(self) -> Connection | None:
        with suppress(AirflowNotFoundException):
            return self.get_connection(self.ray_conn_id)
        cluster = fleet_cluster(self.ray_conn_id)
        if cluster is None:
            return None
        with suppress(AirflowNotFoundException):
            return self.get_connection(cluster.connection)
        return synthetic_connection(cluster, self.ray_conn_id)

    @classmethod
    async def cluster_from_trigger(cls, ray_conn_id: str) -> RayCluster:
        """Return the same as ``cluster`` without blocking the triggerer's event loop."""
        return await cls._in_thread(cls(ray_conn_id).cluster)

    @classmethod
    async def reload_cluster(cls, ray_conn_id: str) -> RayCluster:
        """Return the same without cached tokens, because the cluster refuses the token."""
        return await cls._in_thread(cls(ray_conn_id)._reload)

    def _reload(self) -> RayCluster:
        connection = self._described()
        drop_cached_token(connection)
        return cluster_of(_with_address(connection))

    @staticmethod
    async def _in_thread(read: Callable[[], RayCluster]) -> RayCluster:
        """Read in a thread: ``aget_connection`` finds nothing in a trigger that ``airflow dags test`` runs in line."""
        from asgiref.sync import sync_to_async

        return await sync_to_async(read, thread_sensitive=False)()

    def test_connection(self) -> tuple[bool, str]:
        """Return the result of the connection form's Test button."""
        from importlib.metadata import version

        from tradewind.ray_jobs.probe import check_connection

        try:
            connection = self._connection()
            drop_cached_token(connection)  # the user wants the present state
            cluster = cluster_of(connection)
            _slice_types(connection)
            _job_start(connection)
            return True, check_connection(cluster).sentence(cluster, version("ray"))
        except RayJobsError as error:
            return False, str(error)


def cluster_of(connection: Connection) -> RayCluster:
    """Return the cluster of ``connection``; a host without a scheme gets the schema field's, or http.

    It may read a file or query Secret Manager.
    """
    address = address_of(connection)
    named = _port(connection.host or "")
    if connection.port and named not in (None, connection.port):
        raise BadAddressError(
            f"Connection {connection.conn_id!r}: its host names port {named}, and its port field "
            f"{connection.port}: empty one of them."
        )
    verify = _verify(extras_of(connection), connection.conn_id)
    RayCluster(connection.conn_id, address)  # an invalid address is reported first
    return RayCluster(connection.conn_id, address, token_of(connection), verify)


def address_of(connection: Connection) -> str:
    """Return the address in the fields of ``connection``, valid or not."""
    host = (connection.host or "").strip().rstrip("/")
    with suppress(ValueError):
        host = f"[{IPv6Address(host)}]"
    address = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if connection.port and _port(address) is None:
        scheme, _, rest = address.partition("://")
        place, slash, path = rest.partition("/")
        address = f"{scheme}://{place.removesuffix(':')}:{connection.port}{slash}{path}"
    return address


def _port(address: str) -> int | None:
    """Return the port that ``address`` names, with or without a scheme; None also if it is invalid."""
    try:
        return urlsplit(address if "://" in address else f"//{address}").port
    except ValueError:
        return None


def _verify(extra: Mapping[str, Any], conn_id: str) -> bool | str:
    """Return whether to check the certificate, or the CA bundle for it; variables provide it as text."""
    if str(extra.get("verify", True)).strip().lower() in ("false", "0", "no"):
        return False
    ca = str(extra.get("ca") or "").strip()
    if ca and not os.path.isfile(ca):
        raise BadAddressError(f"Connection {conn_id!r}: there is no CA bundle {ca!r} on this machine.")
    return ca or True


def _slice_types(connection: Connection) -> tuple[str, ...]:
    given = extras_of(connection).get("slice_types") or []
    names = given.split(",") if isinstance(given, str) else given
    try:
        return tuple(slice_type(str(name).strip()).name for name in names if str(name).strip())
    except (UnknownSliceTypeError, TypeError) as error:
        shown = truncated_repr(given)
        raise BadAddressError(f"Connection {connection.conn_id!r}: 'slice_types' is {shown}: {error}") from error


def _job_start(connection: Connection) -> JobStart:
    ship = _text_extra(connection, "ship") or conf.get("tradewind", "ship", fallback=None) or "auto"
    if ship not in SHIP:
        raise BadAddressError(
            f"Connection {connection.conn_id!r}: ship, here or in [tradewind], must be one of {', '.join(SHIP)}, but "
            f"is {truncated_repr(ship)}."
        )
    python = (_text_extra(connection, "python") or "").strip() or None
    if python is not None and (not python.isprintable() or len(python) > _MAX_PATH_CHARS):
        raise BadAddressError(
            f"Connection {connection.conn_id!r}: 'python' is {truncated_repr(python)}, which is no path of an "
            "interpreter: name one such as /opt/ray/bin/python."
        )
    return JobStart(ship, python)


def _of_type_ray(connection: Connection) -> Connection:
    """Return ``connection`` if it is a Ray connection: another service's password must not reach its host.

    Raises:
        BadAddressError: It has another type.
    """
    if connection.conn_type != RayHook.conn_type:
        raise BadAddressError(
            f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}, and a Ray cluster needs one of "
            f"type {RayHook.conn_type!r}: name another, or correct its type."
        )
    return connection


def synthetic_connection(cluster: FleetCluster, conn_id: str) -> Connection:
    """Return a cluster's connection without its address, which is looked up when it is needed."""
    return Connection(conn_id=conn_id, conn_type=RayHook.conn_type, extra=json.dumps(cluster.connection_extra))


def _with_address(connection: Connection) -> Connection:
    """Return ``connection``; a fleet cluster's connection without a host gets the head's present address."""
    name = extras_of(connection).get("fleet_cluster")
    if connection.host or not name:
        return connection
    cluster = fleet_cluster(str(name))
    if cluster is not None:
        connection.host = head_address(cluster)
    return connection
