"""Airflow DAG of a training on a slice that a test takes away while someone looks at it."""

from tradewind import TpuSlice, experiment_dag
from tradewind.recipes.steps import clean, python_sources, tokenize, train, train_tokenizer

sources = python_sources("live/sources", below="email")
tokens = tokenize(
    "live/tokens",
    clean("live/clean", sources, validation_fraction=0.1),
    train_tokenizer("live/tokenizer", sources, vocab_size=512),
)
trained = train(
    "live/train",
    tokens,
    "tiny",
    num_train_steps=600,
    learning_rate=0.01,
    batch_size=8,
    seq_len=64,
    resources=TpuSlice("v4-8"),
    checkpoint_seconds=5,
)
experiment_dag("live_training", [trained], cluster="live")
