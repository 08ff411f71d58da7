"""Process the shards of a stage as tasks of the surrounding Ray cluster, never on its head if there are other nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tradewind.datasets.backends import Backend, Outcome
from tradewind.datasets.shard_task import ShardFailure, StageWork, run_shard
from tradewind.text import single_line


@contextmanager
def connected_to_ray() -> Iterator[None]:
    """Connect to the surrounding cluster, else to a local one that ends with the block."""
    import ray

    starts_ray = not ray.is_initialized()
    if starts_ray:
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield
    finally:
        if starts_ray:
            ray.shutdown()


class RayTasks:
    """Tasks of one stage.

    Args:
        backend: Resources of each task.
        work: The stage.
    """

    def __init__(self, backend: Backend, work: StageWork) -> None:
        import ray

        self._ray = ray
        self._work = ray.put(work)
        self._shards: dict[Any, int] = {}
        options: dict[str, Any] = {
            "num_cpus": backend.num_cpus,
            "num_gpus": backend.num_gpus,
            "memory": backend.memory_bytes,
            "max_retries": 0,  # a shard has budgets of its own
            "name": f"stage {work.stage.number + 1}",
        }
        if (head := _avoidable_head(ray)) is not None:
            options["label_selector"] = {"ray.io/node-id": f"!{head}"}
        self._task = ray.remote(run_shard).options(**options)

    def submit(self, shard: int) -> None:
        """Begin a shard."""
        self._shards[self._task.remote(self._work, shard)] = shard

    def wait(self, timeout_s: float) -> Sequence[Outcome]:
        """Return what has ended; wait at most ``timeout_s`` for the first."""
        done, _ = self._ray.wait(list(self._shards), timeout=timeout_s, num_returns=1)
        return [self._outcome(ref) for ref in done]

    def _outcome(self, ref: Any) -> Outcome:
        shard = self._shards.pop(ref)
        try:
            outcome: Outcome = self._ray.get(ref)
        except self._ray.exceptions.OutOfMemoryError as error:
            about = "the node ran out of memory: give more memory, or make smaller shards"
            return ShardFailure(shard, about, trace=single_line(error))
        except self._ray.exceptions.RayTaskError as error:  # the task could not even begin
            cause = error.cause if isinstance(error.cause, Exception) else error
            return ShardFailure(
                shard, f"{type(cause).__name__}: {single_line(cause)}", trace=str(error), is_permanent=True
            )
        except self._ray.exceptions.RayError as error:
            return ShardFailure(shard, f"lost: {type(error).__name__}", trace=single_line(error), is_loss=True)
        return outcome

    def close(self) -> None:
        """End the tasks that still run."""
        for ref in self._shards:
            self._ray.cancel(ref, force=True)


def _avoidable_head(ray: Any) -> str | None:
    """Return the id of the head's node if it offers CPUs and another node does as well."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    heads = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
    return heads[0]["NodeID"] if heads and len(nodes) > 1 else None
