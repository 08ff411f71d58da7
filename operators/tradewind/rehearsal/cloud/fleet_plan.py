"""Plan of a fleet rehearsal, from the command that starts it to its background process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tradewind.rehearsal.local.processes import write_private

PLAN_FILE: Final = "fleet-plan.json"
FLEET_DAEMON: Final = "tradewind.rehearsal.cloud.fleet_daemon"
"""The module that runs with the folder of a plan."""


@dataclass(frozen=True)
class ClusterPlan:
    """The rehearsed part of one cluster.

    Attributes:
        connection: The id of its Airflow connection.
        connection_extra: The connection's extra fields, without address and token.
        token_secret: The secret in its project that holds its token.
        slices: Initial slices: name → type.
    """

    name: str
    project: str
    zone: str
    bucket: str
    connection: str
    token_secret: str
    slices: Mapping[str, str]
    connection_extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def region(self) -> str:
        """Region of its zone and bucket."""
        return self.zone.rpartition("-")[0]

    @property
    def secret(self) -> str:
        """The full name of the secret with its token."""
        return f"projects/{self.project}/secrets/{self.token_secret}"


@dataclass(frozen=True)
class FleetPlan:
    """The rehearsed clusters.

    Attributes:
        file: The fleet file, also read by tasks and commands.
        default: Name of the default cluster.
    """

    file: str
    default: str
    clusters: tuple[ClusterPlan, ...]

    @property
    def default_cluster(self) -> ClusterPlan:
        """The plan of the default cluster."""
        return next(cluster for cluster in self.clusters if cluster.name == self.default)

    def write(self, folder: Path) -> None:
        """Write the plan to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / PLAN_FILE, json.dumps(asdict(self)))

    @staticmethod
    def of_folder(folder: Path) -> FleetPlan | None:
        """Read the plan from ``folder``; None if there is none."""
        try:
            found = json.loads((folder / PLAN_FILE).read_text())
        except FileNotFoundError:
            return None
        clusters = tuple(ClusterPlan(**fields) for fields in found["clusters"])
        return FleetPlan(found["file"], found["default"], clusters)
