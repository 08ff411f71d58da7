"""The built bundle: chunks that a browser keeps for a year, and an entry that it asks for again."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

from tradewind_ui.headers import IMMUTABLE, REVALIDATED

_HASHED: Final = re.compile(r".+-[A-Za-z0-9_-]{8}\.[a-z0-9]+")
"""Vite puts a hash of the content into the name of all files but ``main.js``."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}
"""Types without which a browser refuses a module or a worker. A machine's own table may lack them."""


class BuiltFiles(StaticFiles):
    """The files of a folder, with headers for modules and caches; the digest of the sources is none of them."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file of a known type."""
        return super().lookup_path(path) if os.path.splitext(path)[1] in _TYPES else ("", None)

    def file_response(self, full_path: Any, *args: Any, **kwargs: Any) -> Response:
        """Return the file, or that it has not changed."""
        response = super().file_response(full_path, *args, **kwargs)
        name = os.path.basename(full_path)
        response.headers["Cache-Control"] = IMMUTABLE if _HASHED.fullmatch(name) else REVALIDATED
        if response.status_code == 200:
            response.headers["Content-Type"] = _TYPES[os.path.splitext(name)[1]]
        return response
