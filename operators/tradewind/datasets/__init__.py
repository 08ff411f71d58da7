"""Data sets: download, process and tokenize them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tradewind.datasets import counters
    from tradewind.datasets.backends import Backend, create_backend, flow_backend, set_flow_backend
    from tradewind.datasets.dataset import Dataset, ShardInfo
    from tradewind.datasets.per_file import run_over_files, sentinel
    from tradewind.datasets.pipeline_step import dataset_step
    from tradewind.datasets.readers import load_file, load_jsonl, load_parquet, load_text, load_warc, load_zip_members
    from tradewind.datasets.stages import PipelineError

_MODULES: Final = {
    "Backend": "backends",
    "Dataset": "dataset",
    "PipelineError": "stages",
    "ShardInfo": "dataset",
    "create_backend": "backends",
    "dataset_step": "pipeline_step",
    "flow_backend": "backends",
    "load_file": "readers",
    "load_jsonl": "readers",
    "load_parquet": "readers",
    "load_text": "readers",
    "load_warc": "readers",
    "load_zip_members": "readers",
    "run_over_files": "per_file",
    "sentinel": "per_file",
    "set_flow_backend": "backends",
}

__all__ = [
    "Backend",
    "Dataset",
    "PipelineError",
    "ShardInfo",
    "counters",
    "create_backend",
    "dataset_step",
    "flow_backend",
    "load_file",
    "load_jsonl",
    "load_parquet",
    "load_text",
    "load_warc",
    "load_zip_members",
    "run_over_files",
    "sentinel",
    "set_flow_backend",
]


def __getattr__(name: str) -> Any:  # DAG files import the package for other modules: load only what is asked for
    if name in _MODULES:
        return getattr(import_module(f"tradewind.datasets.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
