"""What runs on a cluster that is up, beside what is here: Ray's own clients want one version on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tradewind.fleet.access.reached import reached
from tradewind.fleet.cloud.heads import NoHeadError
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.doctor.diagnosis import Diagnosis, unknown, well, wrong
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.probe import glance


def running_diagnoses(clusters: Iterable[FleetCluster], here: str) -> Iterator[Diagnosis]:
    """How the Ray of each cluster is that has a head, beside the version ``here``; nothing is changed."""
    for cluster in clusters:
        about = f"Ray of cluster {cluster.name}"
        try:
            with reached(cluster) as there:
                yield _compared(about, glance(there).ray_version, here)
        except NoHeadError:
            continue
        except (FleetError, RayJobsError) as error:
            yield unknown(about, str(error))


def _compared(about: str, there: str, here: str) -> Diagnosis:
    if there == here:
        return well(about, f"{there}, as here")
    mend = f"Install ray=={there} here, or name an image with Ray {here} in the fleet file and restart the cluster."
    return wrong(about, f"{there}, and {here} here", mend)
