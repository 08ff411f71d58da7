"""The cluster that ``--cluster`` and ``--config`` mean: an Airflow connection, or a cluster of the fleet file.

A path is that of a cluster's generated file, and stands for its name. A connection with that id comes first, then the
one that the file names for the cluster of that name, then the cluster itself. Within Airflow its head is talked to
directly; from anywhere else through a tunnel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.fleet.fleet_file import chosen_fleet_file, cluster_at, fleet_file_of, is_path, take_config
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import say
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import BadFileError, FleetError, meant
from tradewind.fleet.file.load import load_fleet
from tradewind.ray_jobs.cluster import RayCluster


@dataclass(frozen=True)
class NamedCluster:
    """What is meant by a name.

    Attributes:
        fleet: The fleet whose clusters may have it; None if there is no fleet file here.
        words: The options that say the same on another command line.
    """

    name: str
    fleet: Fleet | None
    words: tuple[str, ...]

    @property
    def of_fleet(self) -> FleetCluster | None:
        """The cluster of the fleet that has it, if one does."""
        return self.fleet.called(self.name) if self.fleet else None

    @staticmethod
    def of(name: str | None, config: str | None) -> NamedCluster:
        """What ``--cluster`` and ``--config`` say, of which there is one at least.

        Raises:
            UsageError: They name two clusters, or a path is of no cluster's generated file as it should be.
            CommandError: The fleet file cannot be used.
        """
        options = argparse.Namespace(config=config, fleet=None)
        given = (("--cluster", name), ("--config", config))
        words = tuple(word for option, value in given if value is not None for word in (option, value))
        if paths := take_config(options):
            if name is not None:
                raise UsageError(f"--cluster {name} and --config {config} both name a cluster: give one of them.")
            (name,) = paths
        if name is not None and is_path(name):
            fleet = _loaded(chosen_fleet_file(options.fleet) if options.fleet else fleet_file_of(Path(name)))
            try:
                return NamedCluster(cluster_at(Path(name), fleet).name, fleet, words)
            except FleetError as error:
                raise CommandError(str(error)) from None
        found = _loaded(chosen_fleet_file(options.fleet)) if options.fleet else fleet_here()
        return NamedCluster(name or (found.default_cluster if found else ""), found, words)

    @staticmethod
    def default_here() -> NamedCluster | None:
        """The default cluster of the fleet file here, of which the person is told; None if there is no file.

        Raises:
            CommandError: The fleet file cannot be used.
        """
        fleet = fleet_here()
        if fleet is None:
            return None
        say(f"On cluster {fleet.default_cluster}, the default of {fleet.file}.")
        return NamedCluster(fleet.default_cluster, fleet, ("--cluster", fleet.default_cluster))


@contextmanager
def named_cluster(named: NamedCluster, *, is_in_airflow: bool) -> Iterator[RayCluster]:
    """The cluster that is ``named``, which can be reached for the length of the block.

    Args:
        is_in_airflow: This runs where Airflow does, and so in the clusters' network.

    Raises:
        UsageError: There is none, or what it is cannot be known here.
        CommandError: It cannot be reached.
        RayJobsError: The connection is no good, or the cluster refuses the token or does not answer.
    """
    name, fleet, found = named.name, named.fleet, named.of_fleet
    if find_spec("airflow") is not None and (stored := _of_airflow(name, fleet, found, is_in_airflow)) is not None:
        yield stored
        return
    if found is None:
        raise UsageError(_unknown(name, fleet))
    with ExitStack() as stack:
        try:
            from tradewind.fleet.access.reached import reached

            there = stack.enter_context(reached(found))
        except FleetError as error:
            raise CommandError(str(error)) from None
        yield there


def fleet_here() -> Fleet | None:
    """The fleet of the environment, of Airflow's configuration, or of this folder; None if there is no file.

    Raises:
        CommandError: The file cannot be used.
    """
    try:
        file = chosen_fleet_file(None)
    except UsageError:
        return None
    return _loaded(file)


def _loaded(file: Path) -> Fleet:
    try:
        return load_fleet(file)
    except BadFileError as error:
        first, *others = str(error).splitlines()
        more = f" (and {len(others)} more: tradewind cluster list names them)" if others else ""
        raise CommandError(f"The fleet file cannot be used as it is: {first}{more}") from None


def _of_airflow(name: str, fleet: Fleet | None, found: FleetCluster | None, is_in_airflow: bool) -> RayCluster | None:
    """The cluster as Airflow has it; None if it has no such connection, and the fleet has the cluster."""
    enter_airflow()
    from tradewind.deployment.connection_store import ray_connection_ids
    from tradewind.deployment.fleet_connection import no_such_cluster
    from tradewind.deployment.ray_connection import RayHook

    for conn_id in dict.fromkeys((name, found.connection if found else name)):
        if (stored := RayHook(conn_id).stored_cluster()) is not None:
            return stored
    if found is None:
        raise no_such_cluster(name, fleet, ray_connection_ids())
    return RayHook(name).cluster() if is_in_airflow else None


def _unknown(name: str, fleet: Fleet | None) -> str:
    if fleet is None:
        return (
            f"--cluster {name} is an Airflow connection or a cluster of the fleet file, and there is neither Airflow "
            "nor a fleet file here: give --address URL, or set TRADEWIND_FLEET."
        )
    return f"{fleet.file} describes no cluster {name!r}: {meant(name, fleet.names())}"
