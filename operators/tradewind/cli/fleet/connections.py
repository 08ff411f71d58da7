"""``tradewind cluster connections``: Airflow's connections follow the fleet file, or it is said in what they do not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tradewind.cli.errors import UsageError
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import json_lines, say, write_lines
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError

if TYPE_CHECKING:
    from tradewind.deployment.connection_store import ComparedConnection


def connections(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print how each connection is; with ``--apply`` write those that are not as the file has them. 1: some are not.

    Raises:
        UsageError: There is no Airflow here.
        FleetError: Airflow's database cannot be used.
    """
    if find_spec("airflow") is None:
        raise UsageError("connections are Airflow's, which is not installed here: run this where Airflow is set up.")
    if arguments.replace and not arguments.apply:
        raise UsageError("--replace goes with --apply: without it nothing is written.")
    enter_airflow()
    clusters = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    widths = max(len(one.connection) for one in clusters), max(len(one.name) for one in clusters)
    handled = []
    for cluster in clusters:
        handled.append(one := _handled(cluster, is_apply=arguments.apply, is_replace=arguments.replace))
        if not arguments.json:
            write_lines(_lines(one.compared, widths))
        one.tell()
    if arguments.json:
        from tradewind.deployment.connection_store import compared_json

        write_lines(json_lines([compared_json(one.compared) for one in handled]))
    return 0 if all(one.is_well for one in handled) else 1


def renew_connections(clusters: Sequence[FleetCluster]) -> None:
    """Have those connections that are there follow the file, where Airflow is set up; else say so, and go on."""
    if find_spec("airflow") is None:
        say("Connections are renewed where Airflow is: 'airflow tradewind cluster connections --apply'.")
        return
    enter_airflow()
    from tradewind.deployment.connection_store import ConnectionState, compare_connection

    try:
        for cluster in clusters:
            if compare_connection(cluster, None).state is not ConnectionState.MISSING:
                _handled(cluster, is_apply=True, is_replace=False).tell()
    except FleetError as error:
        say(f"The connections are left as they are: {error}")


@dataclass(frozen=True)
class _Handled:
    """How a connection was found, whether it is as it should be now, and what to say of it besides."""

    compared: ComparedConnection
    is_well: bool
    sentences: tuple[str, ...]

    def tell(self) -> None:
        for sentence in self.sentences:
            say(sentence)


def _handled(cluster: FleetCluster, *, is_apply: bool, is_replace: bool) -> _Handled:
    from tradewind.deployment.connection_store import ConnectionState, compare_connection, write_connection

    address, unknown = _address(cluster)
    compared = compare_connection(cluster, address)
    if compared.state is ConnectionState.AS_IN_FILE:
        return _Handled(compared, True, unknown)
    if not is_apply:
        return _Handled(compared, False, unknown)
    if compared.state is ConnectionState.ELSEWHERE:
        sentence = (
            f"{compared.conn_id} is read from {compared.source} and not from Airflow's database: change it there."
        )
        return _Handled(compared, False, (*unknown, sentence))
    fields = ", ".join(each.field for each in compared.differences)
    if compared.state is ConnectionState.BY_HAND and not is_replace:
        sentence = (
            f"{compared.conn_id} was made by hand and differs in {fields}: left as it is. --replace writes over it."
        )
        return _Handled(compared, False, (*unknown, sentence))
    write_connection(cluster, address)
    about = f", in which {fields} were others" if fields else ""
    return _Handled(compared, True, (*unknown, f"Wrote connection {compared.conn_id}{about}."))


def _address(cluster: FleetCluster) -> tuple[str | None, tuple[str, ...]]:
    """That of its head, or why it is not known."""
    from tradewind.deployment.fleet_connection import head_address
    from tradewind.ray_jobs.errors import RayJobsError

    try:
        return head_address(cluster), ()
    except (RayJobsError, FleetError) as error:
        return None, (f"The address of {cluster.name} is left as it is: {error}",)


def _lines(compared: ComparedConnection, widths: tuple[int, int]) -> list[str]:
    line = f"{compared.conn_id.ljust(widths[0])}  {compared.cluster.ljust(widths[1])}  {compared.state}"
    return [line, *(f"    {difference}" for difference in compared.differences)]
