"""The plugin's application: the routers of its pages below ``api/``, and the built bundle below ``static/``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI

from tradewind_ui.api import data, experiments, fleet, plans, steps
from tradewind_ui.api.built_files import BuiltFiles
from tradewind_ui.headers import with_headers

STATIC: Final = Path(__file__).parents[1] / "static"

pages = FastAPI(title="Tradewind", version="1", docs_url=None, redoc_url=None, openapi_url=None)
for page in (plans, steps, data, experiments, fleet):
    pages.include_router(page.router, prefix="/api")
pages.mount("/static", BuiltFiles(directory=STATIC, check_dir=False))
app = with_headers(pages)
