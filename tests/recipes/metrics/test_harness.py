"""Tasks of the evaluation harness that it does not have."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tradewind.recipes.metrics.harness import refuse_unknown

KNOWN = ["hellaswag", "piqa", "mmlu"]


def test_a_task_that_the_harness_does_not_have_is_refused_with_the_nearest_names() -> None:
    own = SimpleNamespace(task="quiz", dataset_path="/quiz")
    refuse_unknown(["piqa", SimpleNamespace(task="mmlu", dataset_path=None), own], KNOWN)
    with pytest.raises(ValueError, match="task_spec has 'hellaswagg', which lm-eval does not know: did you mean hella"):
        refuse_unknown(["piqa", SimpleNamespace(task="hellaswagg", dataset_path=None)], KNOWN)
    with pytest.raises(ValueError, match="task_spec has 'x', which lm-eval does not know: see 'lm-eval ls tasks'"):
        refuse_unknown(["x"], KNOWN)
