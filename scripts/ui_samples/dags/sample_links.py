"""Sample steps that write a line each, or fail."""

from __future__ import annotations

from sample_work import Link, write_link

from tradewind import ExecutorStep, on_airflow_worker, output_path_of, versioned


def link(name: str, *inputs: ExecutorStep, fails: bool = False) -> ExecutorStep:
    config = Link(versioned(name), [output_path_of(each) for each in inputs], versioned(fails))
    return ExecutorStep(name, write_link, config, resources=on_airflow_worker())
