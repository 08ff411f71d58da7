"""``python -m benchmarks [--quick] [PART...]``: parsing, resolving and reusing, each beside a peer or bound."""

from __future__ import annotations

from benchmarks.airflow.parse import bench_parse
from benchmarks.airflow.runs import bench_reuse
from benchmarks.harness import bench
from benchmarks.resolve import bench_resolve

PARTS = {"parse": bench_parse, "resolve": bench_resolve, "reuse": bench_reuse}

if __name__ == "__main__":
    bench("bench", __doc__, PARTS)
