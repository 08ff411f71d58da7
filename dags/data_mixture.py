"""Airflow DAG that compares training a tiny model on a mixture of two data sets and on one of them."""

from tradewind import experiment_dag
from tradewind.recipes.lm.steps import train_mixture
from tradewind.recipes.steps import clean, compare, python_sources, tokenize, train_tokenizer

emails = python_sources("tiny/sources", below="email")  # steps named tiny are shared with train_tiny_model
tokenizer = train_tokenizer("tiny/tokenizer", emails, vocab_size=512)  # one for all components
others = python_sources("mixture/sources", below="asyncio")
components = {
    "email": tokenize("tiny/tokens", clean("tiny/clean", emails, validation_fraction=0.1), tokenizer),
    "asyncio": tokenize("mixture/tokens", clean("mixture/clean", others, validation_fraction=0.1), tokenizer),
}
weights = {
    "alone": {"email": 1, "asyncio": 0},  # weight 0: evaluated, but not trained on
    "mixed": {"email": 3, "asyncio": 1},
}
settings = {"num_train_steps": 20, "learning_rate": 0.01, "batch_size": 8, "seq_len": 64}
runs = {
    name: train_mixture(f"mixture/{name}", components, "tiny", weights=shares, **settings)
    for name, shares in weights.items()
}

experiment_dag(
    "data_mixture",
    steps=[compare("mixture/comparison", runs, metric="eval_losses.asyncio", title="Mixtures of Python code")],
    description="Trains a tiny model on one component and on a mixture, and compares their losses on each.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
