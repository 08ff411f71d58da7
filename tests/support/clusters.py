"""Settings of the Ray clusters and Airflows in tests."""

from typing import Final

HASTY: Final = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""Settings for a head that detects the loss of a node's process within 2 s instead of 17 s.

A slow node is not declared dead: each of the three checks waits 10 s for its answer (``health_check_timeout_ms``).
"""

CALM: Final = {
    # The scheduler must learn of a deferral soon: a trigger that fires before that costs a try.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}
"""Settings for an Airflow that uses little CPU while idle; it still reads changed files."""
