"""The folder of a classifier: ``classifier.json`` says its kind, labels and arguments, and names the file of the model.

A file that fastText wrote elsewhere is a classifier as well, or a folder with one such file.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from typing import Any, Final, Protocol

from tradewind.datasets import Dataset, flow_backend
from tradewind.datasets.dataset import FilesSource
from tradewind.datasets.execution import list_source
from tradewind.datasets.files import is_remote, join
from tradewind.datasets.rows import RowError
from tradewind.recipes.data.quality import fasttext_models, hashed_models
from tradewind.storage import file_system_at, open_file
from tradewind.storage.bounded_read import SMALL
from tradewind.text import quote_first_names, single_line

FASTTEXT: Final = "fasttext"
HASHED: Final = "hashed_logistic"
KINDS: Final[Mapping[str, Any]] = {FASTTEXT: fasttext_models, HASHED: hashed_models}
FILES: Final = {FASTTEXT: "model.bin", HASHED: "model.npy"}
DESCRIPTION: Final = "classifier.json"
_ENDINGS: Final = (".bin", ".ftz")


class Model(Protocol):
    """A classifier that is loaded."""

    labels: tuple[str, ...]

    def scores(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the score of each label, text by text."""


@dataclass(frozen=True)
class Classifier:
    """A classifier in a store.

    Attributes:
        file: Path of the model.
        kind: A key of ``KINDS``.
        labels: Its labels, sorted; empty for a model from elsewhere, whose file has them.
        arguments: Of its training, as far as the model needs them.
    """

    file: str
    kind: str
    labels: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None

    def checked(self) -> Classifier:
        """Return the same with the labels of a file of fastText, after a worker has loaded it.

        Raises:
            PipelineError: The file is no such model, or one with other labels.
        """
        if self.kind != FASTTEXT:
            return self
        check = _Check(self.labels)
        return replace(self, labels=tuple(flow_backend().execute(Dataset.from_list([self.file]).map(check))[0]))

    @contextmanager
    def loaded(self) -> Iterator[Model]:
        """Load the model, from a local copy if the file is in a store."""
        with local_copy(self.file) as file:
            yield self._load(file)

    def _load(self, file: str) -> Model:
        if self.kind == HASHED:
            return hashed_models.HashedModel(file, self.labels, self.arguments or {})
        return fasttext_models.FastTextModel(file, self.labels)


@dataclass(frozen=True)
class _Check:
    """Return the labels of a file of fastText, which are to be ``expected`` if there are any."""

    expected: tuple[str, ...]

    def __call__(self, path: str) -> list[str]:
        try:
            with local_copy(path) as file:
                labels = fasttext_models.checked_labels(file)
            if self.expected and labels != list(self.expected):
                raise ValueError(f"its labels are {quote_first_names(labels)}")
        except ValueError as error:
            raise RowError(f"{path} is no usable model of fastText: {error}.") from None
        return labels


def classifier_at(path: str, field: str) -> Classifier:
    """Find a classifier: a folder of ``train_classifier``, a file of fastText, or a folder with one such file.

    Raises:
        ValueError: With ``field``: there is none, or its description is unusable.
    """
    fs, name = file_system_at(path)
    if fs.isfile(name):
        return Classifier(path, FASTTEXT)
    from tradewind.storage.files import read_contents  # not while a DAG file is parsed: it loads fsspec

    described = join(path, DESCRIPTION)
    content = read_contents([described], SMALL).get(described)
    if content is not None:
        return _described(path, content.text, content.flaw, field)
    listed = list_source(FilesSource(join(escape(path), "*"), empty_glob_ok=True))
    files = [file for file in listed if file.path.endswith(_ENDINGS)]
    if len(files) != 1:
        raise ValueError(
            f"{field}: {path} has {len(files)} models of fastText (*.bin, *.ftz) and no {DESCRIPTION}: give the folder "
            "of train_classifier(...), or a file of fastText."
        )
    return Classifier(files[0].path, FASTTEXT)


def description(kind: str, labels: Sequence[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``classifier.json``."""
    return {"kind": kind, "labels": list(labels), "arguments": dict(arguments)}


def _described(path: str, text: str, flaw: str | None, field: str) -> Classifier:
    try:
        if flaw is not None:
            raise ValueError(flaw)
        found = json.loads(text)
        kind, labels, arguments = (found[name] for name in ("kind", "labels", "arguments"))
        rules = KINDS[kind].ARGUMENTS
        for name, (rule, _) in rules.items():
            rule.check(name, arguments[name])
        if len(labels) < 2 or labels != sorted({str(label) for label in labels}):
            raise ValueError("its labels are no sorted list of different texts")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        about = single_line(error) if isinstance(error, ValueError) else f"{type(error).__name__} {single_line(error)}"
        raise ValueError(f"{field}: {join(path, DESCRIPTION)} describes no classifier: {about}.") from None
    return Classifier(join(path, FILES[kind]), kind, tuple(labels), arguments)


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yield the path of a local file with the content of ``path``."""
    if not is_remote(path):
        yield path.removeprefix("file://").removeprefix("local://")
        return
    with tempfile.TemporaryDirectory(prefix="tradewind-model-") as folder:
        copy = os.path.join(folder, os.path.basename(path))
        with open_file(path) as source, open(copy, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
        yield copy
