"""Names of Marin's executor for the example; a checkout of Marin has its own executor here.

The functions of its steps import this on a cluster, and the experiment does when it is run as a script. Airflow imports
neither.
"""

from tradewind import ExecutorStep, executor_main, output_path_of, this_output_path, versioned

__all__ = ["ExecutorStep", "executor_main", "output_path_of", "this_output_path", "versioned"]
