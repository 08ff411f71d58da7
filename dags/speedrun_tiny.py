"""Airflow DAG of a speedrun: compares three tiny models by their compute, with a leaderboard."""

from tradewind import experiment_dag
from tradewind.recipes.speedruns.steps import leaderboard, speedrun
from tradewind.recipes.steps import clean, python_sources, tokenize, train, train_tokenizer

sources = python_sources("tiny/sources", below="email")  # these four steps are shared with train_tiny_model
cleaned = clean("tiny/clean", sources, validation_fraction=0.1)
tokenizer = train_tokenizer("tiny/tokenizer", sources, vocab_size=512)
tokens = tokenize("tiny/tokens", cleaned, tokenizer)

tries = {
    "short": ("A fifth of the steps.", {"num_train_steps": 8, "learning_rate": 0.01}),
    "hot": ("A high learning rate.", {"num_train_steps": 24, "learning_rate": 0.05}),
    "long": ("As many steps as fit.", {"num_train_steps": 40, "learning_rate": 0.01}),
}
runs = {
    name: speedrun(
        f"speedrun/{name}-results",
        train(f"speedrun/{name}", tokens, "tiny", batch_size=8, seq_len=64, **options),
        author="Ada Lovelace",
        description=about,
    )
    for name, (about, options) in tries.items()
}

experiment_dag(
    "speedrun_tiny",
    steps=[leaderboard("speedrun/leaderboard", runs, budgets=[1e10, 1e11], title="Tiny models of Python code")],
    description="Trains three tiny models and ranks them by their loss under two budgets of FLOPs.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
