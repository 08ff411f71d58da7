"""Pieces of work over the cluster with Ray Data, each a block of its own: what a lost worker had in hand is done again.

Ray Data keeps no state over the end of a driver, and has no need to: a piece leaves a file that is whole, and the next
attempt asks for those that are missing. Few or small pieces are done in this process, which is sooner than workers
start.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from tradewind.datasets.ray_data import quiet_ray_data
from tradewind.datasets.tokenizing.reading import TokenizingError

_T = TypeVar("_T")


def spread(pieces: Sequence[_T], work: Callable[[_T], Any], *, is_small: bool) -> Iterator[Any]:
    """What ``work`` returns for each piece, as they end.

    Raises:
        TokenizingError: As raised by ``work``, for the first piece that has one.
    """
    if is_small:
        yield from map(work, pieces)
        return
    with quiet_ray_data():
        import ray

        items = [{"piece": pickle.dumps(piece)} for piece in pieces]
        rows = ray.data.from_items(items, override_num_blocks=len(pieces))
        for row in rows.map(partial(_done, work=work)).iter_rows():
            done = pickle.loads(row["done"])
            if isinstance(done, TokenizingError):
                raise done
            yield done


def _done(row: dict[str, Any], work: Callable[[Any], Any]) -> dict[str, Any]:
    """An error is a result here: Ray would wrap it up in where it happened."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one CPU
    done: Any
    try:
        done = work(pickle.loads(row["piece"]))
    except TokenizingError as error:
        done = error
    return {"done": pickle.dumps(done)}
