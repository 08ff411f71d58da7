"""Does a second data set help a tiny model: a mixture beside a training on one component, as an Airflow DAG."""

from tradewind import experiment_dag
from tradewind.recipes.lm.steps import train_mixture
from tradewind.recipes.steps import clean, compare, python_sources, tokenize, train_tokenizer

sources = {name: python_sources(f"mixture/{name}/sources", below=name) for name in ("email", "asyncio")}
tokenizer = train_tokenizer("mixture/tokenizer", sources["email"], vocab_size=512)  # one for all components
tokens = {
    name: tokenize(
        f"mixture/{name}/tokens", clean(f"mixture/{name}/clean", documents, validation_fraction=0.1), tokenizer
    )
    for name, documents in sources.items()
}

mixtures = {
    "email alone": {"email": 1, "asyncio": 0},  # of weight 0: measured, and not trained on
    "three to one": {"email": 3, "asyncio": 1},
}
runs = {
    label: train_mixture(
        f"mixture/{label.replace(' ', '_')}", tokens, "tiny", weights=weights, num_train_steps=20, seq_len=64
    )
    for label, weights in mixtures.items()
}

experiment_dag(
    "data_mixture",
    steps=[compare("mixture/comparison", runs, metric="eval_losses.asyncio", title="Mixtures of Python code")],
    description="Trains a tiny model on two mixtures and compares their losses on each component.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
