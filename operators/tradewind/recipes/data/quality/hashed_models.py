"""Train and ask a logistic regression on hashed runs of words, with scikit-learn.

The model is one array: for each label the weight of each hash, and at last its bias.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.datasets.rows import RowError
from tradewind.recipes.data.quality.fasttext_models import PREFIX, whole
from tradewind.steps.fields import FieldRule, number
from tradewind.text import single_line

ARGUMENTS: Final[Mapping[str, tuple[FieldRule, Any]]] = {
    "features": (whole(2, 1 << 28), 1 << 20),
    "wordNgrams": (whole(1, 20), 2),
    "epoch": (whole(1, 10_000), 5),
    "alpha": (number(above=0), 1e-5),
}
"""Arguments of a training, and their defaults: how many hashes, the longest run of words, passes, regularization."""
_BATCH: Final = 1_000


class HashedModel:
    """A model in a local file.

    Attributes:
        labels: Its labels, sorted.
    """

    def __init__(self, file: str, labels: Sequence[str], arguments: Mapping[str, Any]) -> None:
        import numpy as np

        try:
            weights = np.load(file, mmap_mode="r", allow_pickle=False)  # takes no memory for what the file has not
        except (ValueError, EOFError) as error:
            raise RowError(f"{file} is no array: {single_line(error)}.") from None
        rows = 1 if len(labels) == 2 else len(labels)
        expected = (rows, arguments["features"] + 1)
        if weights.dtype != np.float64 or weights.shape != expected:
            raise RowError(f"{file} has {weights.dtype} of shape {weights.shape}, and not float64 of {expected}.")
        self.labels = tuple(labels)
        self._weights, self._bias = np.ascontiguousarray(weights[:, :-1].T), weights[:, -1]
        self._vectorizer = _vectorizer(arguments)

    def scores(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the probability of each label, text by text."""
        import numpy as np
        from scipy.special import expit

        odds = expit(self._vectorizer.transform(map(_encodable, texts)) @ self._weights + self._bias)
        if len(self.labels) == 2:
            odds = np.hstack([1 - odds, odds])
        else:
            odds = odds / np.maximum(odds.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return [dict(zip(self.labels, row, strict=True)) for row in odds.tolist()]


def train(lines: Path, target: Path, labels: Sequence[str], arguments: Mapping[str, Any], seed: int) -> None:
    """Train on a file of lines ``__label__NAME TEXT``, and write the model to ``target``."""
    import numpy as np
    from sklearn.linear_model import SGDClassifier

    vectorizer = _vectorizer(arguments)
    model = SGDClassifier(loss="log_loss", alpha=arguments["alpha"], random_state=seed)
    for _ in range(arguments["epoch"]):
        with lines.open(encoding="utf-8", newline="\n") as file:
            while batch := list(itertools.islice(file, _BATCH)):
                names, texts = zip(*_pairs(batch), strict=True)
                model.partial_fit(vectorizer.transform(texts), names, classes=labels)
    with target.open("wb") as file:
        np.save(file, np.hstack([model.coef_, model.intercept_[:, None]]), allow_pickle=False)


def _vectorizer(arguments: Mapping[str, Any]) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(
        n_features=arguments["features"],
        ngram_range=(1, arguments["wordNgrams"]),
        alternate_sign=False,
        token_pattern=r"(?u)\b\w+\b",
    )


def _pairs(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, text = line.partition(" ")
        yield name.removeprefix(PREFIX), text


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
