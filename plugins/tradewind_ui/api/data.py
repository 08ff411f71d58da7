"""Folders and files below the allowed roots."""

from __future__ import annotations

from fastapi import APIRouter

from tradewind_ui.api.security import READS_DATA

router = APIRouter(dependencies=READS_DATA)
