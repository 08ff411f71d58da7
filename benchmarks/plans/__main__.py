"""``python -m benchmarks.plans [--quick] [PART...]``: what it takes to find out that nothing need run.

Figures are comparable within one run only.
"""

from __future__ import annotations

from benchmarks.harness import bench
from benchmarks.plans.costs import bench_plans
from benchmarks.plans.runs import bench_runs

if __name__ == "__main__":
    bench("plans", __doc__, {"plans": bench_plans, "runs": bench_runs})
