"""``tradewind cluster dashboard``: the dashboard of one cluster, or those of several on one page."""

from __future__ import annotations

import argparse
import threading
import webbrowser

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.interrupts import Interrupted
from tradewind.cli.output import say
from tradewind.fleet.access.dashboards import Dashboards
from tradewind.fleet.access.tiles_page import served_page
from tradewind.fleet.clusters import Fleet, FleetCluster


def dashboard(arguments: argparse.Namespace, fleet: Fleet) -> int:
    """Open the dashboards until somebody presses Ctrl-C.

    Raises:
        UsageError: Clusters are named, and all are asked for.
        CommandError: The only one does not answer, or the page's port is taken.
    """
    if arguments.all and arguments.names:
        raise UsageError("--all means every cluster of the file: name none.")
    names = dict.fromkeys(arguments.names) or [None]
    clusters = list(fleet.clusters.values()) if arguments.all else [fleet.cluster(name) for name in names]
    try:
        if len(clusters) == 1:
            return _one(clusters[0], is_to_open=arguments.open)
        return _several(clusters, arguments.port, is_to_open=arguments.open)
    except Interrupted:
        return 0


def open_dashboard(cluster: FleetCluster) -> int:
    """The same for one cluster, in a browser."""
    try:
        return _one(cluster, is_to_open=True)
    except Interrupted:
        return 0


def _one(cluster: FleetCluster, *, is_to_open: bool) -> int:
    with Dashboards([cluster], say) as dashboards:
        dashboards.wait_for_first_look()
        [tile] = dashboards.tiles()
        if tile.why is not None:
            raise CommandError(f"The dashboard of {cluster.name} cannot be opened.")
        if is_to_open:
            webbrowser.open(tile.url)
        threading.Event().wait()
    return 0


def _several(clusters: list[FleetCluster], port: int, *, is_to_open: bool) -> int:
    with Dashboards(clusters, say) as dashboards, served_page(dashboards.tiles, port) as url:
        say(f"{len(clusters)} clusters are at {url} until Ctrl-C.")
        if is_to_open:
            webbrowser.open(url)
        threading.Event().wait()
    return 0
