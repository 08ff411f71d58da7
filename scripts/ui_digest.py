"""Print the digest of the sources of the UI's pages; ``make ui`` stores it beside the build for a test to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

UI: Final = Path(__file__).resolve().parents[1] / "plugins" / "tradewind_ui"
DIGEST_FILE: Final = UI / "static" / "sources.sha256"
_CONFIG: Final = (
    "airflow-globals.ts", "openapi.json", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts",
)  # fmt: skip


def _sources(web: Path) -> Iterator[Path]:
    """Return the files that a build depends on, in order; tests are none."""
    yield from (web / name for name in _CONFIG)
    for path in sorted((web / "src").rglob("*")):
        if path.is_file() and ".test." not in path.name and "testing" not in path.parts:
            yield path


def digest(web: Path = UI / "web") -> str:
    """Return the SHA-256 of names and contents of all sources, as hexadecimal digits."""
    found = hashlib.sha256()
    for path in _sources(web):
        found.update(f"{path.relative_to(web).as_posix()}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    print(digest())
