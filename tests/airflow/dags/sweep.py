"""An Airflow DAG of three points of a sweep, of which one fails unless a param mends it, and their comparison."""

from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, experiment_dag, on_airflow_worker, run_param, this_output_path, versioned
from tradewind.recipes.steps import compare

HERE = on_airflow_worker()


@dataclass(frozen=True)
class Config:
    rate: Any
    is_mended: Any = run_param("is_mended")
    output_path: Any = this_output_path()


def measure(config: Config) -> dict[str, float]:
    if config.rate > 1 and not config.is_mended:
        raise ValueError("this rate is above all")
    return {"loss": (config.rate - 0.1) ** 2}


points = {
    f"rate={rate}": ExecutorStep(f"sweep/{rate}", measure, Config(versioned(rate)), resources=HERE)
    for rate in (0.1, 0.5, 2.0)
}
comparison = compare("sweep/table", points, metric="loss", resources=HERE)
experiment_dag("sweep", [comparison], params={"is_mended": False})
