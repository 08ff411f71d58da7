"""An Airflow DAG of one step on a slice of two hosts; JAX sums one number per process."""

import os
from dataclasses import dataclass
from pathlib import Path

from tradewind import ExecutorStep, TpuSlice, experiment_dag, this_output_path


@dataclass(frozen=True)
class Config:
    output_path: str


def add_up(config: Config) -> None:
    """Write on each host the rank, its index, and the sum over all processes, which ``run_function`` connects."""
    import jax

    mine = jax.numpy.array([10.0 ** jax.process_index()])
    total = jax.pmap(lambda x: jax.lax.psum(x, "hosts"), axis_name="hosts")(mine)
    told = f"process {jax.process_index()} of {jax.process_count()} on host {os.environ['TPU_WORKER_ID']}: "
    Path(config.output_path, f"process-{jax.process_index()}").write_text(f"{told}{float(total[0])}")


step = ExecutorStep("two_hosts/sum", add_up, Config(this_output_path()), resources=TpuSlice("v4-16"))
experiment_dag("two_hosts", [step])
