"""A token rotation against a loopback Google Cloud, in this process or, by ``python -m``, in one that a test can kill.

The launcher is the stand-in, ``fake_launcher.py``. A head answers as soon as it exists. The jobs of a cluster are lines
of a file, which a restart empties.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.fleet.lifecycle.filed_jobs import FiledJobs
from tests.fleet.lifecycle.fleet_environment import PROJECT, ZONE
from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.access.connect import fetch_token
from tradewind.fleet.cloud.token_secret import TokenSecret, clusters_sharing_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager
from tradewind.fleet.lifecycle.inventory import CloudZone
from tradewind.fleet.lifecycle.job_preservation import JobPreservation
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lifecycle.rotation import TokenRotation
from tradewind.fleet.lock import ClusterLock, HeldClusterLock, lock_path
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.storage.backends import StoredObject
from tradewind.storage.swap import read_stored


class JobEndingManager(ClusterManager):
    """A cluster manager whose restart ends the jobs."""

    def __init__(self, cluster: FleetCluster, jobs: FiledJobs, **parts: Any) -> None:
        super().__init__(cluster, "c0ffee", **parts)
        self._jobs = jobs

    def relaunch(self, held: HeldClusterLock) -> None:
        super().relaunch(held)
        self._jobs.end_all()


def jobs_of(file: Path, cluster: FleetCluster, tell: Callable[[str], None] = print) -> FiledJobs:
    """Return the jobs of a cluster of the fleet in ``file``."""
    return FiledJobs(cluster, tell, file.parent / "kept", file.parent / f"{cluster.name}.jobs")


RAYLIKE: Final = (sys.executable, str(Path(__file__).with_name("fake_launcher.py")))


def read_later(path: str) -> StoredObject | None:
    """Read an object as if its writer had died long ago."""
    stored = read_stored(path)
    return None if stored is None else replace(stored, age_s=stored.age_s + 1000.0)


def rotation(
    file: Path,
    tell: Callable[[str], None],
    refusing: Callable[[FleetCluster], bool] = lambda cluster: False,
    *,
    is_later: bool = False,
    jobs: Mapping[str, FiledJobs] | None = None,
    **options: bool,
) -> TokenRotation:
    """Return the rotation of the secret of ``here``.

    ``refusing`` says which clusters reject the new token. ``options`` are options of ``JobPreservation``.
    """
    fleet = load_fleet(file)
    clusters = clusters_sharing_token(fleet, fleet.cluster("here"))
    zone = CloudZone(PROJECT, ZONE, tpu=TpuApi(PROJECT, ZONE, poll_s=0.02), sleep=lambda seconds: time.sleep(0.01))
    read = read_later if is_later else read_stored
    markers = {one.name: ClusterLock(one.name, lock_path(one), read=read) for one in clusters}
    now = [0.0]

    @contextmanager
    def reach(cluster: FleetCluster) -> Iterator[RayCluster]:
        now[0] += 100.0
        if refusing(cluster):
            raise RayAuthenticationError(f"Cluster {cluster.name} refuses the token.")
        yield RayCluster(cluster.name, "http://127.0.0.1:8265")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    filed = {one.name: jobs_of(file, one, tell) for one in clusters} | dict(jobs or {})

    def manager(one: FleetCluster) -> ClusterManager:
        launcher = RayLauncher(file.parent / "clusters" / f"{one.name}.yaml", tell, RAYLIKE)
        return JobEndingManager(one, filed[one.name], zone=zone, marker=markers[one.name], launcher=launcher, tell=tell)

    return TokenRotation(
        clusters,
        TokenSecret(PROJECT, clusters[0].token_secret),
        managers={one.name: manager(one) for one in clusters},
        markers=markers,
        jobs={one.name: JobPreservation(one, filed[one.name], tell, **options) for one in clusters},
        hand_out=lambda version: fetch_token(clusters[0], str(version)),
        tell=tell,
        reach=reach,
        clock=lambda: now[0],
        sleep=sleep,
    )


if __name__ == "__main__":
    rotation(Path(sys.argv[1]), print).run()
