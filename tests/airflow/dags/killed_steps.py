"""An Airflow DAG of one step whose worker kills itself in its first try, at the moment ``params.at``."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from dying import die, then_die

from tradewind import Cpu, ExecutorStep, experiment_dag, run_param, this_output_path, versioned
from tradewind.operators.step import StepOperator
from tradewind.tasks import attempt_runner
from tradewind.tasks.step_notes import StepNotes


@dataclass(frozen=True)
class Config:
    output_path: str
    at: Any


def work(config: Config) -> None:
    """Append a line for each call."""
    with Path(config.output_path, "calls").open("a") as file:
        file.write("called\n")


def killed_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``method`` of the operator so that its first try kills the worker at the run's moment."""

    @functools.wraps(method)
    def call(self: Any, context: Any, **kwargs: Any) -> Any:
        moment = context["params"].get("at") if context["ti"].try_number == 1 else None
        if moment == "before submission":
            attempt_runner.submit = die
        elif moment == "after submission":
            attempt_runner.submit = then_die(attempt_runner.submit)
        elif moment == "after the note":
            StepNotes.finished = then_die(StepNotes.finished)  # type: ignore[method-assign]
        return method(self, context, **kwargs)

    return call


class KilledOnce(StepOperator):
    """Operator that kills its worker in the first try."""

    execute = killed_once(StepOperator.execute)
    execute_complete = killed_once(StepOperator.execute_complete)


step = ExecutorStep("killed/step", work, Config(this_output_path(), versioned(run_param("at"))), resources=Cpu(0.1))
dag = experiment_dag(
    "killed_step", [step], params={"at": ""}, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}
)
if dag is not None:
    dag.get_task("killed_step").__class__ = KilledOnce
