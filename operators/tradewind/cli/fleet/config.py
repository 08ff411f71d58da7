"""Commands about what the fleet file describes: cluster files, connections and image repositories.

``update-configs`` and ``connections`` make cluster files and Airflow's connections match the fleet file, or report the
differences. ``list`` prints the clusters in the file, and asks no cluster for its state. ``validate`` finds errors in
cluster files before ``ray up`` does on paid machines; it also takes a fleet file. ``registry set-cleanup-policy`` sets
which images the repositories remove by themselves.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tradewind.cli.fleet.fleet_file import load_chosen_fleet, print_warnings
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import CommandError, UsageError, json_lines, say, write_lines
from tradewind.fleet.cloud.google_api import CloudError, google_api
from tradewind.fleet.cloud.registry import (
    NEWEST_KEPT,
    OLDEST_DAYS,
    CleanupState,
    ImageRepository,
    cleanup_state,
    fleet_repositories,
    set_cleanup,
)
from tradewind.fleet.cluster_file_checks import check_cluster_file
from tradewind.fleet.cluster_files import GeneratedFiles
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import BadFileError, FleetError
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.inventory import CloudZone
from tradewind.fleet.yaml_schema import read_yaml, read_yaml_with_problems
from tradewind.text import format_columns

if TYPE_CHECKING:
    from tradewind.deployment.connection_store import ComparedConnection

_LIST_HEADER = ("CLUSTER", "ZONE", "GENERATION", "SLICES", "BUCKET", "TAG", "CONNECTION", "STAGING")
_WORD: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")


def update_configs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Write the outdated files; with ``--check`` only name them.

    Raises:
        UsageError: Jinja is not installed.
        CommandError: ``--check`` found outdated files, or a cluster removed from the fleet file still has nodes.
        FleetError: The template cannot be used, or a user's own file has that path.
    """
    if find_spec("jinja2") is None:
        raise UsageError("update-configs needs Jinja for the template: install airflow-provider-tradewind[fleet].")
    print_warnings(fleet.clusters.values())
    files = GeneratedFiles.of(fleet)
    if arguments.check:
        _refuse_stale(files, arguments.fleet)
    else:
        _refuse_running(files)
        for sentence in files.update():
            say(sentence)
    if not files.stale and not files.surplus:
        say(f"{len(files.texts)} files match {fleet.file}.")
    return 0


def _refuse_running(files: GeneratedFiles) -> None:
    """Refuse if a renamed or removed cluster has nodes: no command would see them any more."""
    for file in files.surplus:
        name, *zone = _name_and_zone(file)
        advice = f"'tradewind cluster stop {name} --project {zone[0]} --zone {zone[1]}'"
        try:
            count = CloudZone(*zone).inventory().of(name).count
        except CloudError as error:
            raise CommandError(
                f"{file} belongs to a removed cluster, and its nodes cannot be listed: {error} If it has none, remove "
                f"the file; else {advice} deletes them. Nothing was written."
            ) from None
        if count:
            raise CommandError(
                f"Cluster {name} is no longer in the fleet file, but has {count} nodes in {', '.join(zone)}: {advice} "
                "deletes them. If you renamed it, use the old name until then. Nothing was written."
            )


def _name_and_zone(file: Path) -> tuple[str, str, str]:
    """Return name, project and zone of the cluster in a cluster file."""
    try:
        content = read_yaml(file).value
        name, provider = content["cluster_name"], content["provider"]
        project, zone = provider["project_id"], provider["availability_zone"]
    except (BadFileError, KeyError, TypeError):
        name = project = zone = ""
    if not all(isinstance(text, str) and _WORD.fullmatch(text) for text in (name, project, zone)):
        raise CommandError(
            f"{file} belongs to a removed cluster, but does not name it: check that it has no nodes, and remove the "
            "file. Nothing was written."
        )
    return name, project, zone


def _refuse_stale(files: GeneratedFiles, fleet_option: str | None) -> None:
    stale, surplus = (", ".join(map(str, found)) for found in (files.stale, files.surplus))
    problems = [f"These files differ from the fleet file: {stale}."] if stale else []
    problems += [f"These files belong to removed clusters: {surplus}."] if surplus else []
    if problems:
        option = f" --fleet {shlex.quote(fleet_option)}" if fleet_option else ""
        raise CommandError(f"{' '.join(problems)} To update them: tradewind cluster update-configs{option}")


def connections(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Compare connections with the file; ``--apply`` writes those that differ. Return 1 if any still differs.

    Raises:
        UsageError: Airflow is not installed.
        FleetError: Airflow's database cannot be used.
    """
    if find_spec("airflow") is None:
        raise UsageError(
            "connections belong to Airflow, which is not installed here: run this where Airflow is set up."
        )
    if arguments.replace and not arguments.apply:
        raise UsageError("--replace needs --apply: without it nothing is written.")
    enter_airflow()
    clusters = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    widths = max(len(one.connection) for one in clusters), max(len(one.name) for one in clusters)
    handled = []
    for cluster in clusters:
        handled.append(one := _handle_connection(cluster, is_apply=arguments.apply, is_replace=arguments.replace))
        if not arguments.json:
            write_lines(_lines(one.compared, widths))
        one.report()
    if arguments.json:
        from tradewind.deployment.connection_store import compared_json

        write_lines(json_lines([compared_json(one.compared) for one in handled]))
    return 0 if all(one.matches for one in handled) else 1


def renew_connections(clusters: Sequence[FleetCluster]) -> None:
    """Update existing connections from the file; warn and continue where Airflow is not set up."""
    if find_spec("airflow") is None:
        say(
            "Connections are not updated, because Airflow is not installed here. Run 'airflow tradewind cluster "
            "connections --apply' where it is."
        )
        return
    enter_airflow()
    from tradewind.deployment.connection_store import ConnectionState, compare_connection

    try:
        for cluster in clusters:
            if compare_connection(cluster, None).state is not ConnectionState.MISSING:
                _handle_connection(cluster, is_apply=True, is_replace=False).report()
    except FleetError as error:
        say(f"The connections are unchanged: {error}")


@dataclass(frozen=True)
class _Handled:
    """State of a connection, whether it matches now, and messages about it."""

    compared: ComparedConnection
    matches: bool
    sentences: tuple[str, ...]

    def report(self) -> None:
        for sentence in self.sentences:
            say(sentence)


def _handle_connection(cluster: FleetCluster, *, is_apply: bool, is_replace: bool) -> _Handled:
    from tradewind.deployment.connection_store import ConnectionState, compare_connection, write_connection

    address, unknown = _address(cluster)
    compared = compare_connection(cluster, address)
    if compared.state is ConnectionState.AS_IN_FILE:
        return _Handled(compared, True, unknown)
    if not is_apply:
        return _Handled(compared, False, unknown)
    if compared.state is ConnectionState.ELSEWHERE:
        sentence = (
            f"Connection {compared.conn_id} is read from {compared.source}, not from Airflow's database: change it "
            "there."
        )
        return _Handled(compared, False, (*unknown, sentence))
    fields = ", ".join(each.field for each in compared.differences)
    if compared.state is ConnectionState.BY_HAND and not is_replace:
        sentence = (
            f"Connection {compared.conn_id} was made by hand, differs in {fields} and is unchanged: --replace "
            "overwrites it."
        )
        return _Handled(compared, False, (*unknown, sentence))
    write_connection(cluster, address)
    changed = f"; {fields} differed" if fields else ""
    return _Handled(compared, True, (*unknown, f"Wrote connection {compared.conn_id}{changed}."))


def _address(cluster: FleetCluster) -> tuple[str | None, tuple[str, ...]]:
    """Return the head's address, or why it is unknown."""
    from tradewind.deployment.fleet_connection import head_address
    from tradewind.ray_jobs.errors import RayJobsError

    try:
        return head_address(cluster), ()
    except (RayJobsError, FleetError) as error:
        return None, (f"The address of {cluster.name} is unchanged: {error}",)


def _lines(compared: ComparedConnection, widths: tuple[int, int]) -> list[str]:
    line = f"{compared.conn_id.ljust(widths[0])}  {compared.cluster.ljust(widths[1])}  {compared.state}"
    return [line, *(f"    {difference}" for difference in compared.differences)]


def list_clusters(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print the chosen clusters in the order of the file; the default one has a star."""
    chosen = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    print_warnings(chosen)
    if arguments.json:
        write_lines(json_lines([cluster_json(cluster, fleet) for cluster in chosen]))
    else:
        write_lines(clusters_table(chosen, fleet))
    return 0


def cluster_json(cluster: FleetCluster, fleet: Fleet) -> dict[str, Any]:
    """Describe a cluster for programs, without the names of its secrets."""
    return {
        "name": cluster.name,
        "is_default": cluster.name == fleet.default_cluster,
        "project": cluster.project,
        "zone": cluster.zone,
        "region": cluster.region,
        "generation": cluster.generation.name,
        "slices": [
            {"type": pool.kind.name, "node_type": pool.node_type, "min": pool.minimum, "max": pool.maximum}
            for pool in cluster.pools
        ],
        "bucket": cluster.bucket,
        "image": cluster.full_image,
        "capacity": cluster.capacity.value,
        "connection": cluster.connection,
        "staging": cluster.staging,
        "owner": cluster.owner,
    }


def clusters_table(clusters: list[FleetCluster], fleet: Fleet) -> list[str]:
    """Format the clusters in columns with a header."""
    return format_columns([_LIST_HEADER, *(_row(cluster, fleet) for cluster in clusters)])


def _row(cluster: FleetCluster, fleet: Fleet) -> tuple[str, ...]:
    return (
        f"{cluster.name}{'*' if cluster.name == fleet.default_cluster else ''}",
        cluster.zone,
        cluster.generation.name,
        _slices(cluster),
        cluster.bucket,
        cluster.tag,
        cluster.connection,
        "yes" if cluster.staging else "no",
    )


def _slices(cluster: FleetCluster) -> str:
    """Describe the base type and each type with a minimum, with their limits; count the others."""
    base, *others = cluster.pools
    named = [base, *(pool for pool in others if pool.minimum)]
    texts = [f"{pool.kind.name} {pool.minimum}..{pool.maximum}" for pool in named]
    rest = len(cluster.pools) - len(named)
    return ", ".join([*texts, *([f"{rest} more"] if rest else [])])


def set_cleanup_policy(arguments: argparse.Namespace) -> int:
    """Set the clean-up policy of each repository, or with ``--check`` only print it.

    An error with one repository does not stop the others.

    Raises:
        UsageError: No repository is named, or both ways are used.
        CommandError: A policy could not be set, or is not the wanted one.
    """
    client = google_api("artifactregistry")
    repositories = _named(arguments)
    wrong = sum(not _handle_repository(repository, client, is_check=arguments.check) for repository in repositories)
    if wrong:
        to_do = "have another policy" if arguments.check else "could not be set"
        raise CommandError(f"{wrong} of {len(repositories)} repositories {to_do}.")
    return 0


def _named(arguments: argparse.Namespace) -> list[ImageRepository]:
    if arguments.all:
        if arguments.region or arguments.project:
            raise UsageError("--all takes project and regions from the fleet file: leave --region and --project out.")
        found = fleet_repositories(load_chosen_fleet(arguments.fleet))
        named = [each for each in found if arguments.repository in (None, each.name)]
        if not named:
            raise UsageError(f"No cluster of the fleet has its image in a repository {arguments.repository!r}.")
        return named
    if not arguments.repository or not arguments.region:
        raise UsageError("Name a repository and its --region, or all repositories of the fleet with --all.")
    project = arguments.project or load_chosen_fleet(arguments.fleet).cluster().project
    return [ImageRepository(project, region, arguments.repository) for region in dict.fromkeys(arguments.region)]


def _handle_repository(repository: ImageRepository, client: object, *, is_check: bool) -> bool:
    """Set or check the policy of ``repository``; return whether it is the wanted one."""
    try:
        state = cleanup_state(repository, client)
        if not is_check and not state.is_right:
            set_cleanup(repository, state, client)
    except CloudError as error:
        say(str(error))
        return False
    write_lines([f"{repository.path}: {_words(state, is_check=is_check)}"])
    return state.is_right or not is_check


def _words(state: CleanupState, *, is_check: bool) -> str:
    others = f"; also {', '.join(state.others)}, which stays" if state.others else ""
    if state.is_right:
        return f"removes what is older than {OLDEST_DAYS} days, but the newest {NEWEST_KEPT}{others}"
    if not is_check:
        return f"now removes what is older than {OLDEST_DAYS} days, but the newest {NEWEST_KEPT}{others}"
    missing = f"lacks {' and '.join(state.missing)}" if state.missing else "only says what it would remove (dry run)"
    return f"{missing}{others}"


def validate_files(arguments: argparse.Namespace) -> int:
    """Check every file, and print the problems of all.

    Raises:
        CommandError: There are problems.
        FleetError: Google's client for Python is not installed.
    """
    count, bad = len(arguments.files), 0
    for file in arguments.files:
        try:
            content = read_yaml_with_problems(Path(file)).value
            if isinstance(content, dict) and "clusters" in content and "cluster_name" not in content:
                print_warnings(load_fleet(Path(file)).clusters.values())
            else:
                check_cluster_file(Path(file))
        except BadFileError as error:
            write_lines(str(error).splitlines())
            bad += 1
    if bad:
        raise CommandError(f"{bad} of {count} files cannot be used as they are.")
    say(f"{count} {'file is' if count == 1 else 'files are'} valid, as far as can be checked without Google Cloud.")
    return 0
