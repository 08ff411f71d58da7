"""``python -m benchmarks.train [--quick]``: a training, and what it needs before, beside what others do it with.

A download beside that of the hub's own client: the hub is a process of its own on the loopback and takes 20 ms for
every answer. Tokenizing beside Levanter's own builder and a plain loop of Ray Data. Training beside Levanter's own main
function. Figures are comparable within one run only.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.harness import Goal, at_most, bench
from benchmarks.processes import in_fresh_process
from benchmarks.report import Table, megabytes, seconds
from benchmarks.train import downloads, steps, tokens

LATENCY_S = 0.02
MOST_OF_THEIRS = 1.05
MOST_OF_THEIR_STEPS = 1.01
MANY_FILES = 10_000
FINISHED_S = 5.0


def bench_download(quick: bool) -> Iterator[Table | Goal]:
    """Measure some large files, and many small ones."""
    shapes = ((4, 1_000_000), (20, 1_000)) if quick else ((20, 16_000_000), (1_000, 10_000))
    for files, file_bytes in shapes:
        found = downloads.compare(files, file_bytes, LATENCY_S, 1 if quick else 5)
        table = Table(
            f"download: {files:,} files of {file_bytes / 1e6:g} MB", ("of", "seconds", "MB/s", "client CPU", "memory")
        )
        for one in found:
            rate = f"{files * file_bytes / 1e6 / one.seconds:.0f}"
            table.add(one.way, seconds(one.seconds), rate, seconds(one.cpu_s), megabytes(one.peak_mb))
        yield table
        here, there = (one.seconds for one in found)
        yield at_most(f"{files:,} files, beside huggingface_hub", here / there, MOST_OF_THEIRS, "{:.2f}".format)


def bench_tokenize(quick: bool) -> Iterator[Table | Goal]:
    """Measure some large files, and many that are finished."""
    files, file_bytes = (2, 100_000) if quick else (6, 16_000_000)
    total, found = tokens.compare(files, file_bytes, 1 if quick else 3)
    table = Table(
        f"tokenize: {files} files of {file_bytes / 1e6:g} MB, {tokens.VOCABULARY:,} tokens in the vocabulary",
        ("of", "seconds", "MB/s", "ours by theirs"),
        notes=("each in a new process, Ray started and Levanter imported before; Ray Data's loop makes no cache",),
    )
    for one in found:
        table.add(one.way, seconds(one.seconds), f"{total / 1e6 / one.seconds:.2f}", f"{one.of_ours:.2f}")
    yield table
    for one in found[1:]:
        yield at_most(f"tokenizing, beside {one.way}", one.of_ours, MOST_OF_THEIRS, "{:.2f}".format)
    many = 100 if quick else MANY_FILES
    first, again = in_fresh_process(tokens.measure_finished, many)
    table = Table(f"tokenize: {many:,} files of one text", ("", "seconds"))
    table.add("all of them", seconds(first))
    table.add("all are finished", seconds(again))
    yield table
    yield at_most(f"{many:,} finished files", again, FINISHED_S)


def bench_steps(quick: bool) -> Iterator[Table | Goal]:
    """Measure the steps of a small training."""
    found = steps.compare(2 if quick else 120, 1 if quick else 4)
    low, high = found.spread
    by_theirs = median(found.quotients)
    table = Table(
        f"train: steps of {steps.BATCH} x {steps.LENGTH} tokens, one CPU device",
        ("of", "tokens/s"),
        notes=(
            f"the two alternate after {steps.BLOCK} steps; in the median of {len(found.quotients)} blocks, ours takes "
            f"{by_theirs:.4f} of Levanter's time ({low:.4f} to {high:.4f}: 95 %)",
        ),
    )
    table.add("tradewind", f"{found.ours:,.0f}")
    table.add("Levanter's train_lm", f"{found.levanters:,.0f}")
    yield table
    yield at_most("steps, beside Levanter's train_lm (upper end)", high, MOST_OF_THEIR_STEPS, "{:.4f}".format)


if __name__ == "__main__":
    bench("train", __doc__, {"download": bench_download, "tokenize": bench_tokenize, "steps": bench_steps})
