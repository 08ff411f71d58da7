"""Training outputs: the result and the metrics of each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULT = {
    "steps": 10,
    "parameters": 1000,
    "tokens": 640,
    "flops": 6e6,
    "devices": 4,
    "device_kind": "TPU v4",
    "device_flops": 1e6,
    "train_loss": 3.1,
    "eval_loss": 3.0,
    "settings": {"model_size": "tiny", "cache_path": "gs://b/tokens"},
}
"""Result of ten steps on four devices."""


def training(folder: Path, rows: list[Mapping[str, Any]] | None = None, **result: Any) -> str:
    """Write a training's output; steps 3 to 10 take 0.5 s each unless ``rows`` gives other metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(RESULT | result))
    timed = [{"step": step, "time": 1.7e9 + step, "train/loss": 3.0, "step_seconds": 0.5} for step in range(2, 10)]
    lines = [json.dumps(row) for row in (timed if rows is None else rows)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return str(folder)
