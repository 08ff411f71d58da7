"""Functions of the steps in this folder. A driver imports only this file, without Airflow."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import run_param, this_output_path


@dataclass(frozen=True)
class Text:
    output_path: str
    value: Any = None
    source: Any = None
    says: Any = "the same"


def write(config: Text) -> None:
    """Write ``config.says``, and add a line per call to a file beside the output."""
    with Path(f"{config.output_path}.calls").open("a") as file:
        file.write("called\n")
    Path(config.output_path, "text").write_text(str(config.says))
    if config.says == "fail":
        raise ValueError("failed as configured")
    while config.says == "wait":
        time.sleep(0.1)


@dataclass(frozen=True)
class Point:
    rate: Any
    is_mended: Any = run_param("is_mended")
    output_path: Any = this_output_path()


def measure(config: Point) -> dict[str, float]:
    if config.rate > 1 and not config.is_mended:
        raise ValueError("this rate is above all")
    return {"loss": (config.rate - 0.1) ** 2}
