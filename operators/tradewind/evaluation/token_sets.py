"""Tokens of a named set of texts, from a token cache or from documents, in the layout of Levanter's caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, exists, join
from tradewind.datasets.token_inputs import ENDINGS, input_files
from tradewind.datasets.token_rows import SURROGATE, row_place, rows_of
from tradewind.recipes.lm.cache_integrity import LEDGER, TOKENS, check_cache
from tradewind.recipes.lm.levanter_parts import COMPONENT
from tradewind.storage import open_file
from tradewind.storage.bounded_read import LARGE
from tradewind.text import quote_first_names, truncated_repr

if TYPE_CHECKING:
    import numpy as np

_SPLIT: Final = "validation"
_PLAIN: Final = ".txt"
_ENDINGS: Final = (*ENDINGS, _PLAIN)
_BATCH: Final = 256


@dataclass(frozen=True)
class TokenSet:
    """All tokens of a set in a row.

    Attributes:
        tokens: int32, shape ``[tokens]``.
        starts: Where each text begins: int64, shape ``[texts]``.
        names: Name of each text.
    """

    tokens: np.ndarray
    starts: np.ndarray
    names: list[str]


def cache_folder(path: str) -> str | None:
    """Return the folder of the token cache at ``path``: its validation split, or a split itself; None without one."""
    folders = (join(path, _SPLIT), join(path, COMPONENT, _SPLIT), path)
    return next((folder for folder in folders if exists(join(folder, LEDGER))), None)


def check_set(name: str, path: str) -> None:
    """Raise ``ValueError`` with the set's name if there is nothing to read, without reading it."""
    field = f"sets[{name!r}]"
    if (folder := cache_folder(path)) is None:
        if any(exists(join(path, *inner, "train", LEDGER)) for inner in ((), (COMPONENT,))):
            raise ValueError(
                f"{field}: the token cache {path} has no validation split: name one, such as {path}/train."
            )
        input_files([path], field, _ENDINGS)
        return
    try:
        check_cache(folder)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def read_set(name: str, path: str, text_key: str, tokenizer: Any, max_tokens: int | None) -> TokenSet:
    """Read a set, or its first tokens.

    Raises:
        ValueError: With the set's name or the place of a row: it cannot be read, or has no token to predict.
    """
    folder = cache_folder(path)
    if folder is not None:
        found = _cached(folder, max_tokens)
    else:
        found = _tokenized(_documents(f"sets[{name!r}]", path, text_key), text_key, tokenizer, max_tokens)
    if len(found.tokens) < 2:
        raise ValueError(f"sets[{name!r}]: {path} has no token to predict.")
    return found


def _cached(folder: str, max_tokens: int | None) -> TokenSet:
    import numpy as np
    from levanter.store.cache import TreeCache

    array = TreeCache.load(folder, {TOKENS: np.zeros(0, np.int32)}).jagged_array_tree()[TOKENS]
    rows, size = array.num_rows, array.data_size
    ends = np.asarray(array.offsets[1 : rows + 1].read().result(), dtype=np.int64)
    count = size if max_tokens is None else min(size, max_tokens)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    starts = starts[starts < count]
    tokens = np.asarray(array.data[0:count].read().result(), dtype=np.int32)
    return TokenSet(tokens, starts, [str(number) for number in range(len(starts))])


def _documents(field: str, path: str, text_key: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each document; a file ``.txt`` is one."""
    for file in input_files([path], field, _ENDINGS):
        if file.path.endswith(_PLAIN):
            yield basename(file.path), _plain_text(file.path, field)
            continue
        for number, row in rows_of(file.path, None):
            place = row_place(file.path, number)
            if not isinstance(row, dict) or text_key not in row:
                has = quote_first_names(row) if isinstance(row, dict) else truncated_repr(row)
                raise ValueError(f"{field}: {place} has no {text_key!r}: it has {has}. Give text_key.")
            text = row[text_key]
            if not isinstance(text, str):
                raise ValueError(f"{field}: {place} has a {text_key!r} that is no text but {truncated_repr(text)}.")
            name = str(row.get("id", f"{basename(file.path)}:{number}"))
            if SURROGATE.search(text) or SURROGATE.search(name):
                raise ValueError(f"{field}: {place} has half of a character (a lone surrogate): leave the row out.")
            yield name, text


def _plain_text(path: str, field: str) -> str:
    with open_file(path) as file:
        content = file.read(LARGE + 1)
    if len(content) > LARGE:
        raise ValueError(f"{field}: {path} has more than {LARGE:,} bytes: split it, or give lines of JSON.")
    try:
        return str(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{field}: {path} is no UTF-8 text ({error}).") from None


def _tokenized(documents: Iterator[tuple[str, str]], text_key: str, tokenizer: Any, max_tokens: int | None) -> TokenSet:
    import numpy as np
    from levanter.data.text import TextLmDatasetFormat

    encode = TextLmDatasetFormat(text_key=text_key).build_preprocessor(tokenizer, enforce_eos=True, enforce_bos=True)
    parts: list[np.ndarray] = []
    names: list[str] = []
    count = 0
    while (max_tokens is None or count < max_tokens) and (batch := list(islice(documents, _BATCH))):
        encoded = encode([{text_key: text} for _, text in batch])
        parts.extend(np.asarray(each["input_ids"], dtype=np.int32) for each in encoded)
        names.extend(name for name, _ in batch)
        count = sum(map(len, parts))
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    tokens = np.concatenate([np.zeros(0, np.int32), *parts])[:max_tokens]
    starts = ends[:-1][ends[:-1] < len(tokens)]
    return TokenSet(tokens, starts, unique(names[: len(starts)]))


def unique(names: Iterable[str]) -> list[str]:
    """Return the names, of which one that occurred before gets a number."""
    seen: set[str] = set()
    count: Counter[str] = Counter()
    found = []
    for name in names:
        other = name
        while other in seen:
            count[name] += 1
            other = f"{name} ({count[name] + 1})"
        seen.add(other)
        found.append(other)
    return found
