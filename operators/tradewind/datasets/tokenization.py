"""Tokenize files into token caches that Levanter trains from, on all hosts of the cluster.

Each input file, and of a large one each span of its bytes, becomes a shard by itself: a file that is seen only when it
is whole, and whose name says what it was made of. An attempt after a loss makes those that are missing. From the shards
the cache is put together as Levanter's own builder does it, and they are removed. The tokens, their order, layout and
ledger are those of Levanter's builder.

The work is Ray Data's, with one block for each shard.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Any, Final

from tradewind.datasets.cache_builder import build_cache, is_built, ledger_names
from tradewind.datasets.files import exists, join, read_json, write_json
from tradewind.datasets.ray_data import spread
from tradewind.datasets.token_encoding import TokenRecipe, check_first_row, encoded, levanter_processor
from tradewind.datasets.token_inputs import InputFile, check_no_test_data, input_files, unchanged
from tradewind.datasets.token_rows import Span, spans_of
from tradewind.datasets.token_shards import Shard, finished_shards, shard_key, write_shard
from tradewind.datasets.tokenizer_files import digest_of, tokenizer_files
from tradewind.steps.amounts import human_size
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, FieldRule, check_fields, integer
from tradewind.storage import file_system_at

# How far a tokenization is, for the task log.

SECONDS_PER_LINE: Final = 15.0


class TokenizingProgress:
    """Counts what is done and says it now and then, as long as a ``with`` block lasts; also while nothing ends.

    Args:
        files: How many there are.
        size_bytes: Of all, as they lie in their store.
        clock: Seconds that only grow.
    """

    def __init__(self, files: int, size_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._all_files = files
        self._all_bytes = size_bytes
        self._clock = clock
        self._began = clock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="tokenizing-progress", daemon=True)
        self.files = self.bytes = self.documents = self.tokens = 0
        self._kept_bytes = self._kept_documents = 0

    def __enter__(self) -> TokenizingProgress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def count(
        self, size_bytes: int, documents: int, tokens: int, *, was_there: bool = False, ends_file: bool = True
    ) -> None:
        """One more file, or piece of one, is done, or was at the start."""
        self.files += ends_file
        self.bytes += size_bytes
        self.documents += documents
        self.tokens += tokens
        if was_there:
            self._kept_bytes += size_bytes
            self._kept_documents += documents

    def line(self) -> str:
        """``12 of 40 files, 3.1 of 9.8 GB, 1,200 documents, 50,000 tokens, 12 MB/s, 31 documents/s, 9 min left``."""
        seconds = max(self._clock() - self._began, 1e-3)
        rate = (self.bytes - self._kept_bytes) / seconds
        parts = [
            f"{self.files:,} of {self._all_files:,} files",
            f"{human_size(self.bytes)} of {human_size(self._all_bytes)}",
            f"{self.documents:,} documents",
            f"{self.tokens:,} tokens",
            f"{human_size(int(rate))}/s",
            f"{(self.documents - self._kept_documents) / seconds:,.0f} documents/s",
        ]
        if rate > 0 and self.bytes < self._all_bytes:
            parts.append(f"{(self._all_bytes - self.bytes) / rate / 60:.0f} min left")
        return ", ".join(parts)

    def _tell(self) -> None:
        while not self._is_over.wait(SECONDS_PER_LINE):
            print(self.line(), flush=True)


# The two sets of texts, and in which pieces they are tokenized.


@dataclass(frozen=True)
class Piece:
    """What becomes one shard: a file, or a span of it."""

    split: str
    key: str
    file: InputFile
    span: Span

    @property
    def size_bytes(self) -> int:
        """As it lies there, compressed or not."""
        return (self.file.size_bytes if self.span.end is None else self.span.end) - self.span.start

    def __str__(self) -> str:
        return self.file.path + (f" after byte {self.span.start:,}" if self.span.start else "")


@dataclass
class Split:
    """One of the two sets of texts.

    Attributes:
        name: ``train`` or ``validation``.
        files: In the order of the texts.
        pieces: Of each file, in the order of the texts.
        fingerprint: Says which files these are, in which state, and by which recipe they are tokenized.
        shards: Key of a piece → what was made of it.
    """

    name: str
    files: Sequence[InputFile]
    pieces: Sequence[Sequence[Piece]]
    fingerprint: str
    shards: dict[str, Shard] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, files: Sequence[InputFile], recipe_key: str, span_bytes: int | None) -> Split:
        """The split of these files, of which each that can be read from any place is cut into spans of that size.

        None leaves them whole.
        """
        pieces = [
            [
                Piece(name, shard_key(recipe_key, file, span), file, span)
                for span in spans_of(file.path, file.size_bytes, span_bytes or file.size_bytes)
            ]
            for file in files
        ]
        made_of = "".join(shard_key(recipe_key, file) for file in files)
        return cls(name, files, pieces, sha256(made_of.encode()).hexdigest())

    def all_pieces(self) -> list[Piece]:
        """Those of all files."""
        return [piece for pieces in self.pieces for piece in pieces]

    def shards_of_files(self) -> list[list[Shard]]:
        """What was made of each file."""
        return [[self.shards[piece.key] for piece in pieces] for pieces in self.pieces]

    def describe(self) -> dict[str, Any]:
        """What is written down of it once it is tokenized."""
        shards = self.shards.values()
        return {
            "documents": sum(shard.documents for shard in shards),
            "tokens": sum(shard.counts[0] for shard in shards),
            "files": len(self.files),
            "bytes": sum(file.size_bytes for file in self.files),
        }


RESUMABLE: Final = ("**",)
"""For ``ExecutorStep(resumable=...)``: an attempt goes on from all shards that the one before has finished."""
RECORD_FILE: Final = "tokenization.json"
STATE_FILE: Final = ".tokenization"
"""Of which files, in which state, the caches were made; the other files of the output do not depend on that."""
SHARDS_FOLDER: Final = "shards"
SMALL_BYTES: Final = 8_000_000
"""What is no larger in all is tokenized in the driver, before workers would have started."""
SPAN_BYTES: Final = 256_000_000
"""What one worker does at a time of a file that can be read from any place; a loss costs no more."""
_TEXT: Final = "TextLmDatasetFormat"
_LAYOUT: Final = 1
"""Counts in the key of a shard."""
_SAMPLES: Final = integer(1).or_none()
_PATHS: Final = FieldRule("a list of files, folders or globs", lambda value: isinstance(value, (list, tuple)))


@dataclass(frozen=True)
class TokenizeFilesConfig:
    """What ``tokenize`` reads, and with what; the fields are those of Marin's ``TokenizeConfig``, and ``text_key``."""

    train_paths: Sequence[Any]
    """Files, folders or globs, of any store: ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst``, the same of ``.json``, and
    ``.parquet``."""
    validation_paths: Sequence[Any]
    cache_path: str
    """Gets ``train/`` and ``validation/``, Levanter's token caches, and ``tokenization.json``."""
    tokenizer: str
    """A folder, or a name on the Hugging Face hub of which the hosts have a copy."""
    text_key: str = "text"
    """Where the text of a document is."""
    format: Any = None
    """``lazy("levanter.data.text:ChatLmDatasetFormat", ...)`` or another format of Levanter's; None for plain text."""
    format_name: str | None = None
    """Of the format's class, for the version of a step: a lazy object counts with its fields alone."""
    allow_test_in_train: bool = False
    """Whether files to train on may look like test data."""
    sample_count: int | None = None
    """How many documents of each file, from its beginning; None for all."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            train_paths=_PATHS,
            validation_paths=_PATHS,
            cache_path=PATH,
            tokenizer=PATH,
            text_key=SOME_TEXT,
            allow_test_in_train=FLAG,
            sample_count=_SAMPLES,
        )
        if not self.train_paths and not self.validation_paths:
            raise ValueError("train_paths and validation_paths are empty: give one of them.")


def tokenize(config: Any, *, small_bytes: int = SMALL_BYTES, span_bytes: int = SPAN_BYTES) -> dict[str, Any]:
    """Tokenize the files of both splits; what is finished is kept.

    Args:
        config: A ``TokenizeFilesConfig``, or Marin's ``TokenizeConfig``.
        small_bytes: What is no larger in all is tokenized in this process.
        span_bytes: Of larger files each span of so many bytes becomes a shard, if they can be read from any place.

    Returns:
        ``train_documents``, ``train_tokens``, ``validation_documents`` and ``validation_tokens``, of the splits that
        there are.

    Raises:
        ValueError: There are no files, no such tokenizer or no end-of-text token, a file has an unknown ending or looks
            like test data, or a line (named) is malformed or lacks its text.
    """
    sample_count = getattr(config, "sample_count", None)
    _SAMPLES.check("sample_count", sample_count)
    inputs = _inputs(config)
    name, files = tokenizer_files(str(config.tokenizer), "tokenizer")
    key = _recipe_key(config, files)
    most_bytes = span_bytes if sample_count is None else None
    splits = [Split.of(split, found, key, most_bytes) for split, found in inputs.items()]
    done = _finished(config.cache_path, splits)
    missing = [split for split in splits if split.name not in done]
    if missing:
        done |= _make(config, missing, key, name, files, small_bytes)
        write_json(join(config.cache_path, RECORD_FILE), {split.name: done[split.name] for split in splits})
        write_json(join(config.cache_path, STATE_FILE), {split.name: split.fingerprint for split in splits})
    _remove_shards(config.cache_path)
    for split in splits:
        told = done[split.name]
        where = join(config.cache_path, split.name)
        print(f"{split.name}: {told['documents']:,} documents, {told['tokens']:,} tokens in {where}", flush=True)
    return {f"{split.name}_{what}": done[split.name][what] for split in splits for what in ("documents", "tokens")}


def _remove_shards(cache_path: str) -> None:
    """All of them: nothing is repeated any more. An attempt that was killed here has left them."""
    fs, root = file_system_at(join(cache_path, SHARDS_FOLDER))
    if fs.exists(root):
        fs.rm(root, recursive=True)


def _inputs(config: Any) -> dict[str, list[InputFile]]:
    if getattr(config, "train_paths", None) is None and getattr(config, "id", None) is not None:
        raise ValueError(
            f"id={config.id!r}: data sets are not read from the Hugging Face hub while they are tokenized. Download it "
            "with default_download, and give the path of that step as train_paths of a TokenizeConfig."
        )
    found = {}
    for split in ("train", "validation"):
        paths = getattr(config, f"{split}_paths", None) or []
        if files := input_files(paths, f"{split}_paths"):
            found[split] = files
    read = [*(getattr(config, "train_paths", None) or ()), *(file.path for file in found.get("train", ()))]
    check_no_test_data(map(str, read), config.allow_test_in_train)
    if not found:
        raise ValueError("train_paths and validation_paths are empty: give one of them.")
    return found


def _text_key(config: Any) -> str | None:
    """Of a format of plain texts, None for any other."""
    given = getattr(config, "format", None)
    if given is None:
        return str(getattr(config, "text_key", "text"))
    if not hasattr(given, "build_preprocessor") and type(given).__name__ != _TEXT:
        raise ValueError(f"format is a {type(given).__name__}: give one of Levanter's, or leave it out for plain text.")
    return str(given.text_key) if type(given).__name__ == _TEXT else None


def _recipe_key(config: Any, files: Mapping[str, bytes]) -> str:
    """The same for what makes the same tokens, found without Levanter."""
    text_key = _text_key(config)
    given: dict[str, Any] = {"text_key": text_key}
    if text_key is None:
        of = type(config.format)
        given = {"format": f"{of.__module__}.{of.__qualname__}", **vars(config.format)}
    if (sample_count := getattr(config, "sample_count", None)) is not None:
        given["sample_count"] = sample_count
    told = json.dumps(given, sort_keys=True, default=lambda value: getattr(value, "__qualname__", repr(value)))
    return sha256(f"{_LAYOUT} {digest_of(files)} {told}".encode()).hexdigest()


def _finished(cache_path: str, splits: Sequence[Split]) -> dict[str, Any]:
    """What is written down of the splits that are tokenized already, from these files and in this way."""
    made_of, record = (_read(join(cache_path, name)) for name in (STATE_FILE, RECORD_FILE))
    return {
        split.name: record[split.name]
        for split in splits
        if split.name in record
        and made_of.get(split.name) == split.fingerprint
        and is_built(join(cache_path, split.name))
    }


def _take_back(cache_path: str, splits: Sequence[Split]) -> None:
    """Say no more of which files the caches were made that are about to be written over."""
    path = join(cache_path, STATE_FILE)
    made_of = _read(path)
    left = {name: state for name, state in made_of.items() if name not in {split.name for split in splits}}
    if left != made_of:
        write_json(path, left)


def _read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(path) if exists(path) else {}
    return found


def _make(
    config: Any, splits: Sequence[Split], key: str, name: str, files: Mapping[str, bytes], small_bytes: int
) -> dict[str, Any]:
    text_key = _text_key(config)
    processor = levanter_processor(_format(config, text_key), files)
    if processor.metadata.get("append_eos") is False:
        raise ValueError(f"tokenizer={name!r} has no end-of-text token, so texts would run into each other: give one.")
    recipe = _recipe(processor, key, files, None if text_key is not None else config.format, text_key)
    recipe = dataclasses.replace(recipe, sample_count=getattr(config, "sample_count", None))
    for split in splits:
        check_first_row(split.files[0].path, recipe)
    _make_shards(config.cache_path, splits, recipe, small_bytes)
    metadata = processor.metadata
    metadata |= {"tokenizer": name} if "tokenizer" in metadata else {}
    _take_back(config.cache_path, splits)
    for split in splits:
        print(f"{split.name}: puts the cache together", flush=True)
        names = ledger_names([file.path for file in split.files])
        shards = dict(zip(names, split.shards_of_files(), strict=True))
        build_cache(join(config.cache_path, split.name), shards, recipe.fields, processor, metadata)
    return {split.name: split.describe() for split in splits}


def _format(config: Any, text_key: str | None) -> Any:
    if text_key is None:
        return config.format
    from levanter.data.text import TextLmDatasetFormat

    return TextLmDatasetFormat(text_key=text_key)


def _recipe(processor: Any, key: str, files: Mapping[str, bytes], format: Any, text_key: str | None) -> TokenRecipe:
    import numpy as np

    if text_key is None:
        kinds = {name: np.asarray(value).dtype for name, value in processor.output_exemplar.items()}
        fields = tuple((name, kind.newbyteorder("<").str) for name, kind in kinds.items())
        return TokenRecipe(key, files, fields, format, None)
    tokenizer, metadata = processor.tokenizer, processor.metadata
    return TokenRecipe(
        key,
        files,
        (("input_ids", "<i4"),),
        None,
        text_key,
        bos_id=tokenizer.bos_token_id if metadata["append_bos"] else None,
        end=f" {tokenizer.eos_token}",
    )


def _make_shards(cache_path: str, splits: Sequence[Split], recipe: TokenRecipe, small_bytes: int) -> None:
    total = sum(len(split.files) for split in splits)
    size = sum(file.size_bytes for split in splits for file in split.files)
    left = Counter((piece.split, piece.file.path) for split in splits for piece in split.all_pieces())
    by_name = {split.name: split for split in splits}
    with TokenizingProgress(total, size) as progress:

        def count(piece: Piece, shard: Shard, was_there: bool = False) -> None:
            by_name[piece.split].shards[piece.key] = shard
            file = (piece.split, piece.file.path)
            left[file] -= 1
            tokens = shard.counts[0]
            progress.count(piece.size_bytes, shard.documents, tokens, was_there=was_there, ends_file=not left[file])

        missing = []
        for split in splits:
            pieces = split.all_pieces()
            there = finished_shards(join(cache_path, SHARDS_FOLDER, split.name), (piece.key for piece in pieces))
            for piece in pieces:
                if (shard := there.get(piece.key)) is None:
                    missing.append(piece)
                else:
                    count(piece, shard, was_there=True)
        kept = f"{progress.files:,} files and {human_size(progress.bytes)}"
        print(f"{total:,} files of {human_size(size)} to tokenize, of which {kept} are finished already", flush=True)
        work = partial(_tokenize_piece, cache_path=cache_path, recipe=recipe)
        is_small = sum(piece.size_bytes for piece in missing) <= small_bytes
        for piece, shard in spread(missing, work, is_small=is_small):
            count(piece, shard)
        print(f"tokenized {progress.line()}", flush=True)


def _tokenize_piece(piece: Piece, cache_path: str, recipe: TokenRecipe) -> tuple[Piece, Shard]:
    """What a worker does."""
    print(f"tokenizes {piece}", flush=True)
    folder = join(cache_path, SHARDS_FOLDER, piece.split)
    batches = unchanged(piece.file, encoded(piece.file.path, recipe, piece.span))
    return piece, write_shard(folder, piece.key, recipe.fields, batches)
