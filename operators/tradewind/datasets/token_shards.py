"""Shards: the tokens of one input file, or of a span of it, as one file that appears only when complete.

A shard's name contains its ``key``, a hash of input, state and recipe, and its counts, so one listing shows which
shards are finished. The file holds the lengths of the documents, field by field, and then the values, field by field,
as plain little-endian arrays.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import UNFINISHED, atomic_writer, basename, join
from tradewind.datasets.token_inputs import InputFile
from tradewind.datasets.token_rows import WHOLE, Span
from tradewind.storage import file_system_at, open_file

if TYPE_CHECKING:
    import numpy as np

SUFFIX: Final = ".tokens"
_LENGTH: Final = "<i8"
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True)
class Shard:
    """A finished shard.

    Attributes:
        key: Hash of input and recipe, see ``shard_key``.
        path: Path of the file.
        documents: Number of documents.
        counts: Number of values, field by field.
    """

    key: str
    path: str
    documents: int
    counts: tuple[int, ...]

    def lengths(self, field: int) -> np.ndarray:
        """Return the number of values of a field in each document."""
        return self._array(field * self.documents * _LENGTH_BYTES, self.documents, _LENGTH)

    def values(self, field: int, kinds: Sequence[str], begin: int, end: int) -> np.ndarray:
        """Return the values of a field from ``begin`` to ``end``; ``kinds`` are the types of all fields."""
        import numpy as np

        sizes = [np.dtype(kind).itemsize for kind in kinds]
        before = sum(count * size for count, size in zip(self.counts[:field], sizes, strict=False))
        start = len(self.counts) * self.documents * _LENGTH_BYTES + before + begin * sizes[field]
        return self._array(start, end - begin, kinds[field])

    def _array(self, start: int, count: int, kind: str) -> np.ndarray:
        import numpy as np

        with open_file(self.path) as file:
            file.seek(start)
            return np.frombuffer(file.read(count * np.dtype(kind).itemsize), kind)


def shard_key(recipe_key: str, file: InputFile, span: Span = WHOLE) -> str:
    """Hash a span of a file in its state, and the recipe that makes tokens of it."""
    of_span = () if span == WHOLE else tuple(span)
    return sha256(repr((recipe_key, file.path, file.size_bytes, file.state, *of_span)).encode()).hexdigest()[:32]


def finished_shards(folder: str, keys: Iterable[str]) -> dict[str, Shard]:
    """Return the shards of ``keys`` in ``folder``, by one listing; remove all other files, unfinished ones too."""
    from tradewind.storage.trees import remove_files

    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    wanted, finished, others = set(keys), {}, []
    for name in fs.ls(root, detail=False) if fs.exists(root) else []:
        shard = None if UNFINISHED.search(name) else _parse(join(folder, basename(name)))
        if shard is not None and shard.key in wanted:
            finished[shard.key] = shard
        else:
            others.append(basename(name))
    remove_files(folder, others)
    return finished


def write_shard(
    folder: str, key: str, fields: Sequence[tuple[str, str]], batches: Iterable[Sequence[Mapping[str, Any]]]
) -> Shard:
    """Write the tokens of a piece; collect them on the local disk first, since the name needs their number."""
    import numpy as np

    with ExitStack() as stack:
        values = [stack.enter_context(tempfile.TemporaryFile()) for _ in fields]
        lengths: list[list[np.ndarray]] = [[] for _ in fields]
        for batch in batches:
            for at, (name, kind) in enumerate(fields):
                arrays = [np.asarray(document[name]) for document in batch]
                lengths[at].append(np.array([len(array) for array in arrays], _LENGTH))
                values[at].write(np.concatenate(arrays).astype(kind, copy=False).tobytes())
        counts = tuple(sum(int(some.sum()) for some in each) for each in lengths)
        documents = sum(map(len, lengths[0]))
        path = join(folder, f"{key}.{documents}.{'-'.join(map(str, counts))}{SUFFIX}")
        with atomic_writer(path) as file:
            for some in itertools.chain.from_iterable(lengths):
                file.write(some.tobytes())
            for each in values:
                each.seek(0)
                shutil.copyfileobj(each, file, 1 << 20)
    return Shard(key, path, documents, counts)


def _parse(path: str) -> Shard | None:
    parts = basename(path).removesuffix(SUFFIX).split(".")
    if not path.endswith(SUFFIX) or len(parts) != 3:
        return None
    try:
        return Shard(parts[0], path, int(parts[1]), tuple(map(int, parts[2].split("-"))))
    except ValueError:
        return None
