"""Choose a command's cluster and its token.

The cluster is that of ``--address``, else of ``--cluster`` or ``--config``, else of ``RAY_ADDRESS``, else the default
cluster of the fleet file, if there is one, else this machine. A token for an address comes from ``RAY_AUTH_TOKEN``,
``RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``, as for Ray's own commands; a connection and a cluster of the fleet
have their own. It is sent only in the headers of requests.

``--cluster`` and ``--config`` name an Airflow connection or a cluster of the fleet file. The path of a cluster's
generated file means its name. A connection with that id comes first, then the one that the fleet file names for the
cluster of that name, then the cluster itself. Within Airflow the command connects to its head directly; elsewhere
through a tunnel.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
HOME_TOKEN_FILE: Final = ".ray/auth_token"
TOKEN_SOURCES: Final = f"RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/{HOME_TOKEN_FILE}"
_AT_AN_ADDRESS: Final = {
    "the host of connection {name}": "the address",
    "the host of the connection": "the address",
    "as host of the connection": "in the address",
    "name it as 'CA bundle' of the connection, or do not check it": "name its file with --ca",
    "name that as 'CA bundle' of the connection": "name their file with --ca",
    "the 'CA bundle' of the connection": "--ca",
    "the 'CA bundle'": "--ca",
}
"""Parts of errors about a connection -> what replaces them for a cluster at an address."""


@contextmanager
def chosen_cluster(
    arguments: argparse.Namespace, default: str | None, env: Mapping[str, str], home: Path
) -> Iterator[RayCluster]:
    """Yield the named cluster, else ``default``, else that at the address given or in ``env``.

    Set ``arguments.named`` to the named cluster; to None for one at an address. Options that were not given are set to
    None; several ``--cluster``, as ``tradewind cluster`` accepts them, must name one.

    Args:
        default: The connection to use where no option names a cluster; None outside Airflow.

    Raises:
        UsageError: No cluster or two are named.
        CommandError: The token cannot be read, or the cluster cannot be reached.
    """
    for name in ("address", "cluster", "config", "ca"):
        vars(arguments).setdefault(name, None)
    if isinstance(arguments.cluster, list):
        arguments.cluster = _one_of(arguments.cluster)
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
        raise UsageError("--ca needs --address: a connection names its own CA bundle.")
    with named_cluster(named, is_in_airflow=default is not None) as cluster:
        yield cluster


def _one_of(names: Sequence[str]) -> str:
    if len(set(names)) > 1:
        raise UsageError(f"This command is about one cluster, and {' and '.join(names)} are named: name one of them.")
    return names[0]


def _at_address(arguments: argparse.Namespace, env: Mapping[str, str], home: Path) -> RayCluster:
    """Return the cluster at the address given or in ``env``.

    Raises:
        UsageError: There is no address.
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
            f"The token from {TOKEN_SOURCES} has a space, a line break or another character that is invalid in an HTTP "
            "header. Enter it again."
        ) from None


def options_for(named: NamedCluster | None, cluster: RayCluster) -> list[str]:
    """Return the options for this cluster on another command line."""
    return ["--address", cluster.address] if named is None else list(named.words)


def is_temporary_address(named: NamedCluster | None, cluster: RayCluster) -> bool:
    """Return whether the address is that of a tunnel to ``named``, which ends with this command."""
    return named is not None and urlsplit(cluster.address).hostname == _LOOPBACK


def is_at_address(cluster: RayCluster) -> bool:
    """Return whether the cluster was given by its address, and not by a name."""
    return cluster.name == _name_of(cluster.address)


def cluster_label(cluster: RayCluster) -> str:
    """Return the cluster's label for messages: its name if given, since a tunnel's address is meaningless."""
    return f"The Ray cluster at {cluster.address}" if is_at_address(cluster) else f"Cluster {cluster.name}"


def connected_cluster(conn_id: str) -> RayCluster:
    """Return the cluster of an Airflow connection, also of one in Airflow's database."""
    try:
        enter_airflow()
        from tradewind.deployment.ray_connection import RayHook
    except ImportError:
        raise UsageError(
            f"{conn_id} is an Airflow connection, and Airflow is not installed here: run this where it is."
        ) from None
    return RayHook(conn_id).cluster()


def token_in(env: Mapping[str, str], home: Path) -> str | None:
    """Return the token of this environment, if any.

    Raises:
        CommandError: Its file cannot be used.
    """
    if token := env.get("RAY_AUTH_TOKEN", "").strip():
        return token
    if path := env.get("RAY_AUTH_TOKEN_PATH", "").strip():
        try:
            return _token_in_file(expanded(path, "RAY_AUTH_TOKEN_PATH"), "RAY_AUTH_TOKEN_PATH")
        except BadPathError as error:
            raise CommandError(str(error)) from None
    file = home / HOME_TOKEN_FILE
    return _token_in_file(file, f"~/{HOME_TOKEN_FILE}") if file.exists() else None


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
        raise UsageError(f"{source} has a user or a password (not shown): remove it.")
    try:
        RayCluster(source, address)
    except BadAddressError:
        raise UsageError(
            f"{source} is not a dashboard address (not shown, because it may hold a secret): write http://HOST:8265."
        ) from None


def explain_error(error: RayJobsError, cluster: RayCluster | None = None) -> str:
    """Explain an error to a user of the command line; ``cluster`` is set if the user gave its address.

    The errors' own texts are for users who write Python and have an Airflow connection.
    """
    text = _as_options(str(error))
    if cluster is None:
        return text
    here = f"The Ray cluster at {cluster.address}"
    if isinstance(error, RayAuthenticationError):
        if cluster.token is None:
            return f"{here} requires a token: put it into {TOKEN_SOURCES}."
        return f"{here} refuses the token: put the right one into {TOKEN_SOURCES}."
    text = text.replace(str(cluster), here)
    for old, new in _AT_AN_ADDRESS.items():
        text = text.replace(old.format(name=repr(cluster.name)), new)
    return text


def _as_options(text: str) -> str:
    """Replace names of Python arguments in an error by options of the command line."""
    text = re.sub(r"secrets=\{'(\w+)': '([^']+)'\}", r"--secret \1=\2", text)
    return text.replace("pip_dependency_groups", "--extra").replace("with excludes,", "with --exclude,")


@dataclass(frozen=True)
class NamedCluster:
    """A cluster given by a name.

    Attributes:
        fleet: The fleet that may have it; None without a fleet file.
        words: The options for it on another command line.
    """

    name: str
    fleet: Fleet | None
    words: tuple[str, ...]

    @property
    def of_fleet(self) -> FleetCluster | None:
        """Return the fleet's cluster of that name, if any."""
        return self.fleet.called(self.name) if self.fleet else None

    @staticmethod
    def of(name: str | None, config: str | None) -> NamedCluster:
        """Read ``--cluster`` and ``--config``, of which at least one is given.

        Raises:
            UsageError: They name two clusters, or a path is not an up-to-date cluster file.
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
        """Return the default cluster of the fleet file, and tell the user; None if there is no file.

        Raises:
            CommandError: The fleet file cannot be used.
        """
        fleet = fleet_here()
        if fleet is None:
            return None
        say(f"Using cluster {fleet.default_cluster}, the default of {fleet.file}.")
        return NamedCluster(fleet.default_cluster, fleet, ("--cluster", fleet.default_cluster))


@contextmanager
def named_cluster(named: NamedCluster, *, is_in_airflow: bool) -> Iterator[RayCluster]:
    """Yield the ``named`` cluster, reachable within the block.

    Args:
        is_in_airflow: The command runs where Airflow does, and so in the clusters' network.

    Raises:
        UsageError: It does not exist, or cannot be looked up here.
        CommandError: It cannot be reached.
        RayJobsError: The connection is invalid, or the cluster refuses the token or does not answer.
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

            connection = stack.enter_context(connected(found))
        except FleetError as error:
            raise CommandError(str(error)) from None
        yield connection


def fleet_here() -> Fleet | None:
    """Load the fleet of the environment, Airflow's configuration, or this folder; None if there is no file.

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
    """Return the cluster of Airflow's connection; None if there is none and the fleet has the cluster."""
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
