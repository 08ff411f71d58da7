"""An index of the runs of words of evaluation items: which items have a run that a document has.

Runs are known by 64-bit hashes, sorted, each with the numbers of its items. Of a trillion runs of documents, less than
one is taken for another one of ten million. A file of an index begins with its checksum and with what it holds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.datasets.rows import RowError
from tradewind.datasets.token_rows import open_unpacked
from tradewind.storage import open_file

MAX_WORDS: Final = 20_000_000
"""Of all items: they take about 1 GB while their runs are sorted, and half of it in each worker."""
_BATCH_ITEMS: Final = 256
_COLUMNS: Final = ("evaluation", "item", "words")
_FILTER_BITS: Final = (16, 27)
_MAX_HEADER_BYTES: Final = 1 << 24
_CHUNK: Final = 1 << 18


@dataclass(frozen=True)
class EvaluationCounts:
    """What an index has of one evaluation set.

    Attributes:
        name: Name of the set.
        items: Number of its rows.
        with_ngrams: Those with as many words as a run has.
        ngrams: Different runs of each item, summed.
        longest: Words of its longest item.
    """

    name: str
    items: int
    with_ngrams: int
    ngrams: int
    longest: int


@dataclass(frozen=True)
class IndexHeader:
    """The head of an index.

    Attributes:
        path: Its file.
        digest: Checksum of all that follows it.
        length: Words of a run.
        evaluations: The sets; their items are numbered one after another.
        sizes: Length of each array.
    """

    path: str
    digest: str
    length: int
    evaluations: tuple[EvaluationCounts, ...]
    sizes: dict[str, int]

    def __hash__(self) -> int:
        return hash((self.path, self.digest))


@dataclass(frozen=True)
class Items:
    """Words of all items of all evaluation sets.

    Attributes:
        names: Names of the sets.
        owners: For each item the number of its set.
        labels: For each item its name.
        lengths: For each item the number of its words.
        words: The hashes of the words, item by item.
    """

    names: tuple[str, ...]
    owners: Any
    labels: list[str]
    lengths: Any
    words: Any

    @classmethod
    def read(cls, paths: Sequence[str], names: tuple[str, ...], field: str) -> Items:
        """Read the files of ``evaluation_sets.item_schema``.

        Raises:
            RowError: With ``field``: they have too many words.
        """
        import numpy as np
        from pyarrow import parquet

        owners: list[int] = []
        labels: list[str] = []
        lengths: list[int] = []
        words: list[Any] = [np.empty(0, np.uint64)]
        for path in paths:
            with open_file(path) as opened:
                for batch in parquet.ParquetFile(opened).iter_batches(_BATCH_ITEMS, columns=list(_COLUMNS)):
                    owners += batch.column("evaluation").to_pylist()
                    labels += batch.column("item").to_pylist()
                    held = [np.frombuffer(each, np.uint64) for each in batch.column("words").to_pylist()]
                    lengths += map(len, held)
                    words.append(np.concatenate(held))
                    if sum(map(len, words)) > MAX_WORDS:
                        raise RowError(
                            f"{field}: the evaluations have more than {MAX_WORDS:,} words: divide them among steps."
                        )
        return cls(names, np.array(owners, np.int64), labels, np.array(lengths, np.int64), np.concatenate(words))


_ARRAYS: Final = {
    "hashes": "<u8", "label_ends": "<u8", "starts": "<u4", "items": "<u4", "totals": "<u4", "labels": "u1",
}  # fmt: skip
"""The largest numbers first, so that all are aligned: of an array that is not, each search makes a copy."""
_ALIGNMENT: Final = 8


def pack_index(items: Items, length: int) -> list[Any]:
    """Return the parts of the file of the index of all runs of ``length`` words."""
    import numpy as np

    grams, numbers = _runs(items, length)
    totals = np.bincount(numbers, minlength=len(items.labels))
    counts = _counted(items, totals)
    begins = np.flatnonzero(np.concatenate([[True], grams[1:] != grams[:-1]])[: len(grams)])
    labels = [label.encode() for label in items.labels]
    arrays = {
        "hashes": grams[begins],
        "starts": np.append(begins, len(grams)),
        "items": numbers,
        "totals": totals,
        "label_ends": np.cumsum([len(label) for label in labels]),
        "labels": np.frombuffer(b"".join(labels), np.uint8),
    }
    sizes = {name: len(array) for name, array in arrays.items()}
    about = {"length": length, "evaluations": [asdict(each) for each in counts], "sizes": sizes}
    header = json.dumps(about).encode()
    content: list[Any] = [header + b" " * (-(len(header) + 1) % _ALIGNMENT) + b"\n"]
    content += [memoryview(arrays[name].astype(kind, copy=False)).cast("B") for name, kind in _ARRAYS.items()]
    return [_digest(content).encode() + b"\n", *content]


def _runs(items: Items, length: int) -> tuple[Any, Any]:
    """Return the runs, sorted, each once for an item, and the items."""
    import numpy as np

    from tradewind.recipes.data.overlap.words import ngram_hashes

    item_of = np.repeat(np.arange(len(items.lengths), dtype=np.uint32), items.lengths)
    grams = ngram_hashes(items.words, length)
    within = item_of[: len(grams)] == item_of[length - 1 :][: len(grams)]
    grams, numbers = grams[within], item_of[: len(within)][within]
    order = np.argsort(grams, kind="stable")  # so that the items of a run stay sorted
    grams, numbers = grams[order], numbers[order]
    repeated = np.zeros(len(grams), bool)
    repeated[1:] = (grams[1:] == grams[:-1]) & (numbers[1:] == numbers[:-1])
    return grams[~repeated], numbers[~repeated]


def _counted(items: Items, totals: Any) -> list[EvaluationCounts]:
    counts = []
    for number, name in enumerate(items.names):
        own = items.owners == number
        words = items.lengths[own]
        with_ngrams, ngrams = int((totals[own] > 0).sum()), int(totals[own].sum())
        counts.append(EvaluationCounts(name, len(words), with_ngrams, ngrams, int(words.max(initial=0))))
    return counts


def _digest(content: Iterable[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in content:
        digest.update(part)
    return digest.hexdigest()


def read_header(path: str) -> IndexHeader:
    """Read the head of an index, which is not checked."""
    with open_unpacked(path) as file:
        digest = file.readline(_MAX_HEADER_BYTES).decode().strip()
        about = json.loads(file.readline(_MAX_HEADER_BYTES))
    counts = tuple(EvaluationCounts(**each) for each in about["evaluations"])
    return IndexHeader(path, digest, about["length"], counts, about["sizes"])


class NgramIndex:
    """An index in memory.

    Attributes:
        length: Words of a run.
        totals: For each item the number of its different runs.
    """

    def __init__(self, header: IndexHeader, arrays: dict[str, Any]) -> None:
        import numpy as np

        self.length = header.length
        self.totals = arrays["totals"]
        self._evaluations = header.evaluations
        self._ends = np.cumsum([each.items for each in header.evaluations])
        self._hashes, self._starts, self._items = arrays["hashes"], arrays["starts"], arrays["items"]
        self._label_ends, self._labels = arrays["label_ends"], arrays["labels"]
        least, most = _FILTER_BITS
        bits = min(max(len(self._hashes).bit_length() + 4, least), most)
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << (bits - 3), np.uint8)
        for at in range(0, len(self._hashes), _CHUNK):
            places = (self._hashes[at : at + _CHUNK] >> self._shift).astype(np.int64)
            np.bitwise_or.at(self._filter, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    def find(self, grams: Any) -> tuple[Any, Any]:
        """Return the places of the runs that an item has too, and their numbers in the index."""
        import numpy as np

        places = (grams >> self._shift).astype(np.int64)
        bits = np.right_shift(self._filter[places >> 3], (places & 7).astype(np.uint8)) & 1
        likely = np.flatnonzero(bits)
        if not len(likely):
            return likely, likely
        numbers = np.searchsorted(self._hashes, grams[likely])
        numbers[numbers == len(self._hashes)] = 0
        found = self._hashes[numbers] == grams[likely]
        return likely[found], numbers[found]

    def items_of(self, numbers: Any) -> tuple[Any, Any]:
        """Return the items of these runs, one after another, and how many each run has."""
        import numpy as np

        starts, ends = (self._starts[each].astype(np.int64) for each in (numbers, numbers + 1))
        counts = ends - starts
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._items[np.repeat(starts, counts) + offsets], counts

    def evaluation_of(self, items: Any) -> Any:
        """Return the numbers of the evaluation sets of items."""
        import numpy as np

        return np.searchsorted(self._ends, items, side="right")

    def evaluation_name(self, number: int) -> str:
        """Return the name of a set."""
        return self._evaluations[number].name

    def label(self, item: int) -> str:
        """Return the name of an item."""
        begin = int(self._label_ends[item - 1]) if item else 0
        return str(self._labels[begin : int(self._label_ends[item])].tobytes(), "utf-8")


_loading: Final = threading.Lock()


def load_index(header: IndexHeader) -> NgramIndex:
    """Return an index; a process reads it once.

    Raises:
        RowError: The file has changed since it was written.
    """
    with _loading:
        return _loaded(header)


@functools.lru_cache(maxsize=8)
def _loaded(header: IndexHeader) -> NgramIndex:
    import numpy as np

    with open_unpacked(header.path) as file:
        file.readline(_MAX_HEADER_BYTES)
        content = file.read()
    if _digest([content]) != header.digest:
        raise RowError(f"{header.path} is damaged: remove its folder, and clear the task.")
    at, arrays = content.index(b"\n") + 1, {}
    for name, kind in _ARRAYS.items():
        arrays[name] = np.frombuffer(content, kind, header.sizes[name], at)
        at += arrays[name].nbytes
    return NgramIndex(header, arrays)
