"""A step that processes a pipeline: its next attempt makes only the missing shards.

def long_texts(config: LongTexts) -> Dataset:
    rows = Dataset.from_files(f"{config.documents}/*.jsonl.gz").load_jsonl()
    return rows.filter(is_long).write_jsonl(f"{config.output_path}/data-{{shard:05d}}-of-{{total:05d}}.jsonl.gz")

step = dataset_step("long", long_texts, LongTexts(documents=raw, output_path=this_output_path()))
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.backends import Backend, flow_backend, set_flow_backend
from tradewind.datasets.dataset import Dataset
from tradewind.datasets.execution import SCRATCH_FOLDER, Results, removing_leftovers
from tradewind.datasets.rows import OnError
from tradewind.steps import ExecutorStep, Resources, this_output_path
from tradewind.steps.amounts import parse_size
from tradewind.text import truncated_repr

RESUMABLE: Final = ("**",)
"""What the next attempt keeps: shards whose records it finds count, other files are written anew."""
_MAX_RESULTS: Final = 20


@dataclass(frozen=True)
class DatasetStepConfig:
    """What a step of a pipeline gets.

    Attributes:
        pipeline: Function of ``config`` that returns a ``Dataset``.
        config: The user's config, whose versioned values and references make the version.
        output_path: Where ``.dataset`` with the state of the pipeline is.
        backend: How it is processed; outside the version.
        finish: Function of ``config`` and the results that writes a summary.
    """

    pipeline: Callable[[Any], Dataset[Any]]
    config: Any
    output_path: str
    backend: dict[str, Any]
    finish: Callable[[Any, Results], None] | None = None


def dataset_step(
    name: str,
    pipeline: Callable[[Any], Dataset[Any]],
    config: Any = None,
    *,
    resources: Resources | None = None,
    max_parallelism: int = 100,
    memory: str | int = "1GB",
    num_cpus: float = 1.0,
    on_error: OnError = "raise",
    finish: Callable[[Any, Results], None] | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that processes what ``pipeline(config)`` returns, each shard as a Ray task.

    Args:
        name: Name of the step.
        pipeline: A function that the cluster can import, as of any step. Its files go below ``this_output_path()``,
            which it finds in ``config``.
        config: As in ``ExecutorStep``.
        resources: Of the driver, which plans and follows the shards: one CPU if not given.
        max_parallelism: Shards at work at one time.
        memory: Memory of one shard's task, in bytes or as ``"2GB"``.
        num_cpus: CPUs of one shard's task.
        on_error: What happens to a row that fails: ``raise``, ``skip``, or ``quarantine``, which keeps such rows in
            ``.quarantine/`` beside the files.
        finish: Called with ``config`` and the results when all shards are done, for a file about the whole.
        options: Of ``ExecutorStep``, such as ``description`` or ``cluster``.

    Raises:
        ValueError: An option does not take its value.
    """
    if not callable(pipeline):
        raise ValueError(f"Step {name!r}: pipeline is {truncated_repr(pipeline)}: give a function.")
    backend: dict[str, Any] = {
        "max_parallelism": max_parallelism,
        "memory_bytes": parse_size(memory, f"Step {name!r}: memory"),
        "num_cpus": num_cpus,
        "on_error": on_error,
    }
    Backend(**backend)
    held = DatasetStepConfig(pipeline, config, this_output_path(), backend, finish)
    return ExecutorStep(name, run_dataset_step, held, resources=resources, resumable=RESUMABLE, **options)


def run_dataset_step(config: DatasetStepConfig) -> dict[str, Any]:
    """Process the pipeline; return what it counted, and its first rows or files."""
    return copy_context().run(_run_in_context, config)


def _run_in_context(config: DatasetStepConfig) -> dict[str, Any]:
    with removing_leftovers(config.output_path) as remove_leftovers:
        return _run(config, remove_leftovers)


def _run(config: DatasetStepConfig, remove_leftovers: Callable[[], None]) -> dict[str, Any]:
    scratch = f"{config.output_path.rstrip('/')}/{SCRATCH_FOLDER}"
    backend = flow_backend(scratch=scratch, **config.backend)
    set_flow_backend(backend)  # also for what the functions of the pipeline and its summary process
    dataset = config.pipeline(config.config)
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{config.pipeline.__qualname__} returned a {type(dataset).__name__}: return a Dataset.")
    results = backend.execute(dataset)
    remove_leftovers()
    if config.finish is not None:
        config.finish(config.config, results)
    return {
        "results": [str(result) for result in results[:_MAX_RESULTS]],
        "count": len(results),
        "counters": dict(results.counters),
        "rejected": results.rejected,
    }
