"""A model that is served for two tasks: one asks it, one works until a user ends it."""

from typing import Any

from airflow.sdk import DAG

from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.serve_model import served_model
from tradewind.steps import Cpu

FEW = 0.1


def ask(pool: str, question: str) -> Any:
    """Return what the served model answers."""
    import json
    import urllib.request

    from tradewind.serving.start_pool import join_pool

    served = join_pool(pool)
    body = json.dumps({"prompt": question, "max_tokens": 8}).encode()
    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{served.address}/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["text"]


with (
    DAG("serves_model", params={"model": "", "python": "", "engine": "", "log": ""}),
    served_model(
        "serve",
        model="{{ params.model }}",
        engine="command",
        command=["{{ params.python }}", "{{ params.engine }}", "--port", "{port}", "--log", "{{ params.log }}"],
        served_name="tiny",
        runs_on=Cpu(FEW),
        timeout=900,
    ) as served,
):
    RayJobOperator(task_id="ask", python_callable=ask, op_args=[served["name"], "Who is there?"], num_cpus=FEW)
    RayJobOperator(task_id="work", entrypoint="echo started; sleep 300", num_cpus=FEW)
