"""Run Ray Data quietly, and spread pieces of work over the cluster.

Each piece is a block of its own, so a lost worker repeats one piece. Ray Data keeps no state beyond a driver. Each
piece leaves a complete file, and the next attempt asks for the missing ones.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from tradewind.datasets.source_files import DownloadError
from tradewind.datasets.token_rows import TokenizingError

_INPUT_ERRORS: Final = (TokenizingError, DownloadError)

_T = TypeVar("_T")


@contextmanager
def quiet_ray_data() -> Iterator[None]:
    """Connect quietly to the surrounding Ray job's cluster, else to a local one that ends with the block."""
    import ray
    from ray.data import DataContext

    starts_ray = not ray.is_initialized()
    if starts_ray:
        ray.init(ignore_reinit_error=True, log_to_driver=False)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns about missing bars
    context = DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        if starts_ray:
            ray.shutdown()


def spread(pieces: Sequence[_T], work: Callable[[_T], Any], *, is_small: bool) -> Iterator[Any]:
    """Yield what ``work`` returns for each piece, in order of completion.

    Args:
        pieces: Arguments of ``work``.
        work: Runs in a worker for each piece.
        is_small: Run in this process, which is faster than to start workers.

    Raises:
        TokenizingError: The first one that ``work`` raises; likewise ``DownloadError``.
    """
    if is_small:
        yield from map(work, pieces)
        return
    with quiet_ray_data():
        import ray

        items = [{"piece": pickle.dumps(piece)} for piece in pieces]
        rows = ray.data.from_items(items, override_num_blocks=len(pieces))
        for row in rows.map(partial(_run_piece, work=work)).iter_rows():
            result = pickle.loads(row["result"])
            if isinstance(result, _INPUT_ERRORS):
                raise result
            yield result


def _run_piece(row: dict[str, Any], work: Callable[[Any], Any]) -> dict[str, Any]:
    """Run one piece; return an error about its input as the result, since Ray would wrap it in a traceback."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one CPU
    result: Any
    try:
        result = work(pickle.loads(row["piece"]))
    except _INPUT_ERRORS as error:
        result = error
    return {"result": pickle.dumps(result)}
