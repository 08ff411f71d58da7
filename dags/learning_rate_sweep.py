"""Airflow DAG that searches the best learning rate of a tiny model: a sweep.

A failed point does not stop the others. The last step compares all finished points, in a table and a picture.
"""

from tradewind import experiment_dag
from tradewind.recipes.steps import clean, compare, python_sources, tokenize, train, train_tokenizer

sources = python_sources("tiny/sources", below="email")  # these four steps are shared with train_tiny_model
cleaned = clean("tiny/clean", sources, validation_fraction=0.1)
tokenizer = train_tokenizer("tiny/tokenizer", sources, vocab_size=512)
tokens = tokenize("tiny/tokens", cleaned, tokenizer)

settings = {"num_train_steps": 20, "batch_size": 8, "seq_len": 64}
points = {
    f"lr={rate}": train(f"sweep/lr_{rate}", tokens, "tiny", learning_rate=rate, **settings)
    for rate in (0.001, 0.01, 0.1)
}

experiment_dag(
    "learning_rate_sweep",
    steps=[compare("sweep/comparison", points, title="Learning rates of a tiny model")],
    description="Trains a tiny model at three learning rates and compares them.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
