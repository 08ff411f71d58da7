"""The Airflow DAG that a drill disturbs when it is given no other: a tiny model, trained on two hosts for a minute."""

import random
from dataclasses import dataclass

from tradewind import (
    ExecutorStep,
    Param,
    TpuSlice,
    experiment_dag,
    output_path_of,
    run_param,
    this_output_path,
    versioned,
)
from tradewind.datasets.documents import Document, write_documents
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
from tradewind.recipes.train_lm import RESUMABLE, LmTrainConfig, train_lm

WORDS = ["trade", "wind", "sail", "mast", "rope", "knot", "tide", "harbour", "compass", "anchor"]


@dataclass(frozen=True)
class DataConfig:
    documents: int
    output_path: str


def make_data(config: DataConfig) -> None:
    """Write documents of random words, a tokenizer for them, and their tokens."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=200)) for _ in range(config.documents)]
    for split, drawn in (("train", texts[16:]), ("validation", texts[:16])):
        named = (Document(f"{split}-{number}", text) for number, text in enumerate(drawn))
        write_documents(f"{config.output_path}/documents/{split}", named)
    documents, tokenizer = f"{config.output_path}/documents", f"{config.output_path}/tokenizer"
    train_bpe_tokenizer(BpeTokenizerConfig(documents, tokenizer, vocab_size=300))
    build_token_cache(TokenCacheConfig(documents, tokenizer, f"{config.output_path}/tokens"))


data = ExecutorStep(
    name="drill/data",
    fn=make_data,
    config=DataConfig(documents=versioned(256), output_path=this_output_path()),
)

train = ExecutorStep(
    name="drill/train",
    fn=train_lm,
    resources=TpuSlice("v4-16"),
    resumable=RESUMABLE,
    config=LmTrainConfig(
        cache_path=output_path_of(data, "tokens"),
        tokenizer_path=output_path_of(data, "tokenizer"),
        num_train_steps=versioned(run_param("steps")),
        batch_size=versioned(8),
        seq_len=versioned(32),
        steps_per_eval=1000,
        max_eval_batches=1,
        checkpoint_seconds=2.0,
        output_path=this_output_path(),
    ),
)

experiment_dag(
    "drill_training",
    steps=[train],
    description="A tiny training for `tradewind rehearse drill`.",
    params={"steps": Param(200, "Training steps.", type="integer", minimum=10)},
    tags=["tradewind", "rehearsal"],
)
