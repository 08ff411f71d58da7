"""The roots that whoever runs this Airflow allows, from its configuration and nothing else."""

from __future__ import annotations

import os

from airflow.sdk import conf

from tradewind.plans.places.prefixes import configured_roots
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
