"""Compare ``ray`` connections in Airflow's database with the fleet file, and write them.

A connection that this module wrote names its cluster in the extra ``fleet_cluster``. Any other was created by a user
and is replaced only on request. Only values that follow from the fleet file are compared and written: ``ca``,
``verify`` and other extras of users stay.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from airflow.models.connection import Connection
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from tradewind.deployment.ray_connection import RayHook, address_of, extras_of
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.steps import SecretReference

_MARK: Final = "fleet_cluster"
_SET: Final = "(set)"
_DESCRIPTION: Final = "Written from the fleet file by 'tradewind cluster connections --apply'"


class ConnectionStoreError(FleetError):
    """Airflow's database cannot be used."""


class ConnectionState(StrEnum):
    """State of a connection in relation to the fleet file."""

    AS_IN_FILE = "as in the file"
    MISSING = "missing"
    DIFFERS = "differs"
    BY_HAND = "differs, made by hand"
    ELSEWHERE = "differs, not in Airflow's database"
    """Airflow reads it from the environment or a secrets backend, which precede its database."""


@dataclass(frozen=True)
class FieldDifference:
    """A field that differs from the fleet file; a secret is only shown as set."""

    field: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.field}: {self.found or 'nothing'} -> {self.wanted or 'nothing'}"


@dataclass(frozen=True)
class ComparedConnection:
    """Comparison of one cluster's connection."""

    conn_id: str
    cluster: str
    state: ConnectionState
    differences: tuple[FieldDifference, ...] = ()
    source: str = "Airflow's database"
    """Where Airflow reads it."""


def compare_connection(cluster: FleetCluster, address: str | None) -> ComparedConnection:
    """Compare the connection of ``cluster``; without ``address``, its address is not compared.

    Raises:
        ConnectionStoreError: Airflow's database cannot be used.
    """
    source, found = _find_connection(cluster.connection)
    if found is None:
        return ComparedConnection(cluster.connection, cluster.name, ConnectionState.MISSING)
    differences = tuple(_differences(found, cluster, address))
    state = _state(found, source, cluster) if differences else ConnectionState.AS_IN_FILE
    return ComparedConnection(cluster.connection, cluster.name, state, differences, source or "Airflow's database")


def write_connection(cluster: FleetCluster, address: str | None) -> None:
    """Write the fleet file's values to the connection of ``cluster``, and ``address`` if given.

    Raises:
        ConnectionStoreError: Airflow's database cannot be used, or another process has just written the connection.
    """
    with _database() as session:
        row = session.scalar(select(Connection).where(Connection.conn_id == cluster.connection))
        extra, port = {}, None
        host, schema, login = address, None, None
        if row is not None:  # removed and added: Airflow's model would keep the former password
            extra, login = extras_of(row), row.login
            if address is None:
                host, schema, port = row.host, row.schema, row.port
            session.delete(row)
            session.flush()
        extra = {key: value for key, value in extra.items() if key != "token_file"}
        fields: dict[str, Any] = {"host": host, "schema": schema, "port": port, "login": login}
        new = Connection(conn_id=cluster.connection, conn_type=RayHook.conn_type, description=_DESCRIPTION, **fields)
        new.set_extra(json.dumps({**extra, **cluster.connection_extra}))
        session.add(new)


def ray_connection_ids() -> list[str]:
    """Return the IDs of the ``ray`` connections in Airflow's database; none if it cannot be used."""
    try:
        with _database() as session:
            return list(session.scalars(select(Connection.conn_id).where(Connection.conn_type == RayHook.conn_type)))
    except ConnectionStoreError:
        return []


def _find_connection(conn_id: str) -> tuple[str, Connection | None]:
    """Return the connection, and its source if that is not Airflow's database."""
    from airflow.configuration import ensure_secrets_loaded
    from airflow.secrets.metastore import MetastoreBackend

    for backend in ensure_secrets_loaded():
        if not isinstance(backend, MetastoreBackend) and (found := backend.get_connection(conn_id)) is not None:
            return type(backend).__name__, found
    with _database() as session:
        row = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
        if row is not None:
            session.expunge(row)
        return "", row


def _state(found: Connection, source: str, cluster: FleetCluster) -> ConnectionState:
    if source:
        return ConnectionState.ELSEWHERE
    is_own = extras_of(found).get(_MARK) == cluster.name
    return ConnectionState.DIFFERS if is_own else ConnectionState.BY_HAND


def _differences(found: Connection, cluster: FleetCluster, address: str | None) -> Iterator[FieldDifference]:
    if found.conn_type != RayHook.conn_type:
        yield FieldDifference("type", str(found.conn_type), RayHook.conn_type)
    if address is not None and address_of(found) != address:  # an address is no secret, unless it holds a user
        shown = address_of(found) if found.host else ""
        yield FieldDifference("address", "(not shown)" if "@" in shown else shown, address)
    extra, wanted = extras_of(found), cluster.connection_extra
    for name in ("region", "bucket", "slice_types", "token_secret"):
        actual, expected = _normal(name, extra.get(name)), _normal(name, wanted[name])
        if actual != expected:
            yield FieldDifference(name, actual, expected)
    for name, value in (("password", found.password), ("token_file", extra.get("token_file"))):
        if value:
            yield FieldDifference(name, _SET, "")


def _normal(name: str, value: Any) -> str:
    """Return the value of an extra in one spelling, for comparison and display."""
    if name == "slice_types":
        items: Iterable[Any] = value.split(",") if isinstance(value, str) else value or []
        return ", ".join(sorted(str(item).strip() for item in items))
    if name == "token_secret" and value:
        reference = SecretReference.parse(str(value))
        return "(not shown)" if reference is None else str(reference)
    return str(value or "")


@contextmanager
def _database() -> Iterator[Any]:
    logging.getLogger("airflow.models.connection").setLevel(logging.WARNING)
    try:
        with create_session() as session:
            yield session
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()[0]
        raise ConnectionStoreError(
            f"Airflow's database cannot be used here ({reason}): run this where Airflow is set up, after 'airflow db "
            "migrate'."
        ) from None


def compared_json(compared: ComparedConnection) -> Mapping[str, Any]:
    """Return the comparison as JSON, for programs."""
    return {
        "connection": compared.conn_id,
        "cluster": compared.cluster,
        "state": compared.state.name.lower(),
        "source": compared.source,
        "differences": [
            {"field": each.field, "found": each.found, "wanted": each.wanted} for each in compared.differences
        ],
    }
