"""``tradewind cluster doctor``: what a cluster needs before it starts, and how to mend what is missing."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec

from tradewind.cli.errors import CommandError
from tradewind.cli.fleet.fleet_file import say_doubts
from tradewind.cli.output import json_lines, write_lines
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.doctor.cloud import cloud_diagnoses
from tradewind.fleet.doctor.diagnosis import Diagnosis, Health
from tradewind.fleet.doctor.here import machine_diagnoses
from tradewind.fleet.doctor.running import running_diagnoses


def doctor(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Print what was looked at, and how to mend what is wrong; nothing is changed.

    Raises:
        CommandError: Something is wrong, or could not be looked at.
    """
    clusters = [fleet.cluster(name) for name in arguments.name] or list(fleet.clusters.values())
    say_doubts(clusters)
    diagnoses = [*machine_diagnoses(clusters), *cloud_diagnoses(clusters)]
    if find_spec("ray") is not None:  # else it is wrong already
        diagnoses += running_diagnoses(clusters, version("ray"))
    if arguments.json:
        write_lines(json_lines([asdict(diagnosis) for diagnosis in diagnoses]))
    else:
        write_lines([line for diagnosis in diagnoses for line in _lines(diagnosis)])
    counts = [sum(diagnosis.health is health for diagnosis in diagnoses) for health in (Health.WRONG, Health.UNKNOWN)]
    if any(counts):
        raise CommandError(f"Of {len(diagnoses)} things {counts[0]} are wrong, and {counts[1]} could not be looked at.")
    return 0


def _lines(diagnosis: Diagnosis) -> list[str]:
    line = f"{diagnosis.health.value.ljust(max(map(len, Health)))}  {diagnosis.about}: {diagnosis.found}"
    return [line, f"         {diagnosis.mend}"] if diagnosis.mend else [line]
