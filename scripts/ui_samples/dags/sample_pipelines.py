"""Airflow DAGs of sample steps, all in the worker: trainings and evaluations, failures, formats."""

from __future__ import annotations

from airflow.sdk import DAG, task
from sample_links import link
from sample_work import (
    Chapters,
    Documents,
    Evaluation,
    Formats,
    Report,
    Training,
    Vocabulary,
    evaluate,
    long_documents,
    report,
    train,
    write_chapters,
    write_formats,
    write_tokenizers,
)

from tradewind import ExecutorStep, Param, experiment_dag, on_airflow_worker, output_path_of, run_param, versioned
from tradewind.datasets.pipeline_step import dataset_step
from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
from tradewind.evaluation.comparisons import leaderboard
from tradewind.recipes.speedruns.results import SpeedrunReportConfig, report_speedrun
from tradewind.steps import this_output_path

HERE = on_airflow_worker()


def tiny_model() -> None:
    """Define the pipeline of a training: chapters, documents, two trainings, their evaluations, a leaderboard."""
    chapters = ExecutorStep("tiny/chapters", write_chapters, Chapters(), resources=HERE)
    documents = dataset_step(
        "tiny/documents", long_documents, Documents(output_path_of(chapters)), resources=HERE, on_error="quarantine"
    )
    evaluations = {}
    steps = []
    for size, rate, skill in (("small", versioned(run_param("learning_rate")), 0.55), ("large", versioned(0.004), 0.7)):
        config = Training(output_path_of(documents), rate, run_param("diverges") if size == "small" else False)
        trained = ExecutorStep(
            f"tiny/train_{size}", train, config, resources=HERE, description=f"Trains the {size} model on two slices.",
            resumable=("hf/**", "metrics.jsonl"),
        )  # fmt: skip
        path = output_path_of(trained)
        scores = Evaluation(path, versioned(skill))
        evaluations[size] = ExecutorStep(f"tiny/evaluate_{size}", evaluate, scores, resources=HERE)
        speedrun = SpeedrunReportConfig(
            output_path_of(trained), this_output_path(), "Ada", summary=f"The {size} model."
        )
        steps += [
            ExecutorStep(f"tiny/speedrun_{size}", report_speedrun, speedrun, resources=HERE),
            ExecutorStep(f"tiny/report_{size}", report, Report(path), resources=HERE),
        ]
    experiment_dag(
        "tiny_model",
        [*steps, leaderboard("tiny/board", evaluations, resources=HERE)],
        description="Trains two tiny models and compares them.",
        params={"diverges": Param(False, type="boolean"), "learning_rate": Param(0.002, type="number")},
    )


tiny_model()
experiment_dag("failing", [link("failing/third", link("failing/second", link("failing/first"), fails=True))])
broken = ExecutorStep(
    "broken/chapters", write_chapters, Chapters(rows=versioned(50), cut_shard=versioned(5)), resources=HERE
)
experiment_dag(
    "broken_data",
    [dataset_step("broken/documents", long_documents, Documents(output_path_of(broken)), resources=HERE)],
)
experiment_dag("formats", [ExecutorStep("formats/files", write_formats, Formats(), resources=HERE)])
texts = ExecutorStep("tokens/chapters", write_chapters, Chapters(rows=versioned(40)), resources=HERE)
vocabulary = ExecutorStep("tokens/tokenizer", write_tokenizers, Vocabulary(), resources=HERE)
tokens = TokenizeFilesConfig([output_path_of(texts)], [], this_output_path(), output_path_of(vocabulary, "end"))
experiment_dag("tokens", [ExecutorStep("tokens/cache", tokenize, tokens, resources=HERE)])

with DAG("plain", description="A DAG without steps of Tradewind."):

    @task
    def add(first: int, second: int) -> int:
        return first + second

    add(1, 2)
