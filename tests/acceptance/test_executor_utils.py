"""Requirement of Marin's own ``test_executor_utils.py``: a name for outputs made from a checkpoint."""

from __future__ import annotations

import pytest

from tradewind.recipes.checkpoints.names import checkpoint_name
from tradewind.steps import ExecutorStep, InputName


@pytest.mark.parametrize("slash", ["", "/"])
def test_checkpoint_is_named_by_run_and_training_step(slash: str) -> None:
    path = f"gs://bucket/checkpoints/llama-8b-tootsie-phase2/checkpoints/step-730000{slash}"
    assert checkpoint_name(path) == "llama-8b-tootsie-phase2-730000"
    assert checkpoint_name(f"gs://bucket/train/llama-1a2b3c/checkpoints/step-10{slash}") == "llama-10"
    run = ExecutorStep("train/myrun", None, None)
    assert checkpoint_name(run / f"checkpoints/step-555000{slash}") == "myrun-555000"


def test_hub_model_is_named_by_its_second_part() -> None:
    assert checkpoint_name("meta-llama/Meta-Llama-3.1-8B") == "Meta-Llama-3.1-8B"


@pytest.mark.parametrize("path", ["gs://bucket/run/step-1", "llama", "run/checkpoints/step-x", ""])
def test_another_path_is_refused(path: str) -> None:
    for given in (path, InputName(None, f"gs://{path}/x")):
        with pytest.raises(ValueError, match="Invalid path"):
            checkpoint_name(given)


def test_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown type int"):
        checkpoint_name(5)  # type: ignore[arg-type]
