"""Step functions that return Ray references or are Ray functions."""

from __future__ import annotations

import os
from typing import Any

import ray

from tradewind.datasets import Dataset


@ray.remote(num_cpus=0.1)
def square(value: int) -> int:
    return value * value


@ray.remote(num_cpus=0.1)
def squares(values: list[int]) -> list[Any]:
    return [square.remote(value) for value in values]


@ray.remote(num_cpus=0.1)
def breaks(value: Any) -> None:
    raise KeyError(f"no {value}")


def returns_references(config: Any) -> dict[str, Any]:
    return {"nested": [square.remote(2), (square.remote(3), {"deep": square.remote(4)})], "twice": squares.remote([5])}


def breaks_far_away(config: Any) -> list[Any]:
    return [breaks.remote("such key")]


@ray.remote(num_cpus=0.1)
def ray_step(config: Any) -> Any:
    return [square.remote(6)]


def tells_its_secret(config: Any) -> list[Any]:
    return [os.environ.get("KEY", "")[:6], ray.get_runtime_context().get_task_id() is not None]


def tells_its_process(config: Any) -> int:
    return os.getpid()


@ray.remote(num_cpus=0.1)
def ray_step_that_tells_its_process(config: Any) -> int:
    return os.getpid()


def counts_words(config: Any) -> Dataset[str]:
    """A pipeline with a shuffle."""
    words = Dataset.from_list(["a b a", "b c", "a"]).flat_map(str.split)
    return words.group_by(str, reducer=lambda word, same: f"{word}{sum(1 for _ in same)}", num_output_shards=2)
