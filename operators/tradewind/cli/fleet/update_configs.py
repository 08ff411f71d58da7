"""``tradewind cluster update-configs``: the cluster files follow the fleet file, or it is said which do not."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.fleet.fleet_file import say_doubts
from tradewind.cli.output import say
from tradewind.fleet.cloud.google_api import CloudError
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.configs.generated import GeneratedFiles
from tradewind.fleet.errors import BadFileError
from tradewind.fleet.file.yaml_document import read_yaml
from tradewind.fleet.lifecycle.zone import CloudZone

_WORD: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")


def update_configs(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Write the files that are not as they should be; with ``--check`` only name them.

    Raises:
        UsageError: Jinja is not installed.
        CommandError: ``--check`` found such files; or there are nodes of a cluster that the fleet file has no more.
        FleetError: The template cannot be used, or somebody's own file is in the way.
    """
    if find_spec("jinja2") is None:
        raise UsageError("update-configs fills in a template: install airflow-provider-tradewind[fleet].")
    say_doubts(fleet.clusters.values())
    files = GeneratedFiles.of(fleet)
    if arguments.check:
        _refuse_stale(files, arguments.fleet)
    else:
        _refuse_living(files)
        for sentence in files.update():
            say(sentence)
    if not files.stale and not files.surplus:
        say(f"{len(files.texts)} files are as {fleet.file} has them.")
    return 0


def _refuse_living(files: GeneratedFiles) -> None:
    """A cluster that was renamed or removed while it has nodes would leave them behind, and nobody would see them."""
    for file in files.surplus:
        name, *place = _name_and_place(file)
        advice = f"'tradewind cluster stop {name} --project {place[0]} --zone {place[1]}'"
        try:
            count = CloudZone(*place).inventory().of(name).count
        except CloudError as error:
            raise CommandError(
                f"{file} is of a cluster that is no more, and whether there are nodes of it is not known: {error} "
                f"If there are none, remove the file; else {advice} deletes them. Nothing was written."
            ) from None
        if count:
            raise CommandError(
                f"Cluster {name} is no more in the fleet file, and has {count} nodes in {', '.join(place)}: {advice} "
                "deletes them. If it was renamed, name it as before until then. Nothing was written."
            )


def _name_and_place(file: Path) -> tuple[str, str, str]:
    """The cluster that a file of Ray's launcher is of, its project and its zone."""
    try:
        content = read_yaml(file).value
        name, provider = content["cluster_name"], content["provider"]
        project, zone = provider["project_id"], provider["availability_zone"]
    except (BadFileError, KeyError, TypeError):
        name = project = zone = ""
    if not all(isinstance(text, str) and _WORD.fullmatch(text) for text in (name, project, zone)):
        raise CommandError(
            f"{file} is of a cluster that is no more, and does not say of which: see that it has no nodes, and remove "
            "the file. Nothing was written."
        )
    return name, project, zone


def _refuse_stale(files: GeneratedFiles, fleet_option: str | None) -> None:
    stale, surplus = (", ".join(map(str, found)) for found in (files.stale, files.surplus))
    problems = [f"Not as the fleet file has them: {stale}."] if stale else []
    problems += [f"Of clusters that are no more: {surplus}."] if surplus else []
    if problems:
        option = f" --fleet {shlex.quote(fleet_option)}" if fleet_option else ""
        raise CommandError(f"{' '.join(problems)} To mend it: tradewind cluster update-configs{option}")
