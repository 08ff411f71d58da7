"""Train fastText models, and ask them: in one thread, so that the same lines and seed give the same file.

To fastText a text is one line, in which white space separates words. It ends a line at the word ``</s>`` as well, and
takes a word that begins with ``__label__`` for a label; so both are broken up in texts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.datasets.rows import SeveralRowsError
from tradewind.recipes.data.quality.fasttext_files import read_labels
from tradewind.steps.fields import FieldRule, integer, number, one_of
from tradewind.text import single_line


def whole(minimum: int, maximum: int) -> FieldRule:
    """Rule: a whole number within bounds, of which libraries in C ask."""
    is_whole = integer(minimum).fits
    return FieldRule(f"a whole number from {minimum} to {maximum}", lambda value: is_whole(value) and value <= maximum)


MAX_WHOLE: Final = (1 << 31) - 1
PREFIX: Final = "__label__"
"""Begins the name of a label in files of fastText."""
ARGUMENTS: Final[Mapping[str, tuple[FieldRule, Any]]] = {
    "lr": (number(above=0), 0.1),
    "dim": (whole(1, 10_000), 100),
    "epoch": (whole(1, 10_000), 5),
    "minCount": (whole(1, MAX_WHOLE), 1),
    "minn": (whole(0, 20), 0),
    "maxn": (whole(0, 20), 0),
    "wordNgrams": (whole(1, 20), 1),
    "bucket": (whole(1, 1 << 28), 2_000_000),
    "loss": (one_of(("softmax", "hs", "ova")), "softmax"),
}
"""Arguments of a training, and their defaults: fastText's names and values."""
_CHECK: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
from fasttext_pybind import fasttext
model = fasttext()
model.loadModel(sys.argv[1])
for line in ("", "a the", "\u00e9 \u4e2d"):
    model.predict(line + "\\n", 1, 0.0, "strict")
"""
_CHECK_BYTES: Final = 1 << 30
"""Memory that loading a model may take, besides four times its file."""
_CHECK_TIMEOUT_S: Final = 300.0


def plain_line(text: str) -> str:
    """Return a text as one line without fastText's marks, and without halves of characters."""
    if "\n" in text:
        text = text.replace("\n", " ")
    if "</s>" in text:
        text = text.replace("</s>", "< /s>")
    if PREFIX in text:
        text = text.replace(PREFIX, "__ label __ ")  # the last blank, since what follows may begin with more of it
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class FastTextModel:
    """A supervised model in a local file.

    Attributes:
        labels: Its labels, without fastText's prefix.
    """

    def __init__(self, file: str, labels: Sequence[str]) -> None:
        # Not through the module fasttext, whose predict() fails with NumPy 2.
        from fasttext_pybind import fasttext  # type: ignore[import-not-found]

        self.labels = tuple(labels)
        self._model = fasttext()
        self._model.loadModel(file)

    def scores(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the probability of each label, text by text; nothing for a text without a known word."""
        return [self.best(text, len(self.labels)) for text in texts]

    def best(self, text: str, count: int = 1) -> dict[str, float]:
        """Return the most probable labels of a text, the best first."""
        found = self._model.predict(plain_line(text) + "\n", count, 0.0, "strict")
        return {label.removeprefix(PREFIX): score for score, label in found}


def checked_labels(file: str) -> list[str]:
    """Return the labels of a local file, sorted; load it in a process of its own, since fastText may crash over it.

    Raises:
        ValueError: It is no model that fastText can use.
    """
    labels = read_labels(file)
    limit = _CHECK_BYTES + 4 * os.path.getsize(file)
    try:
        result = subprocess.run(
            [sys.executable, "-c", _CHECK, file, str(limit)],
            capture_output=True,
            check=False,
            errors="replace",
            timeout=_CHECK_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"fastText has not loaded it within {_CHECK_TIMEOUT_S:g} s") from None
    if result.returncode < 0:
        raise ValueError(f"fastText ends over it with {signal.Signals(-result.returncode).name}: it is cut or damaged")
    if result.returncode:
        raise ValueError(f"fastText refuses it: {single_line((result.stderr.strip().splitlines() or [''])[-1])}")
    return sorted(label.removeprefix(PREFIX) for label in labels)


def check_trainable() -> None:
    """Check that the installed fastText can train.

    Raises:
        ValueError: It is the distribution that only predicts.
    """
    import fasttext

    if not hasattr(fasttext, "train_supervised"):
        raise ValueError(
            "kind='fasttext': the installed fasttext-predict cannot train, and fasttext-wheel exists for Python below "
            "3.13: train on such a cluster, or give kind='hashed_logistic'."
        )


def train(lines: Path, target: Path, labels: Sequence[str], arguments: Mapping[str, Any], seed: int) -> None:
    """Train on a file of lines ``__label__NAME TEXT``, and write the model to ``target``.

    Raises:
        SeveralRowsError: The numbers grew without bounds.
    """
    import fasttext

    try:
        model = fasttext.train_supervised(str(lines), thread=1, verbose=0, seed=seed, label=PREFIX, **arguments)
    except RuntimeError as error:
        raise SeveralRowsError(f"fastText cannot train: {single_line(error)} Give a smaller lr.") from None
    model.save_model(str(target))
