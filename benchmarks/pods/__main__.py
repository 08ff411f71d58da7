"""``python -m benchmarks.pods [--quick] [PART...]``: what a lost slice costs, and what the pod runner costs.

Figures are comparable within one run only.
"""

from __future__ import annotations

from benchmarks.harness import bench
from benchmarks.pods.overhead import bench_overhead
from benchmarks.pods.recovery import bench_recovery

if __name__ == "__main__":
    bench("pods", __doc__, {"recovery": bench_recovery, "overhead": bench_overhead})
