"""The roots that whoever runs this Airflow allows, and the prefixes of its regions: from its configuration only."""

from __future__ import annotations

import os

from airflow.sdk import conf

from tradewind.deployment.fleet import fleet_bucket_regions
from tradewind.plans.places.prefixes import configured_roots, mirror_prefixes
from tradewind.storage import Roots


def deployment_roots() -> Roots:
    """The roots of this deployment.

    Raises:
        UnusablePathError: Its configuration names something else than absolute paths.
    """
    return configured_roots(
        conf.get("tradewind", "allowed_roots", fallback=None),
        os.environ,
        conf.get("tradewind", "prefix", fallback=None),
    )


def deployment_mirrors() -> tuple[str, ...]:
    """The prefixes that mirrored paths may be copied from: those of the configuration, else the fleet's buckets.

    Raises:
        UnusablePathError: The configuration names something else than absolute paths.
    """
    configured = conf.get("tradewind", "mirror_prefixes", fallback=None)
    return mirror_prefixes(configured, os.environ, fleet_bucket_regions())
