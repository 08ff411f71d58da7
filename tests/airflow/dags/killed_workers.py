"""A task whose worker kills itself in its first try before or after a call of the operator, as ``params.at`` says."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Context
from dying import die, then_die

import tradewind.operators.ray_job as ray_job
from tradewind.operators.ray_job import RayJobOperator


class KilledOnce(RayJobOperator):
    """Operator that kills its worker in the first try."""

    def execute(self, context: Context) -> Any:
        from tradewind.ray_jobs.client import RayJobs

        moment = context["params"]["at"] if context["ti"].try_number == 1 else ""
        if moment == "before submission":
            RayJobs.submit_or_attach = die  # type: ignore[method-assign]
        elif moment == "after submission":
            RayJobs.submit_or_attach = then_die(RayJobs.submit_or_attach)  # type: ignore[method-assign]
        elif moment == "after deferral is due":
            self.defer = die  # type: ignore[method-assign]
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if context["params"]["at"] == "after success is noted" and context["ti"].try_number == 1:
            ray_job.save_claim = then_die(ray_job.save_claim, lambda _, claim: claim.was_judged)
        return super().execute_complete(context, event)


with DAG(
    "killed_worker",
    params={"at": "", "file": "", "steps": 6},
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
):
    # The job ends when the test creates the file, or after ``params.steps`` pauses.
    wait = "for _ in $(seq {{ params.steps }}); do [ -e {{ params.file }}.go ] && break; sleep 0.5; done"
    KilledOnce(task_id="job", entrypoint="echo ran >> {{ params.file }}; " + wait + "; echo done", num_cpus=0.1)
