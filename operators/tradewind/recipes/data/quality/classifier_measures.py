"""Measure a classifier on lines that it was not trained on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

from tradewind.recipes.data.quality.classifier_models import Model
from tradewind.recipes.data.quality.fasttext_models import PREFIX

_BATCH: Final = 1_000
_THRESHOLDS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def measures(lines: Path, model: Model) -> dict[str, Any]:
    """Return the accuracy, and for each label the area under the ROC curve, precision and recall.

    Precision and recall of a label are those of the best label of each text, and in the table those of its scores at
    least at a threshold.
    """
    import numpy as np

    truth: list[str] = []
    scores: list[list[float]] = []
    with lines.open(encoding="utf-8", newline="\n") as file:
        while batch := list(itertools.islice(file, _BATCH)):
            pairs = [line.rstrip("\n").removeprefix(PREFIX).partition(" ") for line in batch]
            truth += [label for label, _, _ in pairs]
            scores += [
                [found.get(label, 0.0) for label in model.labels]
                for found in model.scores([text for _, _, text in pairs])
            ]
    matrix, names = np.array(scores), np.array(truth)
    best = np.array(model.labels)[matrix.argmax(axis=1)]
    labels = {label: _of_label(names == label, best == label, matrix[:, at]) for at, label in enumerate(model.labels)}
    return {"documents": len(names), "accuracy": float((best == names).mean()), "labels": labels}


def _of_label(is_true: Any, is_best: Any, scores: Any) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    table = [
        {"threshold": threshold, **_rates(is_true, scores >= threshold), "kept": float((scores >= threshold).mean())}
        for threshold in _THRESHOLDS
    ]
    area = float(roc_auc_score(is_true, scores))
    return {"documents": int(is_true.sum()), "auc": area, **_rates(is_true, is_best), "thresholds": table}


def _rates(is_true: Any, is_kept: Any) -> dict[str, float | None]:
    """Return precision and recall; the precision of nothing is None."""
    right, kept = int((is_true & is_kept).sum()), int(is_kept.sum())
    return {"precision": right / kept if kept else None, "recall": right / int(is_true.sum())}
