"""Results of tasks as harnesses give them, with answers drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

from tradewind.evaluation.results import EvaluationRecord, Model, Sample, Serving, Status, TaskResult


def made_samples(share: float, count: int, *, seed: int = 0, errors: int = 0, prompt: str = "Q") -> list[Sample]:
    """Return answers to documents, so large a share of which is right; the first ``errors`` have none."""
    rng = random.Random(seed)
    samples = []
    for document in range(count):
        right = rng.random() < share
        scores = {"acc": float(right), "f1": rng.random(), "logprob": -5 * rng.random()}
        failed = document < errors
        answer = "" if failed else "yes" if right else "no"
        error = "HTTP 400: the prompt is too long" if failed else None
        samples.append(Sample(f"{document}", f"{prompt} {document}?", "yes", answer, {} if failed else scores, error))
    return samples


def made_task(name: str, share: float = 0.6, count: int = 100, **options: Any) -> TaskResult:
    """Return the result of a task."""
    sample_options = {key: options.pop(key) for key in ("seed", "errors", "prompt") if key in options}
    fields: dict[str, Any] = {
        "task": name,
        "task_version": "1",
        "num_fewshot": 0,
        "higher_is_better": {"acc": True, "f1": True, "logprob": True},
        "metrics": {},
        "num_documents": count,
        "samples": tuple(made_samples(share, count, **sample_options)),
    }
    return TaskResult(name=name, **fields | options)


def made_record(**options: Any) -> EvaluationRecord:
    """Return what a caller of ``write_results`` knows of an evaluation."""
    fields: dict[str, Any] = {
        "evaluation": "lm_evaluation_harness",
        "status": Status.SUCCEEDED,
        "model": Model("hub:org/tiny@0123abcd", "tiny", "0123abcd"),
        "serving": Serving("levanter", "0.2", 2, "cpu"),
        "started_at": 1.7e9,
        "ended_at": 1.7e9 + 100,
        "requests": 300,
        "prompt_tokens": 3000,
        "completion_tokens": 500,
        "paused_s": 30.0,
        "harness_version": "0.4.13",
    }
    return EvaluationRecord(**fields | options)
