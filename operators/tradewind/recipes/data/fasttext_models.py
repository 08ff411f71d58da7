"""Train fastText models, and ask them: in one thread, so that the same lines and seed give the same file.

To fastText a text is one line, in which white space separates words. It ends a line at the word ``</s>`` as well, and
takes a word that begins with ``__label__`` for a label; so both are broken up in texts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tradewind.steps.fields import FieldRule, integer, number, one_of
from tradewind.text import single_line

PREFIX: Final = "__label__"
"""Begins the name of a label in files of fastText."""
ARGUMENTS: Final[Mapping[str, tuple[FieldRule, Any]]] = {
    "lr": (number(above=0), 0.1),
    "dim": (integer(1), 100),
    "epoch": (integer(1), 5),
    "minCount": (integer(1), 1),
    "minn": (integer(0), 0),
    "maxn": (integer(0), 0),
    "wordNgrams": (integer(1), 1),
    "bucket": (integer(1), 2_000_000),
    "loss": (one_of(("softmax", "hs", "ova")), "softmax"),
}
"""Arguments of a training, and their defaults: fastText's names and values."""

_CHECK: Final = """
import json, sys
import fasttext
model = fasttext.load_model(sys.argv[1]).f
model.predict("a\\n", 1, 0.0, "strict")
print(json.dumps(model.getLabels("strict")[0]))
"""


def plain_line(text: str) -> str:
    """Return a text as one line without fastText's marks, and without halves of characters."""
    if "\n" in text:
        text = text.replace("\n", " ")
    if "</s>" in text:
        text = text.replace("</s>", "< /s>")
    if PREFIX in text:
        text = text.replace(PREFIX, "__ label __")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class FastTextModel:
    """A supervised model in a local file.

    Attributes:
        labels: Its labels, without fastText's prefix, sorted.
    """

    def __init__(self, file: str) -> None:
        import fasttext

        self._model = fasttext.load_model(file).f
        given, _ = self._model.getLabels("strict")
        self.labels = tuple(sorted(label.removeprefix(PREFIX) for label in given))

    def scores(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the probability of each label, text by text."""
        return [self.best(text, len(self.labels)) for text in texts]

    def best(self, text: str, count: int) -> dict[str, float]:
        """Return the most probable labels of a text, the best first."""
        found = self._model.predict(plain_line(text) + "\n", count, 0.0, "strict")
        return {label.removeprefix(PREFIX): score for score, label in found}


def checked_labels(file: str) -> list[str]:
    """Return the labels of a local file; load it in a process of its own, since fastText may crash over a bad one.

    Raises:
        ValueError: It is no model that fastText can use.
    """
    result = subprocess.run([sys.executable, "-c", _CHECK, file], capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [f"it ended with {result.returncode}"])[-1]
        raise ValueError(f"{file} is no usable model of fastText: {single_line(last)}.")
    labels: list[str] = json.loads(result.stdout)
    return sorted(label.removeprefix(PREFIX) for label in labels)


def train(lines: Path, target: Path, labels: Sequence[str], arguments: Mapping[str, Any], seed: int) -> None:
    """Train on a file of lines ``__label__NAME TEXT``, and write the model to ``target``."""
    import fasttext

    model = fasttext.train_supervised(str(lines), thread=1, verbose=0, seed=seed, label=PREFIX, **arguments)
    model.save_model(str(target))
