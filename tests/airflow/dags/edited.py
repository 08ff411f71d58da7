"""An Airflow DAG that a test edits while it runs."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind import (
    ExecutorStep,
    experiment_dag,
    on_airflow_worker,
    output_path_of,
    run_param,
    this_output_path,
    versioned,
)

VALUE = 1
WORD = "old"


@dataclass(frozen=True)
class Config:
    output_path: str
    value: Any = None
    source: Any = None
    gate: Any = None


def write(config: Config) -> None:
    """Say which code this is, once the gate is open."""
    while config.gate and not os.path.exists(config.gate):
        time.sleep(0.1)
    Path(config.output_path, "word").write_text(WORD)


HERE = on_airflow_worker()
first = ExecutorStep("edited/first", write, Config(this_output_path(), gate=run_param("gate")), resources=HERE)
second = ExecutorStep(
    "edited/second", write, Config(this_output_path(), versioned(VALUE), output_path_of(first)), resources=HERE
)
experiment_dag("edited", [second], params={"gate": ""})
