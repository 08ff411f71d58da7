"""``tradewind cluster announce``: people are told through Airflow's notifiers."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from tradewind.cli.errors import UsageError
from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import say
from tradewind.fleet.clusters import Fleet


def announce_to_people(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Tell the message about one cluster, or about all.

    Raises:
        UsageError: It is not said which cluster it is about; or there is no Airflow here.
        AnnounceError: It could not be told, or not everywhere.
    """
    if bool(arguments.name) == arguments.all:
        raise UsageError("Say what it is about: a cluster before the message, or --all. Nothing was announced.")
    names = list(fleet.clusters) if arguments.all else [fleet.cluster(arguments.name).name]
    if find_spec("airflow") is None:
        raise UsageError("Notifiers are Airflow's, which is not installed here: run this where Airflow is set up.")
    enter_airflow()  # for the notifiers' connections
    from tradewind.deployment.announce import announce, chosen_notifiers

    if arguments.dry_run:
        through = ", ".join(one.classpath for one in chosen_notifiers()) or "no notifier, since none is set up"
        say(f"Of {', '.join(names)} would be announced, through {through}: {arguments.message}")
        return 0
    say(f"Announced through {', '.join(announce(arguments.message, names))}.")
    return 0
