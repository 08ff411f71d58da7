"""Step graphs of a few shapes and any size; a graph is a list that holds, for each node, the nodes it reads.

Nodes come after the ones they read. The steps have a config like a real one: versioned and unversioned values, one
reference for each node that is read, and their own output path.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tradewind import ExecutorStep, output_path_of, this_output_path, versioned

Graph = list[tuple[int, ...]]

LATTICE_WIDTH = 10


@dataclass(frozen=True)
class BenchConfig:
    """What a step of the benchmarks is given."""

    index: int
    learning_rate: float
    output_path: str
    comment: str = "does not count in the version"
    inputs: list[Any] = field(default_factory=list)


def do_nothing(config: BenchConfig) -> None:
    """The function of every step here."""


def chain(count: int) -> Graph:
    """Each node reads the one before."""
    return [(i - 1,) if i else () for i in range(count)]


def lattice(count: int) -> Graph:
    """Layers of ``LATTICE_WIDTH`` nodes; each reads the node above it and that one's right neighbour, in a ring."""
    width = LATTICE_WIDTH
    first_layer: Graph = [()] * min(width, count)
    return first_layer + [(i - width, i - width + _to_right(i)) for i in range(width, count)]


def _to_right(node: int) -> int:
    """How far the right neighbour of ``node`` in its layer is away, in node numbers."""
    return 1 if (node + 1) % LATTICE_WIDTH else 1 - LATTICE_WIDTH


def fan(count: int) -> Graph:
    """One source, ``count - 2`` nodes that read it, and one node that reads all of those."""
    middle = range(1, count - 1)
    return [(), *((0,) for _ in middle), tuple(middle)]


SHAPES: dict[str, Callable[[int], Graph]] = {"chain": chain, "lattice": lattice, "fan": fan}


def steps_of(graph: Graph) -> list[ExecutorStep]:
    """A step for each node."""
    steps: list[ExecutorStep] = []
    for index, reads in enumerate(graph):
        config = BenchConfig(
            index=versioned(index),
            learning_rate=versioned(3e-4),
            output_path=this_output_path(),
            inputs=[output_path_of(steps[read], "data") for read in reads],
        )
        steps.append(ExecutorStep(f"bench/step_{index:05}", do_nothing, config))
    return steps


def last_steps(graph: Graph, steps: Sequence[ExecutorStep]) -> list[ExecutorStep]:
    """The steps that no other reads: those that an experiment of the whole graph wants."""
    read = {node for reads in graph for node in reads}
    return [step for index, step in enumerate(steps) if index not in read]


def checked_output(index: int, prefix: str) -> str:
    """Where the task of that node looks, if every task looks for itself."""
    return posixpath.join(prefix, "checked", str(index))
