"""Names of the environment variables through which the processes of a step know who they are."""

STEP_VARIABLE = "TRADEWIND_STEP"
"""The version of the step; set in each of its processes, so that a DAG file imported there makes no DAG."""
