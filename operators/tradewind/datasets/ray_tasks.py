"""Process shards and other pieces of work as tasks of the surrounding Ray cluster, off its head if it can."""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from tradewind.datasets.backends import Backend, Outcome
from tradewind.datasets.shard_task import ShardFailure, StageWork, run_shard
from tradewind.datasets.source_files import DownloadError
from tradewind.datasets.token_rows import TokenizingError
from tradewind.serialization.references import worker_setup
from tradewind.text import single_line

_INPUT_ERRORS: Final = (TokenizingError, DownloadError)
_MAX_LOSSES: Final = 20
_MAX_PIECES: Final = 1_000
"""Pieces that are submitted at one time; Ray runs as many as there are CPUs."""

_held: Final[dict[str, StageWork]] = {}
"""The stage that this worker processed last."""

_T = TypeVar("_T")


@contextmanager
def connected_to_ray() -> Iterator[None]:
    """Connect to the surrounding cluster, else to a local one that ends with the block."""
    import ray

    starts_ray = not ray.is_initialized()
    if starts_ray:
        ray.init(log_to_driver=False, logging_level=logging.WARNING, runtime_env=worker_setup())
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
        self._key = uuid.uuid4().hex
        self._work = ray.put(_Packed(ray.cloudpickle.dumps(work)))
        self._shards: dict[Any, int] = {}
        options: dict[str, Any] = {
            "num_cpus": backend.num_cpus,
            "num_gpus": backend.num_gpus,
            "memory": backend.memory_bytes,
            "max_retries": 0,  # a shard has budgets of its own
            "name": f"stage {work.stage.number + 1}",
        }
        self._task = ray.remote(_run_shared).options(**options, **_off_the_head())

    def submit(self, shard: int) -> None:
        """Begin a shard."""
        self._shards[self._task.remote(self._key, self._work, shard)] = shard

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
                shard,
                f"{type(cause).__name__}: {single_line(cause)}",
                trace=str(error),
                is_permanent=True,
                ends_stage=True,
            )
        except self._ray.exceptions.RayError as error:
            return ShardFailure(shard, f"lost: {type(error).__name__}", trace=single_line(error), is_loss=True)
        return outcome

    def close(self) -> None:
        """End the tasks that still run."""
        for ref in self._shards:
            self._ray.cancel(ref, force=True)


class _Packed:
    """A pickled stage, which tasks read where their node holds it; Ray itself would unpack the stage for each task."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _Packed, (pickle.PickleBuffer(self.data),)


def _run_shared(key: str, packed: _Packed, shard: int) -> Outcome:
    """Process a shard of a stage, whose functions may hold much: each worker unpacks them once."""
    if key not in _held:
        _held.clear()
        _held[key] = pickle.loads(packed.data)
    return run_shard(_held[key], shard)


def spread(pieces: Sequence[_T], work: Callable[[_T], Any], *, is_small: bool) -> Iterator[Any]:
    """Yield what ``work`` returns for each piece, in order of completion.

    Args:
        pieces: Arguments of ``work``. A piece whose worker is lost is done again.
        work: Runs in a worker for each piece.
        is_small: Run in this process, which is faster than to start workers.

    Raises:
        TokenizingError: The first one that ``work`` raises; likewise ``DownloadError``.
    """
    if is_small:
        yield from map(work, pieces)
        return
    with connected_to_ray():
        import ray

        task = ray.remote(_run_piece).options(max_retries=_MAX_LOSSES, **_off_the_head())
        shared, waiting = ray.put(work), deque(pieces)
        running: list[Any] = []
        try:
            while waiting or running:
                while waiting and len(running) < _MAX_PIECES:
                    running.append(task.remote(shared, waiting.popleft()))
                done, running = ray.wait(running)
                for result in ray.get(done):
                    if isinstance(result, _INPUT_ERRORS):
                        raise result
                    yield result
        finally:
            for ref in running:
                ray.cancel(ref, force=True)


def _run_piece(work: Callable[[Any], Any], piece: Any) -> Any:
    """Run one piece; return an error about its input as the result, since Ray would wrap it in a traceback."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one CPU
    try:
        return work(piece)
    except _INPUT_ERRORS as error:
        return error


def nodes_with_cpus() -> list[dict[str, Any]]:
    """Return the nodes of the connected cluster that offer CPUs."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _off_the_head() -> dict[str, Any]:
    """Return options that keep a task off the head's node, if that offers CPUs and another node does as well."""
    nodes = nodes_with_cpus()
    heads = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
    if not heads or len(nodes) < 2:
        return {}
    return {"label_selector": {"ray.io/node-id": f"!{heads[0]['NodeID']}"}}
