"""Airflow DAG of an evaluation on a cluster that a test kills; its engines log their requests beside the model."""

from pathlib import Path

from tradewind import Cpu, experiment_dag, run_param
from tradewind.evaluation.steps import evaluate_lm_evaluation_harness
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.serving.config import ServingConfig

ENGINE = str(Path(__file__).with_name("tiny_engine.py"))

evaluated = evaluate_lm_evaluation_harness(
    "tiny",
    run_param("model"),
    [EvalTaskConfig("colors", 0), EvalTaskConfig("colors", 1), EvalTaskConfig("words", 0)],
    name="evaluates/scores",
    task_path=run_param("tasks"),
    num_concurrent=4,
    serving=ServingConfig(
        engine="command",
        command=("python", ENGINE, "--port", "{port}", "--log", "{model}.jsonl", "--delay", "1"),
        resources=Cpu(0.5),
        replicas=2,
        timeout_s=1800,
        served_name="tiny",
    ),
)
experiment_dag(
    "evaluates", [evaluated], params={"model": "", "tasks": "", "prefix": ""}, cluster="evaluates_on", max_concurrent=1
)
