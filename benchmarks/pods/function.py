"""Function that both runners train with: a small network, a checkpoint every second, and a mark at every event.

Each host trains its own copy, because on CPUs JaxTrainer starts no distributed JAX. Marks are lines of JSON in
``marks-RANK.jsonl``: process, event, time and step. Tradewind's runner, or the benchmark itself, starts ``python -m
benchmarks.pods.function FOLDER SECONDS`` on a host.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

CHECKPOINT_SECONDS: Final = 1.0
WIDTH: Final = 512
LAYERS: Final = 8
ROWS: Final = 64
_STARTED: Final = time.time()


def train(folder: str, seconds: float, rank: int, since: float | None = None) -> None:
    """Train for ``seconds`` from the newest checkpoint in ``folder``; ``since`` is the start of this process."""
    marks = Marks(Path(folder), rank)
    marks.add("begun", at=since or time.time())
    import jax
    import numpy as np

    marks.add("imported")
    _keep_compilations(jax, folder)
    step, weights = _restored(Path(folder), rank, np)
    weights = jax.device_put(weights)
    marks.add("loaded", step)
    update, rows = jax.jit(_update), jax.numpy.ones((ROWS, WIDTH))
    saved_at, until = time.monotonic(), time.monotonic() + seconds
    while time.monotonic() < until:
        weights = jax.block_until_ready(update(weights, rows))
        step += 1
        _beat(step)
        marks.add("step", step)
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            _save(Path(folder), rank, step, np.asarray(weights), np)
            marks.add("saved", step)
            saved_at = time.monotonic()
    marks.add("done", step)


class Marks:
    """Events of one process with their times."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._file = (folder / f"marks-{rank}.jsonl").open("a", buffering=1)

    def add(self, event: str, step: int | None = None, at: float | None = None) -> None:
        line = {"rank": self._rank, "pid": os.getpid(), "event": event, "at": at or time.time(), "step": step}
        self._file.write(json.dumps(line) + "\n")


def _update(weights: Any, rows: Any) -> Any:
    import jax

    def loss(given: Any) -> Any:
        values = rows
        for layer in range(LAYERS):
            values = jax.numpy.tanh(values @ given[layer])
        return (values**2).mean()

    return weights - 0.01 * jax.grad(loss)(weights)


def _keep_compilations(jax: Any, folder: str) -> None:
    jax.config.update("jax_compilation_cache_dir", str(Path(folder, "compilations")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _restored(folder: Path, rank: int, np: Any) -> tuple[int, Any]:
    file = folder / f"checkpoint-{rank}.npz"
    if not file.exists():
        return 0, np.full((LAYERS, WIDTH, WIDTH), 0.01, dtype=np.float32)
    with np.load(file) as found:
        return int(found["step"]), found["weights"]


def _save(folder: Path, rank: int, step: int, weights: Any, np: Any) -> None:
    aside = folder / f"new-{rank}.npz"
    np.savez(aside, step=step, weights=weights)
    aside.replace(folder / f"checkpoint-{rank}.npz")


def _beat(step: int) -> None:
    """Send a heartbeat to Tradewind's runner; without it, do nothing."""
    from tradewind.runtime.pods.on_host.heartbeat import beat

    beat(step)


if __name__ == "__main__":
    train(sys.argv[1], float(sys.argv[2]), int(os.environ["TRADEWIND_PROCESS_ID"]), _STARTED)
