"""Small checkout in Marin's form: experiments, helpers that they share, and a library."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tradewind.marin import RefusedFileError
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate
from tradewind.marin.sandbox.running import Run
from tradewind.steps import ExecutorStep, InputName

EXECUTOR = (
    "from marin.execution.executor import ExecutorStep, executor_main, output_path_of, this_output_path, versioned\n"
)
STEP = "step = ExecutorStep(name='made', fn=None, config=None)\n"
MAKE = "executor_main([ExecutorStep(name, None, None)])\n"
"""End of a file that makes one step, whose name is the value of ``name``."""

SOURCES = {
    "experiments/defaults.py": """
        from dataclasses import dataclass, replace
        from functools import lru_cache

        from levanter.optim import AdamConfig
        from marin.execution.executor import ExecutorStep, InputName, ensure_versioned, this_output_path
        from marin.processing.tokens import TokenizeConfig, tokenize

        @dataclass(frozen=True)
        class TrainConfig:
            tokens: str | InputName
            output_path: str
            optimizer: AdamConfig | None = None
            steps: int = 10

        def train(config: TrainConfig) -> None:
            raise RuntimeError("only on a cluster")

        def default_tokenize(name: str, raw, tokenizer: str) -> ExecutorStep[TokenizeConfig]:
            config = TokenizeConfig([raw], this_output_path(), ensure_versioned(tokenizer))
            return ExecutorStep(name=f"tokenized/{name}", fn=tokenize, config=config)

        @lru_cache
        def validation(tokenizer: str):
            return {"paloma": default_tokenize("paloma", "raw/paloma", tokenizer)}

        def default_train(name: str, tokens, learning_rate: float) -> ExecutorStep:
            config = TrainConfig(tokens, this_output_path(), AdamConfig(learning_rate=learning_rate))
            return ExecutorStep(name=f"checkpoints/{name}", fn=train, config=config)
    """,
    "experiments/tutorials/train_tiny.py": """
        import logging

        from experiments.defaults import default_tokenize, default_train, validation
        from marin.execution.executor import executor_main, output_path_of

        logging.getLogger("ray").setLevel(logging.DEBUG)
        corpus = default_tokenize("corpus", "raw/corpus", tokenizer="gpt2")

        if __name__ == "__main__":
            trained = [default_train(f"tiny-{rate}", output_path_of(corpus), rate) for rate in (0.1, 0.01)]
            executor_main(steps=[corpus, *validation("gpt2").values(), *trained], description="Tiny models.")
    """,
    "src/marin/__init__.py": "",
    "src/marin/processing/tokens.py": """
        from __future__ import annotations

        from dataclasses import dataclass

        import datasets
        import numpy as np
        import ray
        import transformers
        from levanter.store.cache import CacheOptions

        @dataclass(frozen=True)
        class TokenizeConfig:
            paths: list[str]
            cache_path: str
            tokenizer: str
            options: CacheOptions | None = None

            def load(self) -> np.ndarray:
                return np.array(transformers.AutoTokenizer.from_pretrained(self.tokenizer))

        @ray.remote(num_cpus=0.1, memory=1024, runtime_env={"env_vars": {"A": "b"}})
        def tokenize(config: TokenizeConfig):
            return datasets.load_dataset(config.paths[0])
    """,
}


def write_checkout(root: Path, **files: str) -> Path:
    """Write a checkout with the files above and ``files``.

    Names of ``files`` use ``__`` for ``/``, are relative to ``experiments`` and have no suffix.
    """
    for name, text in SOURCES.items():
        put(root / name, text)
    for name, text in files.items():
        put(root / "experiments" / f"{name.replace('__', '/')}.py", text)
    return root


def put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def run(root: Path, name: str, limit_s: float = 20.0) -> Run:
    """Run ``experiments/{name}.py`` in the sandbox.

    Raises:
        RefusedFileError: The file cannot become a DAG.
    """
    outcome = evaluate(root, [root / "experiments" / f"{name}.py"], limit_s)[root / "experiments" / f"{name}.py"]
    if isinstance(outcome, Evaluated):
        return outcome.run
    raise outcome


def run_text(root: Path, text: str, limit_s: float = 20.0) -> Run:
    """Write ``experiments/a.py``, whose first line imports Marin's executor, and run it."""
    write_checkout(root, a=EXECUTOR + text)
    return run(root, "a", limit_s)


def made_name(root: Path, text: str) -> str:
    """Return the name of the one step that such a file makes of ``name``."""
    return names(run_text(root, text + MAKE))[0][0]


def refusal(root: Path, text: str, match: str, limit_s: float = 20.0) -> RefusedFileError:
    """Return the error of such a file; ``match`` is the pattern of its text after ``experiments/a.py``."""
    with pytest.raises(RefusedFileError, match=f"^experiments/a.py{match}") as caught:
        run_text(root, text, limit_s)
    return caught.value


def names(found: Run) -> list[list[str]]:
    """Return the names of the requested steps of each call."""
    return [[_step(wanted).name for wanted in call.steps] for call in found.calls]


def _step(wanted: ExecutorStep | InputName) -> ExecutorStep:
    step = wanted.step if isinstance(wanted, InputName) else wanted
    assert step is not None
    return step
