"""What Ray clusters and Airflows of tests are given."""

from typing import Final

HASTY: Final = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""For a head that notices within 2 s, instead of 17 s, that a node's process is gone.

A node that is only slow is safe: each of the three checks waits 10 s for its answer (``health_check_timeout_ms``).
"""

CALM: Final = {
    # A trigger that fires before the scheduler has heard that its task was deferred costs a try: it has to hear soon.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}
"""For an Airflow that leaves the cores to others while it has nothing to do; changed files are read all the same."""
