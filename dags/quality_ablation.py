"""Airflow DAG that measures what a filter is worth: the same training on filtered and on all documents, compared.

It makes some documents for itself. For your own, replace ``documents`` and ``filtered``.
"""

import random
from dataclasses import dataclass

from tradewind import Cpu, ExecutorStep, experiment_dag, output_path_of, this_output_path, versioned
from tradewind.datasets.documents import Document, read_documents, write_documents
from tradewind.recipes.data import GopherRepetition, filter_documents, normalize
from tradewind.recipes.lm.tokens import tokenize_files
from tradewind.recipes.steps import compare, python_sources, train, train_tokenizer

SHARDS = 4  # of the documents, at least 2; the first is held out
MODEL = "tiny"
TRAINING = {"num_train_steps": 40, "learning_rate": 0.01, "batch_size": 8, "seq_len": 64, "resources": Cpu()}


@dataclass(frozen=True)
class MixConfig:
    sources: str
    output_path: str
    bad: int = versioned(60)


def mix(config: MixConfig) -> int:
    """Write sources, and documents of one line that repeats."""
    words = random.Random(1)
    line = " ".join(words.choices(["buy", "now", "cheap", "click", "here", "today"], k=12))
    bad = [Document(f"offer {number}", f"Offer {number}\n" + f"{line}\n" * 100) for number in range(config.bad)]
    return write_documents(config.output_path, [*read_documents(config.sources), *bad])


sources = python_sources("tiny/sources", below="email")  # steps named tiny are shared with train_tiny_model
mixed = ExecutorStep("ablation/mixed", mix, MixConfig(output_path_of(sources), this_output_path()))
documents = normalize("ablation/documents", mixed, shards=SHARDS)
filtered = filter_documents("ablation/filtered", documents, [GopherRepetition()])

# Both trainings have one tokenizer, and are measured on the same documents, of which neither has seen one.
tokenizer = train_tokenizer("ablation/tokenizer", documents, vocab_size=512)
parts = [f"part-{shard:05d}-of-{SHARDS:05d}.parquet" for shard in range(SHARDS)]
runs = {}
for name, kept in {"all": documents, "filtered": filtered}.items():
    training = [kept / part for part in parts[1:]]
    tokens = tokenize_files(f"ablation/tokens_{name}", training, tokenizer, validation_paths=[filtered / parts[0]])
    runs[name] = train(f"ablation/train_{name}", tokens, MODEL, **TRAINING)
comparison = compare("ablation/comparison", runs, title="All documents, and those that a filter keeps")

experiment_dag(
    "quality_ablation",
    steps=[comparison],
    description="Trains a tiny model on filtered and on all documents, and compares their losses on held-out ones.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
