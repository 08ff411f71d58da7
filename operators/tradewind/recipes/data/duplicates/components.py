"""Connected components of a graph whose edges are in files: each node gets the smallest node that it is connected with.

Large stars and small stars in turn (Kiveris and others, 2014): a node connects its larger neighbours, and then its
smaller ones, with the smallest of all. Both are a ``group_by`` whose rows pass one by one, so memory is bounded for any
graph, and each round continues where it was lost. The number of rounds grows with the logarithm of the nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, counters, flow_backend
from tradewind.datasets.files import join
from tradewind.recipes.data.document_sets import part_pattern

_CHANGED: Final = "changed"
_Edge = tuple[str, str]


def edge_schema() -> Any:
    """Return the columns of edges: ``node``, and ``root``, which is smaller."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("node", "root")])


def connected_components(edges: Sequence[str], folder: str) -> list[str]:
    """Return files with a row ``node``, ``root`` for each node but the smallest of a component, which is its root.

    Args:
        edges: Files of ``edge_schema``.
        folder: Keeps the files of each round.
    """
    for number in itertools.count():
        both = Dataset.from_list(edges).load_parquet(("node", "root")).flat_map(_both_directions)
        larger = both.group_by(itemgetter(0), sort_by=itemgetter(1), reducer=_large_star)
        stars = larger.group_by(itemgetter(0), sort_by=itemgetter(1), reducer=_small_star).map(_as_row)
        pattern = part_pattern(join(folder, f"round-{number:02d}"), ".parquet")
        results = flow_backend().execute(stars.write_parquet(pattern, edge_schema()))
        edges = list(results)
        if not results.counters.get(_CHANGED):
            break
    return list(edges)


def _both_directions(row: dict[str, Any]) -> list[_Edge]:
    return [(row["node"], row["root"]), (row["root"], row["node"])]


def _large_star(node: str, edges: Iterator[_Edge]) -> Iterator[_Edge]:
    """Connect the larger neighbours of a node with the smallest one, or with the node if it is smaller."""
    neighbours = _distinct(edges)
    first = next(neighbours)
    root = min(first, node)
    for neighbour in itertools.chain([first], neighbours):
        if neighbour > node:
            if root != node:
                counters.increment(_CHANGED)
            yield neighbour, root


def _small_star(node: str, edges: Iterator[_Edge]) -> Iterator[_Edge]:
    """Connect a node and its smaller neighbours with the smallest one."""
    neighbours = _distinct(edges)
    root = next(neighbours)
    yield node, root
    for neighbour in neighbours:
        counters.increment(_CHANGED)
        yield neighbour, root


def _distinct(edges: Iterator[_Edge]) -> Iterator[str]:
    """Yield the other ends of edges, which are sorted."""
    return (other for other, _ in itertools.groupby(map(itemgetter(1), edges)))


def _as_row(edge: _Edge) -> dict[str, str]:
    return {"node": edge[0], "root": edge[1]}
