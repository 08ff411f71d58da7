"""Function of an evaluation's step: serve the model, measure it with a harness, and write the results."""

from __future__ import annotations

from typing import Any

from tradewind.evaluation.config import EvaluationConfig


def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Measure a model, and return its status and scores.

    Raises:
        ValueError: The harness, or the model, cannot do what the config asks for.
        EvaluationError: No task has a result.
    """
    raise NotImplementedError
