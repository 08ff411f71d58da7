"""Functions of steps in other files. A driver imports only this file and skips the import of Airflow."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec


@dataclass(frozen=True)
class Config:
    output_path: str
    value: Any = None
    source: Any = None
    says: Any = "the same"
    gate: Any = None


def write(config: Config) -> None:
    """Write ``config.says`` once the gate exists; append a line per call to a file beside the output."""
    while config.gate and not os.path.exists(config.gate):
        time.sleep(0.1)
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("called\n")
    Path(config.output_path, "text").write_text(str(config.says))
    if config.says == "fail":
        raise ValueError("told to fail")


def write_call(config: Config) -> dict[str, Any]:
    """Append a line per call to a file in the output; two concurrent calls would write two lines."""
    with fsspec.open(f"{config.output_path}/calls", "a") as file:
        file.write(f"{config.value}\n")
    return {"value": str(config.value), "pid": os.getpid(), "parent": os.getppid()}


def write_call_and_wait(config: Config) -> None:
    """Run until the test creates a file; the test can see all dates."""
    write_call(config)
    while not os.path.exists(f"{config.output_path}/all_dates_wait"):
        time.sleep(0.1)
