"""What the experiment beside imports on a cluster, where its functions run and no step is made.

In a checkout of Marin, its own executor lies here. While Airflow reads the experiment, neither is looked at.
"""

from typing import NoReturn

from tradewind import ExecutorStep, output_path_of, this_output_path, versioned

__all__ = ["ExecutorStep", "executor_main", "output_path_of", "this_output_path", "versioned"]


def executor_main(steps: object, description: str | None = None) -> NoReturn:
    """No file calls it on a cluster, where its guard does not run."""
    raise RuntimeError("A step's process makes no steps.")
