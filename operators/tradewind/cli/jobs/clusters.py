"""Which cluster a command is about, and the token for it.

``--address``, else what ``--cluster`` or ``--config`` names, an Airflow connection or a cluster of the fleet, else
``RAY_ADDRESS``, else the default cluster of the fleet file, if there is one, else this machine. A token for an address
comes from ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``, as for Ray's own commands; a connection
and a cluster of the fleet have their own. It goes into the requests' headers and nowhere else.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tradewind.cli.fleet.fleet_file import chosen_fleet_file, cluster_at, fleet_file_of, is_path, take_config
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import CommandError, UsageError, say
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import BadFileError, FleetError, nearest_names_hint
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.local_paths import BadPathError, expanded
from tradewind.ray_jobs.cluster import BadTokenFileError, RayCluster, read_token_file
from tradewind.ray_jobs.errors import BadAddressError, BadTokenError, RayAuthenticationError, RayJobsError

DEFAULT_ADDRESS: Final = "http://127.0.0.1:8265"
_LOOPBACK: Final = "127.0.0.1"
_TOKEN_FILE: Final = ".ray/auth_token"
TOKEN_SOURCES: Final = f"RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/{_TOKEN_FILE}"


@contextmanager
def chosen_cluster(
    arguments: argparse.Namespace, default: str | None, env: Mapping[str, str], home: Path
) -> Iterator[RayCluster]:
    """The cluster that is named, else ``default`` if there is one, else that at the address given or in ``env``.

    ``arguments.named`` is afterwards what was named; None if it is at an address.

    Args:
        default: The connection that is meant where nothing names a cluster; only within Airflow there is one.

    Raises:
        UsageError: They name none, or two.
        CommandError: The token cannot be read, or the cluster not be reached.
    """

    if arguments.address and (arguments.cluster or arguments.config):
        option = "--cluster" if arguments.cluster else "--config"
        raise UsageError(f"--address and {option} both name a cluster: give one of them.")
    named = None
    if arguments.cluster or arguments.config:
        named = NamedCluster.of(arguments.cluster, arguments.config)
    elif not arguments.address and default:
        named = NamedCluster.of(default, None)
    elif not arguments.address and not env.get("RAY_ADDRESS"):
        named = NamedCluster.default_here()
    arguments.named = named
    if named is None:
        yield _at_address(arguments, env, home)
        return
    if arguments.ca:
        raise UsageError("--ca goes with --address: a connection names its own CA bundle.")
    with named_cluster(named, is_in_airflow=default is not None) as cluster:
        yield cluster


def _at_address(arguments: argparse.Namespace, env: Mapping[str, str], home: Path) -> RayCluster:
    """The cluster at the address given or in ``env``.

    Raises:
        UsageError: They name none.
        CommandError: The token cannot be read.
    """
    address, source = arguments.address, "--address"
    if not address:
        address, source = env.get("RAY_ADDRESS") or DEFAULT_ADDRESS, "RAY_ADDRESS"
    _check_address(address, source)
    if arguments.ca and not os.path.isfile(arguments.ca):
        raise UsageError(f"--ca {arguments.ca}: there is no such file.")
    try:
        return RayCluster(_name_of(address), address, token_in(env, home), arguments.ca or True)
    except BadTokenError:
        raise CommandError(
            f"The token from {TOKEN_SOURCES} holds a space, a line break or another character that no HTTP header can "
            "carry: enter it anew."
        ) from None


def options_for(named: NamedCluster | None, cluster: RayCluster) -> list[str]:
    """The options that mean this cluster on another command line."""
    return ["--address", cluster.address] if named is None else list(named.words)


def is_temporary_address(named: NamedCluster | None, cluster: RayCluster) -> bool:
    """Whether the address is that of a tunnel to what was ``named``, which is gone when this command has ended."""
    return named is not None and urlsplit(cluster.address).hostname == _LOOPBACK


def is_at_address(cluster: RayCluster) -> bool:
    """Whether it was given by its address, and not by a name."""
    return cluster.name == _name_of(cluster.address)


def cluster_label(cluster: RayCluster) -> str:
    """How a sentence about it begins: what was named is called so, since a tunnel's address tells nobody anything."""
    return f"The Ray cluster at {cluster.address}" if is_at_address(cluster) else f"Cluster {cluster.name}"


def connected_cluster(conn_id: str) -> RayCluster:
    """The cluster of an Airflow connection, also of one that is kept in Airflow's database."""
    try:
        enter_airflow()
        from tradewind.deployment.ray_connection import RayHook
    except ImportError:
        raise UsageError(
            f"{conn_id} is an Airflow connection, and Airflow is not installed here: run this where it is."
        ) from None
    return RayHook(conn_id).cluster()


def token_in(env: Mapping[str, str], home: Path) -> str | None:
    """The token of this environment, if it has one.

    Raises:
        CommandError: There is a file for it that cannot be used.
    """
    if token := env.get("RAY_AUTH_TOKEN", "").strip():
        return token
    if path := env.get("RAY_AUTH_TOKEN_PATH", "").strip():
        try:
            return _token_in_file(expanded(path, "RAY_AUTH_TOKEN_PATH"), "RAY_AUTH_TOKEN_PATH")
        except BadPathError as error:
            raise CommandError(str(error)) from None
    file = home / _TOKEN_FILE
    return _token_in_file(file, f"~/{_TOKEN_FILE}") if file.exists() else None


def _name_of(address: str) -> str:
    return urlsplit(address).netloc


def _token_in_file(file: Path, source: str) -> str:
    try:
        return read_token_file(file)
    except BadTokenFileError as error:
        raise CommandError(f"{source}: the token file {file} {error}") from None
    except OSError as error:
        raise CommandError(f"{source}: the token file {file} cannot be read ({error.strerror}).") from None


def _check_address(address: str, source: str) -> None:
    if "@" in address:
        raise UsageError(f"{source} holds a user or a password (it is not shown): take it out.")
    try:
        RayCluster(source, address)
    except BadAddressError:
        raise UsageError(
            f"{source} is no dashboard address (not shown, for it may hold a secret): write http://HOST:8265."
        ) from None


def explain_error(error: RayJobsError, cluster: RayCluster | None = None) -> str:
    """What to tell a person at the command line, who gave the address of ``cluster``, if that is set.

    The errors' own words are for people who write Python and have an Airflow connection.
    """
    text = _as_options(str(error))
    if cluster is None:
        return text
    here = f"The Ray cluster at {cluster.address}"
    if isinstance(error, RayAuthenticationError):
        if cluster.token is None:
            return f"{here} asks for a token: put it into {TOKEN_SOURCES}."
        return f"{here} refuses the token: put the right one into {TOKEN_SOURCES}."
    text = text.replace(str(cluster), here)
    for theirs, ours in _AT_AN_ADDRESS.items():
        text = text.replace(theirs.format(name=repr(cluster.name)), ours)
    return text


_AT_AN_ADDRESS: Final = {
    "the host of connection {name}": "the address",
    "the host of the connection": "the address",
    "as host of the connection": "in the address",
    "name it as 'CA bundle' of the connection, or do not check it": "name its file with --ca",
    "name that as 'CA bundle' of the connection": "name their file with --ca",
    "the 'CA bundle' of the connection": "--ca",
    "the 'CA bundle'": "--ca",
}


def _as_options(text: str) -> str:
    """Python's arguments in an error as the options of the command line."""

    text = re.sub(r"secrets=\{'(\w+)': '([^']+)'\}", r"--secret \1=\2", text)
    return text.replace("pip_dependency_groups", "--extra").replace("with excludes,", "with --exclude,")


# The cluster that ``--cluster`` and ``--config`` mean: an Airflow connection, or a cluster of the fleet file.
#
# A path is that of a cluster's generated file, and stands for its name. A connection with that id comes first, then the
# one that the file names for the cluster of that name, then the cluster itself. Within Airflow its head is talked to
# directly; from anywhere else through a tunnel.


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
            from tradewind.fleet.access.connect import connected

            there = stack.enter_context(connected(found))
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
    return f"{fleet.file} describes no cluster {name!r}: {nearest_names_hint(name, fleet.names())}"
