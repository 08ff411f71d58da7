"""``python -m benchmarks.data [--quick]``: pipelines beside a tuned loop of processes, Zephyr, Ray Data and datatrove.

datatrove takes part if DATATROVE_PYTHON names a Python that has it, an environment of its own with ``datatrove==0.10.1
xxhash<4 tokenizers spacy orjson``. It uses its own libraries of gzip and JSON.

All use the same cores; the loop also uses the same gzip library and level, and JSON of the standard library. Figures
are comparable within one run only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.data import duplicates, pipelines
from benchmarks.harness import Goal, at_most, bench, median
from benchmarks.processes import in_fresh_process, served
from benchmarks.report import Table, ratio, seconds, times

_MOST_OF_LOOP = 1.2
_FINISHED_S = 5.0
_FINISHED_REQUESTS = 50
_MOST_OF_UNDISTURBED = 1.2
_SIZES = ((14, 8), (26, 11))
"""Bands and rows of signatures: datatrove's, and ours."""
_FASTER = 20.0


def bench_map(quick: bool) -> Iterator[Table | Goal]:
    """Measure read, filter, map and write of packed JSON lines."""
    files, rows = (2, 500) if quick else (8, 60_000)
    datatrove = os.environ.get("DATATROVE_PYTHON")
    size, rounds, peers = in_fresh_process(pipelines.measure_map, files, rows, 1 if quick else 3, datatrove)
    loop, ours = (median(each) or 0.0 for each in zip(*rounds, strict=True))
    table = Table(f"map: {files} files of {rows:,} rows, {size / 1e6:.0f} MB of JSON", ("of", "seconds", "MB/s"))
    table.add("tradewind, on Ray", seconds(ours), f"{size / 1e6 / ours:.0f}")
    for way, spent in {"a loop of processes": loop, **peers}.items():
        table.add(way, seconds(spent), f"{size / 1e6 / spent:.0f}")
    yield table
    quotient = median(ours / loop for loop, ours in rounds) or 0.0
    yield at_most("map, beside a loop of processes", quotient, _MOST_OF_LOOP, times)
    for peer, spent in peers.items():
        yield at_most(f"map, beside {peer}", ours / spent, 1.0, times)


def bench_deduplicate(quick: bool) -> Iterator[Table | Goal]:
    """Measure duplicates by a shuffle of small rows, beside Zephyr and Ray Data's groups."""
    files, rows = (2, 500) if quick else (8, 125_000)
    sizes = {"tradewind": rows, "Zephyr": rows, "Ray Data": min(rows, 10_000)}
    found = {engine: in_fresh_process(pipelines.measure_deduplicate, files, sizes[engine], engine) for engine in sizes}
    table = Table("deduplicate: rows by key", ("of", "rows", "seconds", "rows/s"))
    for engine, (count, spent) in found.items():
        table.add(engine, f"{count:,}", seconds(spent), f"{count / spent:,.0f}")
    yield table
    for peer in ("Zephyr", "Ray Data"):
        count, spent = found[peer]
        yield at_most(
            f"a row, beside {peer}", found["tradewind"][1] / found["tradewind"][0] / (spent / count), 1.0, times
        )


def bench_finished(quick: bool) -> Iterator[Table | Goal]:
    """Measure a run in which all shards are there."""
    shards = 100 if quick else 10_000
    spent = in_fresh_process(pipelines.measure_finished, shards)
    table = Table(f"finished: {shards:,} shards that exist", ("", "seconds"))
    table.add("all are skipped", seconds(spent))
    yield table
    yield at_most(f"{shards:,} finished shards", spent, _FINISHED_S)
    with served(pipelines.cloud_with_files, shards) as cloud:
        spent = in_fresh_process(pipelines.measure_finished_on_cloud, shards, cloud.url)
        requests = sum(cloud.usage().requests.values())
    yield at_most(f"{shards:,} finished shards of a bucket", spent, _FINISHED_S)
    yield at_most("requests for these", requests, _FINISHED_REQUESTS, "{:.0f}".format)


def bench_minhash(quick: bool) -> Iterator[Table | Goal]:
    """Measure signatures of texts by CPU time, beside datatrove's."""
    found = in_fresh_process(duplicates.measure_minhash, 20 if quick else 400, _SIZES, 1 if quick else 3)
    size = found["bytes"] / 1e6
    table = Table(f"minhash: {size:.1f} MB of texts", ("bands x rows", "MB/s a core", "datatrove", "times as fast"))
    quotients = []
    for bands, rows in _SIZES:
        ours, theirs = (median(each) for each in zip(*found[f"{bands}x{rows}"], strict=True))
        assert ours
        peer = (
            ("skipped: no DATATROVE_PYTHON", "-") if theirs is None else (f"{size / theirs:.2f}", ratio(theirs, ours))
        )
        quotients += [] if theirs is None else [theirs / ours]
        table.add(f"{bands} x {rows}", f"{size / ours:.1f}", *peer)
    yield table
    if quotients:
        faster = quotients[0]
        yield Goal("minhash, times datatrove's speed", f">= {_FASTER:g}", f"{faster:.0f}", faster >= _FASTER)


def bench_fuzzy(quick: bool) -> Iterator[Table | Goal]:
    """Measure fuzzy duplicates from the documents to the attributes."""
    documents, shards = (500, 2) if quick else (100_000, 8)
    found = in_fresh_process(duplicates.measure_fuzzy, documents, shards)
    about = f"fuzzy: {documents:,} documents, {found['bytes'] / 1e6:.0f} MB, on a Ray of {pipelines.CORES} CPUs"
    table = Table(about, ("", "figure"))
    for name in ("candidates", "verified", "clusters", "duplicates"):
        table.add(name, f"{found[name]:,}")
    table.add("the whole", seconds(found["seconds"]))
    table.add("signatures alone, on one CPU", seconds(found["signing"]))
    yield table


def bench_resume(quick: bool) -> Iterator[Table | Goal]:
    """Measure what SIGKILL of the process at half time costs."""
    shards = 10 if quick else 100
    repeated, whole, killed = in_fresh_process(pipelines.measure_resume, shards)
    table = Table(f"resume: {shards:,} shards, one after another", ("", "seconds"))
    table.add("undisturbed", seconds(whole))
    table.add("killed at half, and again", seconds(killed))
    yield table
    yield at_most("shards made twice after a kill", repeated, 1, "{:.0f}".format)
    yield at_most("a killed run and the next, beside one", killed / whole, _MOST_OF_UNDISTURBED, times)


if __name__ == "__main__":
    parts = {"map": bench_map, "deduplicate": bench_deduplicate, "finished": bench_finished, "resume": bench_resume}
    bench("data", __doc__, {**parts, "minhash": bench_minhash, "fuzzy": bench_fuzzy})
