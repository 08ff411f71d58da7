"""``tradewind cluster connections``: Airflow's connections follow the fleet file, or it is said in what they do not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tradewind.cli.errors import UsageError
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import say, write_lines
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
    results = [_handled(cluster, is_apply=arguments.apply, is_replace=arguments.replace) for cluster in clusters]
    if arguments.json:
        from tradewind.deployment.connection_store import compared_json

        write_lines([json.dumps([compared_json(compared) for compared, _ in results], indent=2)])
    else:
        write_lines(_table([compared for compared, _ in results]))
    return 0 if all(is_well for _, is_well in results) else 1


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
                _handled(cluster, is_apply=True, is_replace=False)
    except FleetError as error:
        say(f"The connections are left as they are: {error}")


def _handled(cluster: FleetCluster, *, is_apply: bool, is_replace: bool) -> tuple[ComparedConnection, bool]:
    """How the connection of ``cluster`` was found, and whether it is as it should be now."""
    from tradewind.deployment.connection_store import ConnectionState, compare_connection, write_connection

    address = _address(cluster)
    compared = compare_connection(cluster, address)
    if compared.state is ConnectionState.AS_IN_FILE:
        return compared, True
    if not is_apply:
        return compared, False
    if compared.state is ConnectionState.ELSEWHERE:
        say(f"{compared.conn_id} is read from {compared.source} and not from Airflow's database: change it there.")
        return compared, False
    fields = ", ".join(each.field for each in compared.differences)
    if compared.state is ConnectionState.BY_HAND and not is_replace:
        say(f"{compared.conn_id} was made by hand and differs in {fields}: left as it is. --replace writes over them.")
        return compared, False
    write_connection(cluster, address)
    about = f", in which {fields} were others" if fields else ""
    say(f"Wrote connection {compared.conn_id}{about}.")
    return compared, True


def _address(cluster: FleetCluster) -> str | None:
    from tradewind.deployment.fleet_connection import head_address
    from tradewind.ray_jobs.errors import RayJobsError

    try:
        return head_address(cluster)
    except (RayJobsError, FleetError) as error:
        say(f"The address of {cluster.name} is left as it is: {error}")
        return None


def _table(found: list[ComparedConnection]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*((each.conn_id, each.cluster) for each in found), strict=True)]
    lines = []
    for each in found:
        lines.append(f"{each.conn_id.ljust(widths[0])}  {each.cluster.ljust(widths[1])}  {each.state}")
        lines += [f"    {difference}" for difference in each.differences]
    return lines
