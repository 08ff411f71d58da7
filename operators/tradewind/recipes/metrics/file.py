"""The metrics of a training run, as JSON lines: ``{"step": 20, "time": ..., "train/loss": 5.31, ...}``.

A line reaches a local disk before the next step, and an object store some seconds later. A run that resumes from a
checkpoint repeats some steps and appends them again: ``read_metrics`` takes the later line of a step.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, cast

from tradewind.cloud_tpu.goodput import MAX_LINE_CHARS, MAX_VALUES, bounded_objects, objects_in
from tradewind.datasets.files import exists, is_remote, parent, read_text, write_text
from tradewind.records.parsing import is_count, is_number
from tradewind.storage import open_file
from tradewind.storage.bounded_read import value_count

REMOTE_S = 20.0
"""Maximum age of the file on an object store, which each write replaces as a whole."""
MAX_BYTES: Final = 64 << 20
"""Bound for another training's metrics, which are read at once."""


class MetricsFile:
    """Appends lines to the file at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._remote = is_remote(path)
        self._content = read_text(path) if self._remote and exists(path) else ""
        self._written = time.monotonic()
        if not self._remote:
            _end_last_line(path)

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line about ``step`` (counted from 0)."""
        line = json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n"
        if not self._remote:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
            return
        self._content += line
        if time.monotonic() - self._written > REMOTE_S:
            self.flush()

    def flush(self) -> None:
        """Write buffered lines to the store."""
        if self._remote and self._content:
            write_text(self.path, self._content)
            self._written = time.monotonic()


def read_metrics(path: str) -> list[dict[str, Any]]:
    """Read one dictionary per step, ordered by step, with ``step``, ``time`` and the metrics of the step.

    A last line that a kill cut off is ignored.

    Raises:
        FileNotFoundError: There is no file.
    """
    # An object store's file reads no line within a bound.
    with open_file(path) as file, io.BufferedReader(cast("io.RawIOBase", file)) as lines:
        return _by_step(objects_in(iter(partial(lines.readline, MAX_LINE_CHARS), b"")))


def read_bounded_metrics(path: str) -> list[dict[str, Any]] | None:
    """Read another training's file like ``read_metrics``, within a bound; None without a file.

    Raises:
        ValueError: It is too large, or no text file.
    """
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    content = read_contents([path], MAX_BYTES).get(path)
    if content is None:
        return None
    flaw = f"it has more than {MAX_VALUES:,} values" if value_count(content.text) > MAX_VALUES else content.flaw
    if flaw is not None:
        raise ValueError(f"{path} is not read, because {flaw}: give the output of another training.")
    return parse_metrics(content.text)


def parse_metrics(text: str) -> list[dict[str, Any]]:
    """Parse the text of another training's file like ``read_metrics``; other lines, and too many, are ignored."""
    return _by_step(bounded_objects(text))


def _by_step(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    steps: dict[int, dict[str, Any]] = {}
    for row in rows:
        if is_count(row.get("step")):
            steps.setdefault(row["step"], {}).update(row)
    return [steps[step] for step in sorted(steps)]


def is_measure(value: Any) -> bool:
    """Whether a value can be a measurement: a number, also NaN, and no integer out of range."""
    return isinstance(value, float) or is_number(value)


def series(metrics: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Return the steps at which ``key`` was measured, and its values."""
    points = [(row["step"], row[key]) for row in metrics if is_measure(row.get(key))]
    return [step for step, _ in points], [value for _, value in points]


def _end_last_line(path: str) -> None:
    """Make the local file's folder, and end a line that a kill cut off."""
    from pathlib import Path

    Path(parent(path)).mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
