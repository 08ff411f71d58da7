"""Airflow DAG that evaluates the model which you name in the trigger form, with the tasks that you choose there.

The model is served by a pool of two engines on the default cluster. Change ENGINES for your chips.
"""

from tradewind import Cpu, Param, experiment_dag, run_param
from tradewind.evaluation.steps import evaluate_lm_evaluation_harness
from tradewind.serving.config import ServingConfig

# On slices: ServingConfig(engine="vllm", resources=TpuSlice("v4-8"), replicas=2), with the image that has vLLM.
ENGINES = ServingConfig(resources=Cpu(), replicas=2, timeout_s=6 * 3600)

evaluated = evaluate_lm_evaluation_harness(
    None,  # the last part of its path is its name
    run_param("model"),
    run_param("tasks"),
    max_eval_instances=run_param("max_documents"),
    name="evaluate_model/scores",
    serving=ENGINES,
    task_path=run_param("task_path"),
    network=run_param("network"),
)

experiment_dag(
    "evaluate_model",
    steps=[evaluated],
    description="Serves a model, and measures it with tasks of the LM Evaluation Harness.",
    params={
        "model": Param(
            "checkpoints/my-model-1a2b3c",
            "A training's output, an export or a checkpoint, below the prefix or anywhere; or hub:ORG/NAME@REVISION.",
            type="string",
            minLength=1,
        ),
        "tasks": Param(["arc_easy", "hellaswag"], "Names of tasks, one a line.", type="array", minItems=1),
        "task_path": Param(None, "Folder with tasks of your own.", type=["null", "string"]),
        "max_documents": Param(None, "Documents of each task at most.", type=["null", "integer"], minimum=1),
        "network": Param(False, "Whether tasks and their data may be downloaded.", type="boolean"),
    },
    tags=["tradewind", "example"],
)
