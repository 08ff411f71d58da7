"""An Airflow DAG of four steps that write a line to a trace on local disk several times per second.

``source`` feeds ``left`` and ``right``, and both feed ``total``. Each attempt writes a word of its own into its files.
"""

import json
import os
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec

from tradewind import Cpu, ExecutorStep, experiment_dag, output_path_of, run_param, this_output_path, versioned

FILES = 8
PAUSE_S = 0.05


@dataclass(frozen=True)
class Config:
    output_path: str
    traces: Any
    seconds: Any
    wave: Any
    inputs: tuple[Any, ...] = ()


def work(config: Config) -> None:
    """Write some files slowly; every file ends in the attempt's unique word."""
    word = uuid.uuid4().hex
    trace = Path(config.traces, Path(config.output_path).parent.name + "." + Path(config.output_path).name)
    total = sum(json.loads(read(f"{path}/whole.json"))["total"] for path in config.inputs) if config.inputs else 1
    for number in range(FILES):
        until = time.monotonic() + config.seconds / FILES
        while time.monotonic() < until:
            leave(trace, word)
            time.sleep(PAUSE_S)
        write(f"{config.output_path}/parts/{number}.txt", word)
    write(f"{config.output_path}/whole.json", json.dumps({"word": word, "total": total, "files": FILES}))


def leave(trace: Path, word: str) -> None:
    """Append one line: this process is alive now."""
    line = json.dumps({"word": word, "pid": os.getpid(), "at": time.clock_gettime(time.CLOCK_BOOTTIME)})
    file = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def read(path: str) -> str:
    with fsspec.open(path) as file:
        return str(file.read().decode())


def write(path: str, text: str) -> None:
    with fsspec.open(path, "w") as file:
        file.write(text)


def step(name: str, seconds: float, *inputs: ExecutorStep) -> ExecutorStep:
    sources = tuple(output_path_of(one) for one in inputs)
    config = Config(this_output_path(), run_param("traces"), seconds, versioned(run_param("wave")), sources)
    return ExecutorStep(f"night/{name}", work, config, resources=Cpu(1))


source = step("source", 5.0)
left, right = step("left", 4.0, source), step("right", 5.0, source)
total = step("total", 3.0, left, right)
experiment_dag(
    "nights",
    [total],
    params={"wave": 0, "traces": "/tmp", "prefix": ""},
    default_args={"retries": 5, "retry_delay": timedelta(seconds=1)},
)
