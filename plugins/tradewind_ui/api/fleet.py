"""The clusters of the fleet file, their slices, jobs and preemptions."""

from __future__ import annotations

from fastapi import APIRouter

from tradewind_ui.api.security import READS_CLUSTERS

router = APIRouter(dependencies=READS_CLUSTERS)
