"""Ray Data for a recipe: quiet, and on the cluster of the surrounding Ray job if there is one."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from tradewind.datasets.token_rows import TokenizingError


@contextmanager
def quiet_ray_data() -> Iterator[None]:
    """Ray, quiet: the cluster of the surrounding Ray job if there is one, else one on this machine for this block."""
    import ray
    from ray.data import DataContext

    ours = not ray.is_initialized()
    if ours:
        ray.init(ignore_reinit_error=True, log_to_driver=False)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns that there are no bars
    context = DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        if ours:
            ray.shutdown()


# Pieces of work over the cluster with Ray Data, each a block of its own: what a lost worker had in hand is done again.
#
# Ray Data keeps no state over the end of a driver, and has no need to: a piece leaves a file that is whole, and the
# next attempt asks for those that are missing. Few or small pieces are done in this process, which is sooner than
# workers start.

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
