"""A language model of Python code, trained anew every night: the nightly pipeline as an Airflow DAG.

Each night draws its own sample of the collection, so a backfill over three dates trains three models. What does not
depend on the date (the collection, the tokenizer) is made once and shared by all of them. Change a param in the
trigger form, such as the learning rate, and only the steps that depend on it run again.
"""

import datetime
import hashlib
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

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
from tradewind.datasets.clean import CleanAndShardConfig, clean_and_shard
from tradewind.datasets.documents import Document, read_documents, write_documents
from tradewind.recipes.evaluate_lm import LmEvalConfig, evaluate_lm
from tradewind.recipes.report import ReportConfig, write_report
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
from tradewind.recipes.train_lm import RESUMABLE, LmTrainConfig, train_lm

# A step is a function and its config. These two functions are this pipeline's own; the others come with Tradewind.


LEFT_OUT = {"test", "tests", "site-packages", "encodings"}  # the last are mostly tables of numbers


@dataclass(frozen=True)
class CollectConfig:
    python: str
    output_path: str


def collect_sources(config: CollectConfig) -> None:
    """Collect the sources of Python's standard library: real text that every machine has."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != config.python:
        raise ValueError(f"This pipeline is about Python {config.python}, but the cluster runs {running}.")
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in library.rglob("*.py") if not LEFT_OUT.intersection(file.relative_to(library).parts))
    documents = (
        Document(str(file.relative_to(library)), file.read_text(encoding="utf-8", errors="replace")) for file in files
    )
    print(f"collected {write_documents(config.output_path, documents)} files from Python {running}'s standard library")


@dataclass(frozen=True)
class SampleConfig:
    input_path: str
    night: datetime.date
    percent: int
    output_path: str


def sample_for_night(config: SampleConfig) -> None:
    """Draw the night's sample: each document is in or out by a hash of its name and the date."""

    def is_drawn(document: Document) -> bool:
        digest = hashlib.sha256(f"{config.night} {document.id}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < config.percent

    documents = read_documents(config.input_path)
    count = write_documents(config.output_path, filter(is_drawn, documents))
    print(f"drew {count} documents for the night of {config.night}")


# Versioned values, and references to other steps, make the version of a step; its output path ends in a hash of it.
# A step whose output is there is not run again, whichever run made it.

collection = ExecutorStep(
    name="code_lm/collection",
    description="Python sources of the standard library, one document a file.",
    fn=collect_sources,
    config=CollectConfig(
        python=versioned(f"{sys.version_info.major}.{sys.version_info.minor}"),
        output_path=this_output_path(),
    ),
)

sample = ExecutorStep(
    name="code_lm/sample",
    description="The night's share of the collection.",
    fn=sample_for_night,
    config=SampleConfig(
        input_path=output_path_of(collection),
        night=versioned(night()),  # known once a run exists: the date its data interval starts
        percent=versioned(run_param("sample_percent")),
        output_path=this_output_path(),
    ),
)

cleaned = ExecutorStep(
    name="code_lm/clean",
    description="Cleaned, deduplicated, split into training and validation, and sharded with Ray Data.",
    fn=clean_and_shard,
    config=CleanAndShardConfig(
        input_path=output_path_of(sample),
        validation_fraction=versioned(0.05),
        output_path=this_output_path(),
    ),
)

tokenizer = ExecutorStep(
    name="code_lm/tokenizer",
    description="A byte-level BPE tokenizer of the whole collection, the same for every night.",
    fn=train_bpe_tokenizer,
    config=BpeTokenizerConfig(
        input_path=output_path_of(collection),
        vocab_size=versioned(1024),
        output_path=this_output_path(),
    ),
)

tokens = ExecutorStep(
    name="code_lm/tokens",
    description="Levanter's token cache.",
    fn=build_token_cache,
    config=TokenCacheConfig(
        input_path=output_path_of(cleaned),
        tokenizer_path=output_path_of(tokenizer),
        output_path=this_output_path(),
    ),
)

train = ExecutorStep(
    name="code_lm/train",
    description="A small Llama, trained with Levanter on one slice of two hosts.",
    fn=train_lm,
    resources=TpuSlice("v4-16"),
    resumable=RESUMABLE,
    config=LmTrainConfig(
        cache_path=output_path_of(tokens),
        tokenizer_path=output_path_of(tokenizer),
        model_size=versioned(run_param("model_size")),
        num_train_steps=versioned(run_param("train_steps")),
        learning_rate=versioned(run_param("learning_rate")),
        output_path=this_output_path(),
    ),
)

evaluate = ExecutorStep(
    name="code_lm/evaluate",
    description="Validation loss and bits per byte, from the checkpoint and from the Hugging Face export.",
    fn=evaluate_lm,
    config=LmEvalConfig(
        train_path=output_path_of(train),
        cache_path=output_path_of(tokens),
        tokenizer_path=output_path_of(tokenizer),
        model_size=versioned(run_param("model_size")),
        output_path=this_output_path(),
    ),
)

report = ExecutorStep(
    name="code_lm/report",
    description="The night's report, with its loss curve.",
    fn=write_report,
    config=ReportConfig(
        train_path=output_path_of(train),
        eval_path=output_path_of(evaluate),
        title="Nightly language model of Python code",
        output_path=this_output_path(),
    ),
)

experiment_dag(
    "nightly_code_lm",
    steps=[report],
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
