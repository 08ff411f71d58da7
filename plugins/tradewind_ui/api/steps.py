"""One step of a run: its version, config, attempts, curves and results."""

from __future__ import annotations

from fastapi import APIRouter

from tradewind_ui.api.security import READS_RUN

router = APIRouter(dependencies=READS_RUN)
