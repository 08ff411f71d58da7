"""Stub of Marin's executor for the example on a cluster, where functions run and no steps are made.

A checkout of Marin has its own executor here. When Airflow parses the experiment, it imports neither.
"""

from typing import NoReturn

from tradewind import ExecutorStep, output_path_of, this_output_path, versioned

__all__ = ["ExecutorStep", "executor_main", "output_path_of", "this_output_path", "versioned"]


def executor_main(steps: object, description: str | None = None) -> NoReturn:
    """Refuse: no file calls it on a cluster, where ``__name__`` is not ``__main__``."""
    raise RuntimeError("A step's process makes no steps.")
