"""``python -m benchmarks.data [--quick]``: pipelines beside a tuned loop of processes, and beside Ray Data.

All use the same cores, the same gzip library and level, and JSON of the standard library. Figures are comparable within
one run only.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.data import pipelines
from benchmarks.harness import Goal, at_most, bench, median
from benchmarks.processes import in_fresh_process
from benchmarks.report import Table, seconds, times

_MOST_OF_LOOP = 1.2
_FINISHED_S = 5.0


def bench_map(quick: bool) -> Iterator[Table | Goal]:
    """Measure read, filter, map and write of packed JSON lines."""
    files, rows = (2, 500) if quick else (8, 60_000)
    size, rounds = in_fresh_process(pipelines.measure_map, files, rows, 1 if quick else 3)
    loop, ours = (median(each) or 0.0 for each in zip(*rounds, strict=True))
    table = Table(f"map: {files} files of {rows:,} rows, {size / 1e6:.0f} MB of JSON", ("of", "seconds", "MB/s"))
    table.add("tradewind, on Ray", seconds(ours), f"{size / 1e6 / ours:.0f}")
    table.add("a loop of processes", seconds(loop), f"{size / 1e6 / loop:.0f}")
    yield table
    quotient = median(ours / loop for loop, ours in rounds) or 0.0
    yield at_most("map, beside a loop of processes", quotient, _MOST_OF_LOOP, times)


def bench_deduplicate(quick: bool) -> Iterator[Table | Goal]:
    """Measure duplicates by a shuffle of small rows, beside Ray Data's groups."""
    files, rows = (2, 500) if quick else (8, 125_000)
    ours = in_fresh_process(pipelines.measure_deduplicate, files, rows, True)
    theirs = in_fresh_process(pipelines.measure_deduplicate, files, min(rows, 10_000), False)
    table = Table("deduplicate: rows by key", ("of", "rows", "seconds", "rows/s"))
    for way, (count, spent) in (("tradewind, on Ray", ours), ("Ray Data, map_groups", theirs)):
        table.add(way, f"{count:,}", seconds(spent), f"{count / spent:,.0f}")
    yield table
    yield at_most("a row, beside Ray Data", ours[1] / ours[0] / (theirs[1] / theirs[0]), 1.0, times)


def bench_finished(quick: bool) -> Iterator[Table | Goal]:
    """Measure a run in which all shards are there."""
    shards = 100 if quick else 10_000
    spent = in_fresh_process(pipelines.measure_finished, shards)
    table = Table(f"finished: {shards:,} shards that exist", ("", "seconds"))
    table.add("all are skipped", seconds(spent))
    yield table
    yield at_most(f"{shards:,} finished shards", spent, _FINISHED_S)


if __name__ == "__main__":
    bench("data", __doc__, {"map": bench_map, "deduplicate": bench_deduplicate, "finished": bench_finished})
