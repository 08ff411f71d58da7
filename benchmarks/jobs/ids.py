"""Which jobs the followers follow: few that run, because each costs the head 90 MB, and many that wait for ever.

The waiting ones want all the CPUs of the head, and one job holds those for ever. They are the same for every provider;
the running ones are not, since a log tail begins at a job's first line. Read by the DAG files too, in environments that
have no Tradewind.
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
    """The ids of the first ``count`` jobs that ``provider`` follows; a smaller count gives the beginning of it."""
    running = [f"{provider}-running-{number}" for number in range(min(RUNNING, count))]
    return running + waiting_ids(count - len(running))


def waiting_ids(count: int) -> list[str]:
    """Ids of jobs that never start."""
    return [f"waiting-{number:04}" for number in range(count)]


def batches(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """From which job to which each DAG follows: the followers of one size go on when the next size is measured."""
    ends = sorted(sizes)
    return list(zip([0, *ends][:-1], ends, strict=True))


def follow_dag_id(size: int) -> str:
    """The DAG whose tasks bring the number of followed jobs up to ``size``."""
    return f"follow_{size}"


def sizes_of_environment() -> list[int]:
    """The sizes that the benchmark has put into Airflow's environment."""
    found: list[int] = json.loads(os.environ[SIZES_VARIABLE])
    return found
