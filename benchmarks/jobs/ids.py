"""IDs of the followed jobs: a few that run, because each costs the head 90 MB, and many that never start.

The waiting jobs require all CPUs of the head, and one job holds these. Every provider has the same waiting jobs and its
own running jobs, since a log tail begins at a job's first line. DAG files import this module in environments without
Tradewind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

RUNNING = 4
HEAD_CPUS = 8
HOLDER = "holds-all-cpus"
SIZES_VARIABLE = "BENCH_SIZES"


def job_ids(provider: str, count: int) -> list[str]:
    """Return the IDs of the first ``count`` jobs that ``provider`` follows; a smaller count is a prefix."""
    running = [f"{provider}-running-{number}" for number in range(min(RUNNING, count))]
    return running + waiting_ids(count - len(running))


def waiting_ids(count: int) -> list[str]:
    """Return IDs of jobs that never start."""
    return [f"waiting-{number:04}" for number in range(count)]


def batches(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the range of jobs that each DAG follows: the followers of one size continue at the next size."""
    ends = sorted(sizes)
    return list(zip([0, *ends][:-1], ends, strict=True))


def follow_dag_id(size: int) -> str:
    """Return the ID of the DAG whose tasks raise the number of followed jobs to ``size``."""
    return f"follow_{size}"


def sizes_of_environment() -> list[int]:
    """Return the sizes in Airflow's environment."""
    return list(json.loads(os.environ[SIZES_VARIABLE]))
