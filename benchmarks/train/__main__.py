"""``python -m benchmarks.train [--quick]``: a download, beside that of the hub's own client, in seconds.

The hub is a process of its own on the loopback and takes 20 ms for every answer. Figures are comparable within one run
only.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Goal, at_most, bench
from benchmarks.report import Table, megabytes, seconds
from benchmarks.train import downloads

LATENCY_S = 0.02
MOST_OF_THEIRS = 1.05


def bench_download(quick: bool) -> Iterator[Table | Goal]:
    """Measure some large files, and many small ones."""
    shapes = ((4, 1_000_000), (20, 1_000)) if quick else ((40, 16_000_000), (2_000, 10_000))
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


if __name__ == "__main__":
    bench("train", __doc__, {"download": bench_download})
