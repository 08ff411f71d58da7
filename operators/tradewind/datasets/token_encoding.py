"""Encode rows as tokens: exactly those of Levanter's own processors.

Plain texts are tokenized in batches with the library that Levanter calls one by one, so workers need not import
Levanter. Levanter's processor handles all other formats (chats, masks, ready-made tokens).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final

from tradewind.datasets.token_rows import (
    MAX_LINE_BYTES,
    SURROGATE,
    WHOLE,
    Open,
    Span,
    TokenizingError,
    attributes_hint,
    row_place,
    rows_of,
)
from tradewind.datasets.tokenizer_files import MAIN_FILE, cached_folder
from tradewind.storage import open_file
from tradewind.text import quote_first_names, single_line, truncated_repr

DOCUMENTS_PER_BATCH: Final = 256
CHARACTERS_PER_BATCH: Final = 4_000_000
MAX_RUN_CHARS: Final = 25_000
"""Levanter splits longer runs of letters, or of white space, before it tokenizes them."""
_OVERLONG: Final = re.compile(rf"\s{{{MAX_RUN_CHARS},}}|\S{{{MAX_RUN_CHARS},}}")

Encode = Callable[[Sequence[Any]], list[Mapping[str, Any]]]
"""Rows → field → values, one mapping per row."""


@dataclass(frozen=True)
class TokenRecipe:
    """How to make tokens of rows.

    Attributes:
        key: Equal for recipes that make the same tokens.
        files: The tokenizer's files.
        fields: Name and NumPy type of each field, the tokens first.
        format: Levanter's format.
        text_key: Key of plain texts; None for every other format.
        bos_id: First token of each text, if any.
        end: Appended to each text before it is tokenized.
        sample_count: Number of rows of each file; None for all.
    """

    key: str
    files: Mapping[str, bytes]
    fields: tuple[tuple[str, str], ...]
    format: Any
    text_key: str | None
    bos_id: int | None = None
    end: str = ""
    sample_count: int | None = None


def encode_file(
    path: str, recipe: TokenRecipe, span: Span = WHOLE, open_path: Open = open_file
) -> Iterable[list[Mapping[str, Any]]]:
    """Yield the tokens of a file, or of a span of it, in batches of documents.

    Raises:
        TokenizingError: A row cannot be read or does not fit the format.
    """
    encode = _encoder(_Cached(recipe.key, recipe))
    rows: list[tuple[int, Any]] = []
    characters = 0
    place = partial(row_place, path, span=span)
    for number, row in itertools.islice(rows_of(path, recipe.text_key, span, open_path), recipe.sample_count):
        rows.append((number, row))
        characters += _length(row, recipe.text_key)
        if len(rows) >= DOCUMENTS_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
            yield _encode_rows(encode, rows, place, recipe.text_key)
            rows, characters = [], 0
    if rows:
        yield _encode_rows(encode, rows, place, recipe.text_key)


def check_first_row(path: str, recipe: TokenRecipe, open_path: Open = open_file) -> None:
    """Raise ``TokenizingError`` if the first row of a file does not fit; then usually no row does."""
    for first in rows_of(path, recipe.text_key, open_path=open_path):
        _encode_rows(_encoder(_Cached(recipe.key, recipe)), [first], partial(row_place, path), recipe.text_key)
        return


def levanter_processor(format: Any, files: Mapping[str, bytes]) -> Any:
    """Return Levanter's own processor, which also describes the layout of its caches.

    Raises:
        TokenizingError: The tokenizer lacks what the format needs, such as a chat template.
    """
    from levanter.tokenizers import load_tokenizer

    try:
        return format.build_preprocessor(load_tokenizer(cached_folder(files)), enforce_eos=True, enforce_bos=True)
    except ValueError as error:
        raise TokenizingError(f"format {type(format).__name__}: {error}") from error


@dataclass(frozen=True)
class _Cached:
    """A recipe that compares by its key."""

    key: str
    recipe: TokenRecipe

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cached) and other.key == self.key


@lru_cache(maxsize=2)
def _encoder(cached: _Cached) -> Encode:
    """Return an encoder, cached per process: loading a tokenizer may take longer than a small file."""
    recipe = cached.recipe
    if recipe.text_key is not None:
        return _text_encoder(recipe, recipe.text_key)
    processor = levanter_processor(recipe.format, recipe.files)
    names = [name for name, _ in recipe.fields]

    def encode(rows: Sequence[Any]) -> list[Mapping[str, Any]]:
        return [{name: row[name] for name in names} for row in processor(rows)]

    return encode


def _text_encoder(recipe: TokenRecipe, text_key: str) -> Encode:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(recipe.files[MAIN_FILE])
    [(field, kind)] = recipe.fields
    begin = [] if recipe.bos_id is None else [recipe.bos_id]
    one_by_one = tokenizer.padding is not None  # a batch would be padded to equal length

    @cache
    def levanter_tokenizer() -> Any:
        from levanter.tokenizers import load_tokenizer

        return load_tokenizer(cached_folder(recipe.files))

    def ids_of(texts: list[str]) -> list[list[int]]:
        if one_by_one or any(len(text) > MAX_RUN_CHARS and _OVERLONG.search(text) for text in texts):
            return [levanter_tokenizer().encode(text, add_special_tokens=False) for text in texts]
        return [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def encode(rows: Sequence[Any]) -> list[Mapping[str, Any]]:
        texts = [row[text_key] + recipe.end for row in rows]
        if any(len(text) > MAX_LINE_BYTES for text in texts):  # of a Parquet file
            raise ValueError(f"it has more than {MAX_LINE_BYTES:,} characters: split its text")
        return [{field: np.array(begin + ids if begin else ids, dtype=kind)} for ids in ids_of(texts)]

    return encode


def _encode_rows(
    encode: Encode, rows: list[tuple[int, Any]], place: Callable[[int], str], text_key: str | None
) -> list[Mapping[str, Any]]:
    try:
        return encode([row for _, row in rows])
    except Exception as error:  # a chat's template may raise anything
        for number, row in rows:
            try:
                encode([row])
            except Exception as problem:
                raise TokenizingError(f"{place(number)} {_describe(problem, row, text_key)}") from problem
        raise TokenizingError(f"{place(rows[0][0])}: {type(error).__name__}: {single_line(error)}") from error


def _describe(problem: Exception, row: Any, text_key: str | None) -> str:
    if text_key is not None and isinstance(row, dict):
        if text_key not in row:
            hint = attributes_hint(row) or " Give its format's text_key."
            return f"has no {text_key!r}: it has {quote_first_names(row) or 'nothing'}.{hint}"
        if not isinstance(row[text_key], str):
            return f"has a {text_key!r} that is no text but a {type(row[text_key]).__name__}."
    if not isinstance(row, dict):
        return f"is no object but a {type(row).__name__}."
    if (where := _surrogate_in(row if text_key is None else row[text_key])) is not None:
        return f"has half of a character (a lone surrogate, such as \\ud800) {where}: replace it, or leave the row out."
    if isinstance(problem, KeyError):
        return f"has no {quote_first_names(problem.args[:1])}, which the format asks for."
    return f"does not fit the format: {single_line(problem)}"


def _surrogate_in(value: Any) -> str | None:
    """Return the place of a character that has no UTF-8 form, as JSON may contain; None without one."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    found = SURROGATE.search(text)
    return None if found is None else f"after {truncated_repr(text[max(0, found.start() - 20) : found.start()])}"


def _length(row: Any, text_key: str | None) -> int:
    text = row.get(text_key) if text_key is not None and isinstance(row, dict) else None
    return len(text) if isinstance(text, str) else 0


__all__ = ["TokenRecipe", "check_first_row", "encode_file", "levanter_processor"]
