"""Airflow DAG of a tiny language model, from text to evaluation: the shortest training pipeline."""

from tradewind import Param, experiment_dag, run_param
from tradewind.recipes.steps import clean, evaluate, python_sources, tokenize, train, train_tokenizer

sources = python_sources("tiny/sources", below="email")
cleaned = clean("tiny/clean", sources, validation_fraction=0.1)
tokenizer = train_tokenizer("tiny/tokenizer", sources, vocab_size=512)
tokens = tokenize("tiny/tokens", cleaned, tokenizer)
trained = train(
    "tiny/train",
    tokens,
    "tiny",
    num_train_steps=run_param("train_steps"),
    learning_rate=0.01,
    batch_size=8,
    seq_len=64,
)

experiment_dag(
    "train_tiny_model",
    steps=[evaluate("tiny/evaluate", trained, sample_tokens=50)],
    description="Trains a tiny language model on one CPU.",
    params={"train_steps": Param(30, "Steps of 8 × 64 tokens each.", type="integer", minimum=2, maximum=10_000)},
    tags=["tradewind", "example"],
)
