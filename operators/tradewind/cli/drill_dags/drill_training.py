"""Default Airflow DAG of a drill: a tiny model, trained on two hosts for a minute."""

import random
from dataclasses import dataclass

from tradewind import ExecutorStep, Param, TpuSlice, experiment_dag, run_param, this_output_path, versioned
from tradewind.datasets.documents import Document, write_documents
from tradewind.recipes.steps import train
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer

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

trained = train(
    "drill/train",
    data / "tokens",
    "tiny",
    tokenizer=data / "tokenizer",
    num_train_steps=run_param("steps"),
    learning_rate=0.01,
    batch_size=8,
    seq_len=32,
    steps_per_eval=1000,
    max_eval_batches=1,
    checkpoint_seconds=2.0,
    resources=TpuSlice("v4-16"),
)

experiment_dag(
    "drill_training",
    steps=[trained],
    description="A tiny training for `tradewind rehearse drill`.",
    params={"steps": Param(200, "Training steps.", type="integer", minimum=10)},
    tags=["tradewind", "rehearsal"],
)
