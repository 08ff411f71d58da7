"""Sample labelled texts from data sets, in an order and a division that only the texts and a seed decide.

A hash of each text says whether it is in the sample, where in its order, and whether it is held out. So equal texts are
on the same side, and neither the number of files nor their order changes anything.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, flow_backend
from tradewind.datasets.files import join, read_json
from tradewind.datasets.rows import RowError, selected
from tradewind.recipes.data.quality.filters import document_files
from tradewind.steps.fields import PATH, FieldRule, check_fields, integer, number
from tradewind.text import truncated_repr

_FILE: Final = "file"
_UNIT: Final = 1 << 64
_RATE: Final = FieldRule("a number above 0 and at most 1", lambda value: number(above=0).fits(value) and value <= 1)
_LABEL: Final = FieldRule(
    "a label of letters, digits, '_', '-', '.' or '+'",
    lambda value: (
        isinstance(value, str) and 0 < len(value) <= 100 and value.isascii() and not set(value) - set(_LABEL_LETTERS)
    ),
)
_LABEL_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+"


@dataclass(frozen=True)
class ClassifierData:
    """Documents of one label to train a classifier on."""

    documents: str
    """A set of documents, or JSON lines or Parquet files with the column ``text``."""
    label: str
    """What these documents are."""
    sampling_rate: float = 1.0
    """Share of the documents to use."""
    max_sample_size: int | None = None
    """Use at most so many of them."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            documents=PATH,
            label=_LABEL,
            sampling_rate=_RATE,
            max_sample_size=integer(1).or_none(),
        )


def sampled_texts(datasets: Sequence[ClassifierData], seed: int, folder: str) -> Dataset[dict[str, Any]]:
    """Return one shard with the sample: rows ``order``, ``of`` (the number of the data set) and ``text``, ordered.

    ``folder`` keeps how far the sample of each data set goes, which a next attempt does not find out again.
    """
    files = _files(datasets)
    sampling = _Sampling(seed, tuple(each.sampling_rate for each in datasets), files)
    rows = _read(files).flat_map(_Bounded(sampling, _bounds(datasets, sampling, folder)))
    return rows.group_by(itemgetter("order"), sort_by=itemgetter("of"), reducer=_each, num_output_shards=1)


def is_held_out(order: bytes, fraction: float) -> bool:
    """Whether a text of a sample is for the validation; independent of whether it is in the sample."""
    return int.from_bytes(order[8:], "big") < fraction * _UNIT


def _files(datasets: Sequence[ClassifierData]) -> dict[str, int]:
    """Return the path of each file, and the number of its data set.

    Raises:
        ValueError: A file belongs to two of them.
    """
    files: dict[str, int] = {}
    for at, data in enumerate(datasets):
        for file in document_files(data.documents, f"datasets[{at}].documents"):
            if file.path in files:
                other = datasets[files[file.path]].label
                raise ValueError(
                    f"datasets[{at}].documents: {file.path} is also in the data set of the label {other!r}: give each "
                    "file once."
                )
            files[file.path] = at
    return files


def _read(files: Mapping[str, int]) -> Dataset[dict[str, Any]]:
    paths = Dataset.from_list(list(files))
    return paths.load_file(columns=("text",), include_file_paths=True, file_path_column=_FILE)


@dataclass(frozen=True)
class _Sampling:
    """Yield the row of a text that is in the sample by the rate of its data set."""

    seed: int
    rates: tuple[float, ...]
    files: Mapping[str, int]

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        text, path = selected(row, ("text", _FILE)).values()
        if not isinstance(text, str):
            raise RowError(f"The text is {truncated_repr(text)}: give documents whose text is a text.")
        if not text or text.isspace():
            return
        at, key = self.files[path], self.seed.to_bytes(8, "big")
        order = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=16).digest()
        if place_of(order) < self.rates[at] * _UNIT:
            yield {"order": order, "of": at, "text": text}


def place_of(order: bytes) -> int:
    """Return the place of a text in the order of the sample."""
    return int.from_bytes(order[:8], "big")


@dataclass(frozen=True)
class _Bounded:
    """Leave out the rows after the last place that a data set may use."""

    sampling: _Sampling
    bounds: Mapping[int, int]

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for sampled in self.sampling(row):
            if place_of(sampled["order"]) <= self.bounds.get(sampled["of"], _UNIT):
                yield sampled


def _bounds(datasets: Sequence[ClassifierData], sampling: _Sampling, folder: str) -> dict[int, int]:
    """Return the last place of each data set with a ``max_sample_size``; places alone are small enough to collect."""
    bounds = {}
    for at, data in enumerate(datasets):
        if data.max_sample_size is not None:
            files = {path: of for path, of in sampling.files.items() if of == at}
            smallest = _Smallest(data.max_sample_size)
            places = _read(files).flat_map(sampling).map(_place).reduce(smallest, smallest.of_all)
            path = join(folder, f"bound-{at}.jsonl")
            flow_backend().execute(places.write_jsonl(lambda *_, path=path: path))
            bounds[at] = max(read_json(path), default=_UNIT)
    return bounds


def _place(row: dict[str, Any]) -> int:
    return place_of(row["order"])


@dataclass(frozen=True)
class _Smallest:
    count: int

    def __call__(self, places: Iterator[int]) -> list[int]:
        return heapq.nsmallest(self.count, places)

    def of_all(self, shards: Iterator[list[int]]) -> list[int]:
        smallest: list[int] = []
        for places in shards:
            smallest = heapq.nsmallest(self.count, [*smallest, *places])
        return smallest


def _each(_: bytes, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return rows
