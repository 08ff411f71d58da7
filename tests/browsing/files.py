"""Files of each format with the same rows, for the tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import zstandard
from pyarrow import parquet

from tradewind.browsing.access import Access
from tradewind.storage import Roots

ROWS: Final[list[dict[str, Any]]] = [{"id": number, "text": f"row {number} äöü"} for number in range(1000)]
LINES: Final = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def write_parquet(path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=300)


def write_csv(path: Path) -> None:
    path.write_text("id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in ROWS))


WRITERS: Final[dict[str, Callable[[Path], object]]] = {
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "members.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES[:20_000]) + gzip.compress(LINES[20_000:])),
    "a.jsonl.zst": lambda path: path.write_bytes(zstandard.compress(LINES)),
    "a.parquet": write_parquet,
    "a.csv": write_csv,
}
"""Name → writer of a file with ``ROWS``."""


def allowed(folder: Path) -> Access:
    """Return access to a folder, as an API server has it."""
    return Access(Roots((str(folder),)))
