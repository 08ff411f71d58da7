"""Airflow DAG that trains a language model of Python code every night: the nightly pipeline.

Each night draws its own sample of the collection, so a backfill over three dates trains three models. Steps that do not
depend on the date (the collection, the tokenizer) run once, and all nights share their outputs. Change a param in the
trigger form, such as the learning rate, and only the steps that depend on it run again.
"""

import datetime
import hashlib
from dataclasses import dataclass

from tradewind import (
    ExecutorStep,
    Param,
    TpuSlice,
    experiment_dag,
    night,
    output_path_of,
    run_param,
    this_output_path,
    versioned,
)
from tradewind.datasets.documents import Document, read_documents, write_documents
from tradewind.evaluation.comparisons import require
from tradewind.evaluation.log_probs import evaluate_log_probs
from tradewind.recipes.steps import clean, evaluate, python_sources, report, tokenize, train, train_tokenizer

# A step is a function and its config. This function belongs to this pipeline; the others come with Tradewind.


@dataclass(frozen=True)
class SampleConfig:
    input_path: str
    night: datetime.date
    percent: int
    output_path: str = this_output_path()


def sample_for_night(config: SampleConfig) -> None:
    """Draw the night's sample: a hash of name and date selects each document."""

    def is_drawn(document: Document) -> bool:
        digest = hashlib.sha256(f"{config.night} {document.id}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < config.percent

    documents = read_documents(config.input_path)
    count = write_documents(config.output_path, filter(is_drawn, documents))
    print(f"drew {count} documents for the night of {config.night}")


# Versioned values and references to other steps make the version of a step; its output path ends in the version's hash.
# A step whose output exists does not run again, whichever run made it. Arguments of recipes are versioned.

collection = python_sources("code_lm/collection")

sample = ExecutorStep(
    name="code_lm/sample",
    description="The night's share of the collection.",
    fn=sample_for_night,
    config=SampleConfig(
        input_path=output_path_of(collection),
        night=versioned(night()),  # known at run time: the date on which the data interval starts
        percent=versioned(run_param("sample_percent")),
    ),
)

cleaned = clean("code_lm/clean", sample, validation_fraction=0.05)
tokenizer = train_tokenizer("code_lm/tokenizer", collection, vocab_size=1024)  # the same for every night
tokens = tokenize("code_lm/tokens", cleaned, tokenizer)
trained = train(
    "code_lm/train",
    tokens,
    run_param("model_size"),
    num_train_steps=run_param("train_steps"),
    learning_rate=run_param("learning_rate"),
    batch_size=8,
    seq_len=128,
    resources=TpuSlice("v4-16"),  # one slice of two hosts
    steps_per_eval=20,  # these two suit a model this small
    checkpoint_seconds=60,
)
evaluated = evaluate("code_lm/evaluate", trained)

# The run fails if this model is worse than that of the night before, as far as the held-out texts of both tell.
scores = evaluate_log_probs("code_lm/scores", trained, {"held_out": tokens})
gate = require(scores, "held_out", metric="bits_per_byte_by_document", previous=True, name="code_lm/gate")

experiment_dag(
    "nightly_code_lm",
    steps=[report("code_lm/report", evaluated, title="Nightly language model of Python code"), gate],
    description="Trains a language model of Python code on the night's sample.",
    schedule="@daily",
    params={
        "learning_rate": Param(0.005, "Peak learning rate.", type="number", exclusiveMinimum=0, maximum=1),
        "train_steps": Param(200, "Steps of 8 × 128 tokens each.", type="integer", minimum=2, maximum=100_000),
        "sample_percent": Param(
            40, "Share of the collection that a night draws.", type="integer", minimum=1, maximum=100
        ),
        "model_size": Param("small", "Size of the model.", type="string", enum=["tiny", "small", "125m"]),
    },
    catchup=False,
    max_active_runs=3,
    tags=["tradewind", "example"],
)
