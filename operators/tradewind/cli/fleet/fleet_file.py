"""Choose the fleet file and its clusters: by name, or by the path of a cluster's generated file.

A path is accepted only while the file matches the fleet file: else its content and the command's effect would differ.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import UsageError, say
from tradewind.fleet.cluster_files import CLUSTERS_FOLDER, GeneratedFiles, is_generated
from tradewind.fleet.clusters import Fleet, FleetCluster, unknown_zone_warnings
from tradewind.fleet.errors import nearest_files_hint, nearest_names_hint
from tradewind.fleet.fleet_file import FLEET_VARIABLE, USUAL_FILE, load_fleet
from tradewind.fleet.local_paths import BadPathError, expanded
from tradewind.storage.bounded_read import read_local

_ENDINGS: Final = (".yaml", ".yml")
_MAX_BYTES: Final = 8 << 20
_RAY_CLUSTER: Final = re.compile(r"^cluster_name\s*:", re.MULTILINE)
_CONFIGURED_FILE: Final = "[tradewind] fleet_file"
_CLUSTER_FILE: Final = "The cluster file"


@contextmanager
def _bad_paths_refused() -> Iterator[None]:
    """Convert ``BadPathError`` to an error of the command line.

    Raises:
        UsageError: A path does not exist or cannot be followed.
    """
    try:
        yield
    except BadPathError as error:
        raise UsageError(str(error)) from None


def load_chosen_fleet(given: str | None) -> Fleet:
    """Load the fleet from the chosen file.

    Raises:
        UsageError: The file does not exist.
        BadFileError: The file cannot be used.
    """
    return load_fleet(chosen_fleet_file(given))


@_bad_paths_refused()
def chosen_fleet_file(given: str | None) -> Path:
    """Return the fleet file of the option, else of the environment, Airflow's configuration, or this folder.

    Raises:
        UsageError: The file does not exist.
    """
    source, text = _named_file(given)
    file = expanded(text, source)
    try:
        is_there = file.exists()
    except OSError as error:  # no access to a parent folder, or the name is too long
        raise UsageError(f"{source} {file} cannot be read ({error.strerror}).") from None
    if not is_there:
        raise UsageError(
            f"There is no fleet file {file}{nearest_files_hint(file)}: name it with --fleet, or set {FLEET_VARIABLE}."
        )
    return file


def _named_file(given: str | None) -> tuple[str, str]:
    """Return the source of the fleet file's path, and the path."""
    if given:
        return "--fleet", given
    if path := os.environ.get(FLEET_VARIABLE):
        return FLEET_VARIABLE, path
    if configured := _configured():
        return _CONFIGURED_FILE, configured
    return "The fleet file", str(USUAL_FILE)


def choose(arguments: argparse.Namespace) -> Fleet:
    """Load the fleet in the options; replace paths in ``arguments`` by the clusters' names.

    Raises:
        UsageError: The options do not go together, or a path is not an up-to-date cluster file.
        BadFileError: The fleet file cannot be used.
    """
    field = next((field for field in ("name", "names") if hasattr(arguments, field)), None)
    options = [*getattr(arguments, "cluster", []), *take_config(arguments)]
    if options and field is None:
        raise UsageError("This command is about the whole fleet: --config names the fleet file here, not a cluster.")
    value = getattr(arguments, field) if field else None
    given = [value] if isinstance(value, str) else value or []
    paths = [text for text in (*given, *options) if is_path(text)]
    fleet = load_chosen_fleet(arguments.fleet or (str(fleet_file_of(Path(paths[0]))) if paths else None))
    if field is not None:
        names = dict.fromkeys(_name(one, fleet) for one in (*given, *options))
        _set_clusters(arguments, field, list(names))
    return fleet


def print_warnings(clusters: Iterable[FleetCluster]) -> None:
    """Warn the user of probable typos."""
    for sentence in unknown_zone_warnings(clusters):
        say(sentence)


def take_config(arguments: argparse.Namespace) -> list[str]:
    """Move a fleet file in ``--config`` to ``--fleet``; return the paths of cluster files in it.

    Raises:
        UsageError: The file cannot be read, or both options name a fleet file.
    """
    config = getattr(arguments, "config", None)
    if config is None:
        return []
    text = _text_of(Path(config), "--config")
    if is_generated(text) or _RAY_CLUSTER.search(text):
        return [config]
    if arguments.fleet not in (None, config):
        raise UsageError(f"--fleet {arguments.fleet} and --config {config} name two fleet files: give one.")
    arguments.fleet = config
    return []


def is_path(text: str) -> bool:
    """Return whether ``text`` is a path and no cluster's name, which has neither slashes nor dots."""
    return "/" in text or text.endswith(_ENDINGS)


@_bad_paths_refused()
def fleet_file_of(path: Path) -> Path:
    """Return the fleet file of the cluster file at ``path``: the chosen one if it is there, else the usual.

    Raises:
        UsageError: There is none.
    """
    folder = _place(expanded(path, _CLUSTER_FILE)).parent.parent
    places = [folder / USUAL_FILE.name]
    with suppress(UsageError):
        places.insert(0, chosen_fleet_file(None))
    for found in places:
        if _place(found).parent == folder and os.path.exists(found):
            return found
    raise UsageError(f"Cluster file {path} has no fleet file {folder / USUAL_FILE.name}: name it with --fleet.")


@_bad_paths_refused()
def cluster_at(path: Path, fleet: Fleet) -> FleetCluster:
    """Return the cluster whose generated file is at ``path``.

    Raises:
        UsageError: The file is no cluster file, or differs from the fleet file.
        FleetError: The template cannot be used.
    """
    if not is_generated(_text_of(path, _CLUSTER_FILE)):
        raise UsageError(
            f"'tradewind cluster update-configs' did not write {path}: name a cluster of {fleet.file}, or its "
            f"file in {fleet.file.parent / CLUSTERS_FOLDER}."
        )
    place = _place(expanded(path, _CLUSTER_FILE))
    files = {_place(fleet.file.parent / CLUSTERS_FOLDER / f"{name}.yaml"): name for name in fleet.clusters}
    if place not in files:
        near = nearest_names_hint(place.stem, fleet.clusters)
        raise UsageError(f"No cluster in {fleet.file} has the file {path}: {near}")
    if find_spec("jinja2") is None:
        raise UsageError(f"Cannot compare {path} with the fleet file: install airflow-provider-tradewind[fleet].")
    if place in {_place(file) for file in GeneratedFiles.of(fleet).stale}:
        raise UsageError(
            f"{path} differs from {fleet.file}: run 'tradewind cluster update-configs' first, or name the cluster "
            f"{files[place]}."
        )
    return fleet.clusters[files[place]]


def _place(path: Path) -> Path:
    """Follow the links of ``path``. Unlike ``resolve``, leave circular links to the reader of the file."""
    return Path(os.path.realpath(path))


def _name(text: str, fleet: Fleet) -> str:
    return cluster_at(Path(text), fleet).name if is_path(text) else text


def _set_clusters(arguments: argparse.Namespace, field: str, names: list[str]) -> None:
    """Store the names in the command's argument for clusters."""
    if isinstance(getattr(arguments, field), list):
        setattr(arguments, field, names)
        return
    if len(names) > 1:
        raise UsageError(f"This command is about one cluster, and {' and '.join(names)} are named: name one of them.")
    setattr(arguments, field, names[0] if names else None)


@_bad_paths_refused()
def _text_of(path: Path, source: str) -> str:
    try:
        content = read_local(expanded(path, source), _MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{source} {path} cannot be read ({error.strerror}){nearest_files_hint(path)}.") from None
    if content.flaw:
        raise UsageError(f"{source} {path} cannot be read: {content.flaw}.")
    return content.text


def _configured() -> str | None:
    if find_spec("airflow") is None:
        return None
    enter_airflow()
    from tradewind.deployment.fleet import configured_fleet_file

    return configured_fleet_file()
