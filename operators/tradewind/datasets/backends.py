"""Where the shards of a pipeline are processed: in this process, in threads, or as tasks of a Ray cluster.

backend = flow_backend(max_parallelism=200, memory="2GB")
paths = list(backend.execute(pipeline))
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from tradewind.datasets.dataset import Dataset
from tradewind.datasets.rows import ON_ERROR, OnError
from tradewind.datasets.shard_task import ShardFailure, ShardResult, StageWork, run_shard
from tradewind.datasets.shuffle import DEFAULT_MEMORY
from tradewind.steps.amounts import parse_size
from tradewind.text import single_line, truncated_repr

BackendKind = Literal["ray", "threadpool", "sync"]
KINDS: Final = ("ray", "threadpool", "sync")
_MIN_MEMORY: Final = 64 << 20

Outcome = ShardResult | ShardFailure


class Workers(Protocol):
    """Tasks of one stage at work."""

    def submit(self, shard: int) -> None:
        """Begin a shard."""

    def wait(self, timeout_s: float) -> Sequence[Outcome]:
        """Return what has ended; wait at most ``timeout_s`` for the first."""

    def close(self) -> None:
        """End the tasks that still run."""


@dataclass(frozen=True)
class Backend:
    """How pipelines are processed.

    Attributes:
        kind: ``ray``, ``threadpool`` or ``sync``.
        max_parallelism: Shards at work at one time.
        memory_bytes: Memory of one worker; a shuffle holds rows in a quarter of it.
        num_cpus: CPUs of one task of Ray.
        num_gpus: GPUs of one task of Ray.
        on_error: What happens to a row that fails: ``raise``, ``skip`` or ``quarantine``.
        dry_run: Print the stages, and process nothing.
        scratch: Folder for files between stages and for records of finished shards, from which the next attempt
            continues. None takes ``.dataset`` of the step that runs, else a temporary folder of this machine.
    """

    kind: BackendKind = "threadpool"
    max_parallelism: int = 100
    memory_bytes: int = DEFAULT_MEMORY
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    on_error: OnError = "raise"
    dry_run: bool = False
    scratch: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"backend {truncated_repr(self.kind)}: there are {', '.join(KINDS)}.")
        if self.on_error not in ON_ERROR:
            raise ValueError(f"on_error={truncated_repr(self.on_error)}: there are {', '.join(ON_ERROR)}.")
        if not isinstance(self.max_parallelism, int) or self.max_parallelism < 1:
            raise ValueError(f"max_parallelism={truncated_repr(self.max_parallelism)}: give a whole number from 1.")
        if self.memory_bytes < _MIN_MEMORY:
            raise ValueError(f"memory={self.memory_bytes:,} bytes: a worker needs at least 64 MiB.")

    def execute(self, dataset: Dataset[Any]) -> Any:
        """Process ``dataset``; return its rows, or the paths of the files if it ends with a writer.

        Raises:
            PipelineError: The pipeline cannot be processed as it is described, or a shard failed too often.
            FileNotFoundError: A source has no files.
        """
        from tradewind.datasets.execution import execute

        return execute(dataset, self)

    def connected(self) -> AbstractContextManager[None]:
        """Hold the connection to Ray for a whole pipeline."""
        if self.kind != "ray":
            return nullcontext()
        from tradewind.datasets.ray_tasks import connected_to_ray

        return connected_to_ray()

    def spans_nodes(self) -> bool:
        """Whether shards are processed on several machines; call it while connected."""
        if self.kind != "ray":
            return False
        from tradewind.datasets.ray_tasks import nodes_with_cpus

        return len(nodes_with_cpus()) > 1

    def workers(self, work: StageWork) -> Workers:
        """Return what processes the shards of one stage."""
        match self.kind:
            case "sync":
                return _InProcess(work)
            case "threadpool":
                return _InThreads(work, min(self.max_parallelism, work.stage.shards, (os.cpu_count() or 1) * 4))
            case "ray":
                from tradewind.datasets.ray_tasks import RayTasks

                return RayTasks(self, work)


class _InProcess:
    def __init__(self, work: StageWork) -> None:
        self._work = work
        self._shards: deque[int] = deque()

    def submit(self, shard: int) -> None:
        self._shards.append(shard)

    def wait(self, timeout_s: float) -> Sequence[Outcome]:
        return [run_shard(self._work, self._shards.popleft())]

    def close(self) -> None:
        self._shards.clear()


class _InThreads:
    def __init__(self, work: StageWork, threads: int) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(max(threads, 1), thread_name_prefix="shard")
        self._futures: set[Future[Outcome]] = set()

    def submit(self, shard: int) -> None:
        self._futures.add(self._pool.submit(run_shard, self._work, shard))

    def wait(self, timeout_s: float) -> Sequence[Outcome]:
        done, self._futures = wait(self._futures, timeout_s, FIRST_COMPLETED)
        return [future.result() for future in done]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_current: ContextVar[Backend | None] = ContextVar("tradewind_backend", default=None)


def set_flow_backend(backend: Backend | None) -> None:
    """Set what ``flow_backend()`` returns here; None for the default."""
    _current.set(backend)


def flow_backend(
    max_parallelism: int | None = None,
    memory: str | int | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    dry_run: bool | None = None,
    **options: Any,
) -> Backend:
    """Return the current backend, with these changes.

    In a job of a Ray cluster that is Ray, else threads of this process; ``tradewind data run`` chooses another.

    Args:
        max_parallelism: Shards at work at one time.
        memory: Memory of one worker in bytes, or as ``"2GB"``.
        num_cpus: CPUs of one task of Ray.
        num_gpus: GPUs of one task of Ray.
        dry_run: Print the stages, and process nothing.
        options: ``on_error`` or ``scratch``, see ``Backend``.
    """
    given = {
        "max_parallelism": max_parallelism,
        "memory_bytes": None if memory is None else parse_size(memory, "memory"),
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "dry_run": dry_run,
        **options,
    }
    current = _current.get() or Backend("ray" if "RAY_ADDRESS" in os.environ else "threadpool")
    try:
        return replace(current, **{name: value for name, value in given.items() if value is not None})
    except TypeError as error:
        raise ValueError(f"flow_backend: {single_line(error).removeprefix('Backend.__init__() ')}.") from error


def create_backend(
    backend_type: BackendKind, max_parallelism: int = 100, memory: str | int | None = None, **options: Any
) -> Backend:
    """Return a backend of this kind, with the options of ``flow_backend``."""
    memory_bytes = DEFAULT_MEMORY if memory is None else parse_size(memory, "memory")
    given = {name: value for name, value in options.items() if value is not None}
    return Backend(backend_type, max_parallelism, memory_bytes, **given)
