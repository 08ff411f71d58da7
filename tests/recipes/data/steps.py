"""Run a step of a recipe for data in this process, and show the files that it made as text."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from tradewind.datasets import create_backend, set_flow_backend
from tradewind.steps import ExecutorStep
from tradewind.steps.resolution import resolve

SNAPSHOTS = Path(__file__).parent / "snapshots"


def run(step: ExecutorStep, prefix: Path) -> Path:
    """Make the outputs of a step and of those before it that have none; return its folder."""
    experiment = resolve([step], str(prefix))
    set_flow_backend(create_backend("sync"))
    try:
        for each in experiment.steps:
            if each.step is step or not Path(each.output_path).exists():
                each.step.fn(each.config)
    finally:
        set_flow_backend(None)
    return Path(experiment.of(step).output_path)


def shown(folder: Path) -> str:
    """Return names and contents of all files, rows as JSON lines, without the folders of this run."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and ".dataset" not in file.parts)
    text = "".join(f"== {file.relative_to(folder)}\n" + "".join(_lines(file)) for file in files)
    return text.replace(str(folder.parent), "PREFIX")


def _lines(file: Path) -> Iterator[str]:
    if file.suffix == ".parquet":
        for row in parquet.read_table(file).to_pylist():
            yield _line(row)
    elif file.suffix == ".gz":
        yield from gzip.decompress(file.read_bytes()).decode().splitlines(keepends=True)
    else:
        yield file.read_text()


def _line(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def check_snapshot(name: str, folder: Path, inputs: Path) -> None:
    """Compare an output with ``snapshots/NAME.txt``, which ``make snapshots`` renews."""
    text = shown(folder).replace(str(inputs), "INPUTS")
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("TRADEWIND_SNAPSHOTS") == "renew":
        file.write_text(text)
    assert text == file.read_text(), "see the difference, and run make snapshots if it is as it should be"
