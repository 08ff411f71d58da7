"""Rows become tokens: exactly those of Levanter's own processors.

Texts are cut many at a time with the library that Levanter cuts them with one by one, without importing Levanter in
every worker. Whatever else a format asks for (chats, masks, ready-made tokens) Levanter's processor does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final

from tradewind.datasets.token_rows import WHOLE, Span, TokenizingError, row_place, rows_of
from tradewind.datasets.tokenizer_files import MAIN_FILE, kept_folder
from tradewind.text import quote_first_names, single_line

DOCUMENTS_PER_BATCH: Final = 256
CHARACTERS_PER_BATCH: Final = 4_000_000
MAX_RUN_CHARS: Final = 25_000
"""Longer runs of letters, or of white space, Levanter cuts before they are cut into tokens."""
_OVERLONG: Final = re.compile(rf"\s{{{MAX_RUN_CHARS},}}|\S{{{MAX_RUN_CHARS},}}")

Encode = Callable[[Sequence[Any]], list[Mapping[str, Any]]]
"""Rows -> field -> values, one for each row."""


@dataclass(frozen=True)
class TokenRecipe:
    """What makes tokens out of rows.

    Attributes:
        key: The same for what makes the same tokens.
        files: Of the tokenizer.
        fields: Name and NumPy type of each field, the tokens first.
        format: Levanter's.
        text_key: Of plain texts; None for every other format.
        bos_id: Begins a text, if there is one.
        end: Is put behind a text before it is cut.
        sample_count: How many rows of each file; None for all.
    """

    key: str
    files: Mapping[str, bytes]
    fields: tuple[tuple[str, str], ...]
    format: Any
    text_key: str | None
    bos_id: int | None = None
    end: str = ""
    sample_count: int | None = None


def encoded(path: str, recipe: TokenRecipe, span: Span = WHOLE) -> Iterable[list[Mapping[str, Any]]]:
    """The tokens of a file, or of a span of it, some documents at a time.

    Raises:
        TokenizingError: A row cannot be read or is not what the format asks for.
    """
    encode = _encoder(_Cached(recipe.key, recipe))
    rows: list[tuple[int, Any]] = []
    characters = 0
    place = partial(row_place, path, span=span)
    for number, row in itertools.islice(rows_of(path, recipe.text_key, span), recipe.sample_count):
        rows.append((number, row))
        characters += _length(row, recipe.text_key)
        if len(rows) >= DOCUMENTS_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
            yield _encoded(encode, rows, place, recipe.text_key)
            rows, characters = [], 0
    if rows:
        yield _encoded(encode, rows, place, recipe.text_key)


def check_first_row(path: str, recipe: TokenRecipe) -> None:
    """Raise ``TokenizingError`` if already the first row of a file does not fit: so mostly do all."""
    for first in rows_of(path, recipe.text_key):
        _encoded(_encoder(_Cached(recipe.key, recipe)), [first], partial(row_place, path), recipe.text_key)
        return


def levanter_processor(format: Any, files: Mapping[str, bytes]) -> Any:
    """What Levanter itself would make tokens with, and what says how its caches look.

    Raises:
        TokenizingError: The tokenizer lacks what the format needs, such as a chat template.
    """
    from levanter.tokenizers import load_tokenizer

    try:
        return format.build_preprocessor(load_tokenizer(kept_folder(files)), enforce_eos=True, enforce_bos=True)
    except ValueError as error:
        raise TokenizingError(f"format {type(format).__name__}: {error}") from error


@dataclass(frozen=True)
class _Cached:
    """A recipe, told from others by its key alone."""

    key: str
    recipe: TokenRecipe

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cached) and other.key == self.key


@lru_cache(maxsize=2)
def _encoder(cached: _Cached) -> Encode:
    """One a process: loading a tokenizer may take longer than a small file."""
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
    one_by_one = tokenizer.padding is not None  # texts of one batch would be made equally long

    @cache
    def levanters() -> Any:
        from levanter.tokenizers import load_tokenizer

        return load_tokenizer(kept_folder(recipe.files))

    def ids_of(texts: list[str]) -> list[list[int]]:
        if one_by_one or any(len(text) > MAX_RUN_CHARS and _OVERLONG.search(text) for text in texts):
            return [levanters().encode(text, add_special_tokens=False) for text in texts]
        return [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def encode(rows: Sequence[Any]) -> list[Mapping[str, Any]]:
        found = ids_of([row[text_key] + recipe.end for row in rows])
        return [{field: np.array(begin + ids if begin else ids, dtype=kind)} for ids in found]

    return encode


def _encoded(
    encode: Encode, rows: list[tuple[int, Any]], place: Callable[[int], str], text_key: str | None
) -> list[Mapping[str, Any]]:
    try:
        return encode([row for _, row in rows])
    except Exception as error:  # a chat's template may raise anything
        for number, row in rows:
            try:
                encode([row])
            except Exception as problem:
                raise TokenizingError(f"{place(number)} {_said(row, text_key, problem)}") from problem
        raise TokenizingError(f"{place(rows[0][0])}: {type(error).__name__}: {single_line(error)}") from error


def _said(row: Any, text_key: str | None, problem: Exception) -> str:
    if text_key is not None and isinstance(row, dict):
        if text_key not in row:
            return f"has no {text_key!r}: it has {quote_first_names(row) or 'nothing'}. Give its format's text_key."
        if not isinstance(row[text_key], str):
            return f"has a {text_key!r} that is no text but a {type(row[text_key]).__name__}."
    if not isinstance(row, dict):
        return f"is no object but a {type(row).__name__}."
    if isinstance(problem, KeyError):
        return f"has no {quote_first_names(problem.args[:1])}, which the format asks for."
    return f"does not fit the format: {single_line(problem)}"


def _length(row: Any, text_key: str | None) -> int:
    text = row.get(text_key) if text_key is not None and isinstance(row, dict) else None
    return len(text) if isinstance(text, str) else 0


__all__ = ["TokenRecipe", "check_first_row", "encoded", "levanter_processor"]
