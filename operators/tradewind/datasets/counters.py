"""Count what a user's functions see; the log, the result and ``progress.json`` show the sums."""

from __future__ import annotations

from tradewind.datasets.rows import current_rows


def increment(name: str, by: int = 1) -> None:
    """Add ``by`` to the counter ``name`` of the pipeline that runs; outside of one, do nothing.

    A shard that is done again after a loss counts once.
    """
    rows = current_rows.get()
    if rows is not None:
        rows.counters[name] += by
