"""Tokenize files into token caches that Levanter trains from, on all hosts of the cluster.

Ray tasks make one shard of each input file, or of each span of a large one. A shard appears only when complete, and its
name identifies its input. An attempt after a loss makes the missing shards. Then the cache is built from all shards,
and they are removed. The tokens, their order, layout and ledger are those of Levanter's own builder.
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
from tradewind.datasets.files import join, write_json
from tradewind.datasets.hub import Hub, HubAccess
from tradewind.datasets.ray_tasks import spread
from tradewind.datasets.source_files import repeat_if_damaged
from tradewind.datasets.token_encoding import TokenRecipe, check_first_row, encode_file, levanter_processor
from tradewind.datasets.token_inputs import InputFile, check_no_test_data, check_unchanged, input_files
from tradewind.datasets.token_rows import Open, Span, spans_of
from tradewind.datasets.token_shards import Shard, finished_shards, shard_key, write_shard
from tradewind.datasets.tokenizer_files import digest_of, tokenizer_files
from tradewind.steps.amounts import human_size
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, FieldRule, check_fields, integer
from tradewind.steps.needs import needs
from tradewind.storage import file_system_at, open_file
from tradewind.storage.bounded_read import SMALL

RESUMABLE: Final = ("**",)
"""For ``ExecutorStep(resumable=...)``: an attempt keeps all shards that the previous one finished."""
RECORD_FILE: Final = "tokenization.json"
STATE_FILE: Final = ".tokenization"
"""Fingerprints of the input files of each cache; no other file of the output contains them."""
SHARDS_FOLDER: Final = "shards"
SMALL_BYTES: Final = 8_000_000
"""Input up to this total size is tokenized in the driver, which is faster than to start workers."""
SPAN_BYTES: Final = 256_000_000
"""Span that one worker tokenizes of a file that can be read from any byte: what a loss costs at most."""
_TEXT: Final = "TextLmDatasetFormat"
_LAYOUT: Final = 1
"""Version of the shard format, part of a shard's key."""
_SAMPLES: Final = integer(1).or_none()
_PATHS: Final = FieldRule("a list of files, folders or globs", lambda value: isinstance(value, (list, tuple)))
SECONDS_PER_LINE: Final = 15.0
"""Seconds between two progress lines."""


class TokenizingProgress:
    """Prints progress for the task log during a ``with`` block, also while no piece ends.

    Args:
        files: Number of files.
        size_bytes: Their total size in the store.
        clock: Monotonic seconds.
    """

    def __init__(self, files: int, size_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._all_files = files
        self._all_bytes = size_bytes
        self._clock = clock
        self._began = clock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._print_lines, name="tokenizing-progress", daemon=True)
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
        """Count one more file, or piece of one; ``was_there`` if an earlier attempt made it."""
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

    def _print_lines(self) -> None:
        while not self._is_over.wait(SECONDS_PER_LINE):
            print(self.line(), flush=True)


@dataclass(frozen=True)
class Piece:
    """Input of one shard: a file, or a span of it."""

    split: str
    key: str
    file: InputFile
    span: Span

    @property
    def size_bytes(self) -> int:
        """Size in the store, compressed or not."""
        return (self.file.size_bytes if self.span.end is None else self.span.end) - self.span.start

    def __str__(self) -> str:
        return self.file.path + (f" after byte {self.span.start:,}" if self.span.start else "")


@dataclass
class Split:
    """One of the two sets of texts.

    Attributes:
        name: ``train`` or ``validation``.
        files: In the order of the texts.
        pieces: Pieces of each file, in the order of the texts.
        fingerprint: Hash of the files, their states and the recipe.
        shards: Key of a piece → its shard.
    """

    name: str
    files: Sequence[InputFile]
    pieces: Sequence[Sequence[Piece]]
    fingerprint: str
    shards: dict[str, Shard] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, files: Sequence[InputFile], recipe_key: str, span_bytes: int | None) -> Split:
        """Make a split of these files, cut into spans of ``span_bytes`` where possible; None keeps them whole."""
        pieces = [
            [
                Piece(name, shard_key(recipe_key, file, span), file, span)
                for span in spans_of(file.path, file.size_bytes, _span_bytes(file, span_bytes))
            ]
            for file in files
        ]
        made_of = "".join(shard_key(recipe_key, file) for file in files)
        return cls(name, files, pieces, sha256(made_of.encode()).hexdigest())

    def all_pieces(self) -> list[Piece]:
        """Return the pieces of all files."""
        return [piece for pieces in self.pieces for piece in pieces]

    def shards_of_files(self) -> list[list[Shard]]:
        """Return the shards of each file."""
        return [[self.shards[piece.key] for piece in pieces] for pieces in self.pieces]

    def describe(self) -> dict[str, Any]:
        """Return the record of the tokenized split."""
        shards = self.shards.values()
        return {
            "documents": sum(shard.documents for shard in shards),
            "tokens": sum(shard.counts[0] for shard in shards),
            "files": len(self.files),
            "bytes": sum(file.size_bytes for file in self.files),
        }


@dataclass(frozen=True)
class TokenizeFilesConfig:
    """Input of ``tokenize``; the fields are those of Marin's ``TokenizeConfig``, and ``text_key``."""

    train_paths: Sequence[Any]
    """Files, folders or globs, of any store: ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst``, the same of ``.json``, and
    ``.parquet``."""
    validation_paths: Sequence[Any]
    cache_path: str
    """Gets ``train/`` and ``validation/``, Levanter's token caches, and ``tokenization.json``."""
    tokenizer: str
    """A folder, or a name on the Hugging Face hub, which the first step that needs it copies to the store."""
    text_key: str = "text"
    """Key of a document's text."""
    format: Any = None
    """``lazy("levanter.data.text:ChatLmDatasetFormat", ...)`` or another format of Levanter's; None for plain text."""
    format_name: str | None = None
    """Class of the format, for the version of a step: a lazy object counts with its fields alone."""
    allow_test_in_train: bool = False
    """Whether training files may look like test data."""
    sample_count: int | None = None
    """Number of documents of each file, from its beginning; None for all."""

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


@needs("levanter")
def tokenize(config: Any, *, small_bytes: int = SMALL_BYTES, span_bytes: int = SPAN_BYTES) -> dict[str, Any]:
    """Tokenize the files of both splits; finished caches and shards stay.

    Args:
        config: A ``TokenizeFilesConfig``, or Marin's ``TokenizeConfig`` or ``HfTokenizeConfig``.
        small_bytes: Input up to this total size is tokenized in this process.
        span_bytes: Size of the spans of files that can be read from any byte.

    Returns:
        ``train_documents``, ``train_tokens``, ``validation_documents`` and ``validation_tokens``, of the existing
        splits; of a hub's data set also its ``commit``.

    Raises:
        ValueError: There are no files, no such tokenizer or no end-of-text token, a file has an unknown ending or looks
            like test data, or a line (named) is malformed or lacks its text.
        DownloadError: The hub has no such data set, or does not give its files.
    """
    sample_count = getattr(config, "sample_count", None)
    _SAMPLES.check("sample_count", sample_count)
    hub = Hub() if _is_on_hub(config) else None
    about, inputs = ({}, _inputs(config)) if hub is None else _hub_inputs(config, hub)
    name, files = tokenizer_files(str(config.tokenizer), "tokenizer", config.cache_path)
    key = _recipe_key(config, files)
    max_bytes = span_bytes if sample_count is None else None
    splits = [Split.of(split, split_files, key, max_bytes) for split, split_files in inputs.items()]
    done = _finished(config.cache_path, splits)
    missing = [split for split in splits if split.name not in done]
    if missing:
        done |= _make(config, missing, key, name, files, small_bytes, None if hub is None else hub.access)
        write_json(join(config.cache_path, RECORD_FILE), about | {split.name: done[split.name] for split in splits})
        write_json(join(config.cache_path, STATE_FILE), {split.name: split.fingerprint for split in splits})
    _remove_shards(config.cache_path)
    for split in splits:
        record = done[split.name]
        path = join(config.cache_path, split.name)
        print(f"{split.name}: {record['documents']:,} documents, {record['tokens']:,} tokens in {path}", flush=True)
    counts = {f"{split.name}_{what}": done[split.name][what] for split in splits for what in ("documents", "tokens")}
    return counts | ({"commit": about["dataset"]["commit"]} if about else {})


def _remove_shards(cache_path: str) -> None:
    """Remove all shards, also the leftovers of an attempt that was killed here."""
    fs, root = file_system_at(join(cache_path, SHARDS_FOLDER))
    if fs.exists(root):
        fs.rm(root, recursive=True)


def _is_on_hub(config: Any) -> bool:
    return getattr(config, "train_paths", None) is None and getattr(config, "id", None) is not None


def _hub_inputs(config: Any, hub: Hub) -> tuple[dict[str, Any], dict[str, list[InputFile]]]:
    from tradewind.datasets.hub_texts import hub_texts  # a DAG file loads this module, and no reader of YAML

    texts, inputs = hub_texts(config, hub)
    return {"dataset": dataclasses.asdict(texts)}, inputs


def _inputs(config: Any) -> dict[str, list[InputFile]]:
    inputs = {}
    for split in ("train", "validation"):
        paths = getattr(config, f"{split}_paths", None) or []
        if files := input_files(paths, f"{split}_paths"):
            inputs[split] = files
    training = [*(getattr(config, "train_paths", None) or ()), *(file.path for file in inputs.get("train", ()))]
    check_no_test_data(map(str, training), config.allow_test_in_train)
    if not inputs:
        raise ValueError("train_paths and validation_paths are empty: give one of them.")
    return inputs


def _span_bytes(file: InputFile, span_bytes: int | None) -> int:
    """Return the size of the spans of a file; a hub's is read whole, since only then its checksum can be compared."""
    return file.size_bytes if span_bytes is None or file.source is not None else span_bytes


def _text_key(config: Any) -> str | None:
    """Return the key of plain texts; None for any other format."""
    given = getattr(config, "format", None)
    if given is None:
        return str(getattr(config, "text_key", "text"))
    if not hasattr(given, "build_preprocessor") and type(given).__name__ != _TEXT:
        raise ValueError(f"format is a {type(given).__name__}: give one of Levanter's, or leave it out for plain text.")
    return str(given.text_key) if type(given).__name__ == _TEXT else None


def _recipe_key(config: Any, files: Mapping[str, bytes]) -> str:
    """Hash all that the tokens depend on, without importing Levanter."""
    text_key = _text_key(config)
    given: dict[str, Any] = {"text_key": text_key}
    if text_key is None:
        of = type(config.format)
        given = {"format": f"{of.__module__}.{of.__qualname__}", **vars(config.format)}
    if (sample_count := getattr(config, "sample_count", None)) is not None:
        given["sample_count"] = sample_count
    settings = json.dumps(given, sort_keys=True, default=lambda value: getattr(value, "__qualname__", repr(value)))
    return sha256(f"{_LAYOUT} {digest_of(files)} {settings}".encode()).hexdigest()


def _finished(cache_path: str, splits: Sequence[Split]) -> dict[str, Any]:
    """Return the records of the splits that are already tokenized from these files with this recipe."""
    made_of, record = (_read(join(cache_path, name)) for name in (STATE_FILE, RECORD_FILE))
    return {
        split.name: record[split.name]
        for split in splits
        if split.name in record
        and made_of.get(split.name) == split.fingerprint
        and is_built(join(cache_path, split.name))
    }


def _forget_state(cache_path: str, splits: Sequence[Split]) -> None:
    """Remove the fingerprints of caches that are about to be overwritten."""
    path = join(cache_path, STATE_FILE)
    made_of = _read(path)
    left = {name: state for name, state in made_of.items() if name not in {split.name for split in splits}}
    if left != made_of:
        write_json(path, left)


def _read(path: str) -> dict[str, Any]:
    """Return the object in a file that a tokenization wrote; an empty one without the file.

    Raises:
        ValueError: The file holds something else.
    """
    from tradewind.storage.files import read_contents

    content = read_contents([path], SMALL).get(path)
    if content is None:
        return {}
    try:
        value = json.loads(content.text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(each, (str, dict)) for each in value.values()):
        why = f" ({content.flaw})" if content.flaw else ""
        raise ValueError(f"{path} is not what a tokenization writes{why}: remove it, and clear the task.")
    return value


def _make(
    config: Any,
    splits: Sequence[Split],
    key: str,
    name: str,
    files: Mapping[str, bytes],
    small_bytes: int,
    access: HubAccess | None,
) -> dict[str, Any]:
    text_key = _text_key(config)
    processor = levanter_processor(_format(config, text_key), files)
    if processor.metadata.get("append_eos") is False:
        raise ValueError(f"tokenizer={name!r} has no end-of-text token, so texts would run into each other: give one.")
    recipe = _recipe(processor, key, files, None if text_key is not None else config.format, text_key)
    recipe = dataclasses.replace(recipe, sample_count=getattr(config, "sample_count", None))
    for first in (split.files[0] for split in splits):
        if first.source is None or not first.path.endswith(".parquet"):  # that would be a download for one row
            repeat_if_damaged(partial(check_first_row, first.path, recipe, _opener(first, access)))
    work = partial(_tokenize_piece, cache_path=config.cache_path, recipe=recipe, access=access)
    _make_shards(config.cache_path, splits, work, small_bytes)
    metadata = processor.metadata
    metadata |= {"tokenizer": name} if "tokenizer" in metadata else {}
    _forget_state(config.cache_path, splits)
    for split in splits:
        print(f"{split.name}: building the cache", flush=True)
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


def _make_shards(
    cache_path: str, splits: Sequence[Split], work: Callable[[Piece], tuple[Piece, Shard]], small_bytes: int
) -> None:
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
            finished = finished_shards(join(cache_path, SHARDS_FOLDER, split.name), (piece.key for piece in pieces))
            for piece in pieces:
                if (shard := finished.get(piece.key)) is None:
                    missing.append(piece)
                else:
                    count(piece, shard, was_there=True)
        done = f"{progress.files:,} files and {human_size(progress.bytes)}"
        print(f"Tokenizing {total:,} files of {human_size(size)}; {done} are already done.", flush=True)
        is_small = sum(piece.size_bytes for piece in missing) <= small_bytes
        for piece, shard in spread(missing, work, is_small=is_small):
            count(piece, shard)
        print(f"tokenized {progress.line()}", flush=True)


def _tokenize_piece(
    piece: Piece, cache_path: str, recipe: TokenRecipe, access: HubAccess | None
) -> tuple[Piece, Shard]:
    """Make one shard, in a worker."""
    print(f"tokenizes {piece}", flush=True)
    folder = join(cache_path, SHARDS_FOLDER, piece.split)

    def write() -> Shard:
        rows = encode_file(piece.file.path, recipe, piece.span, _opener(piece.file, access))
        return write_shard(folder, piece.key, recipe.fields, check_unchanged(piece.file, rows))

    return piece, repeat_if_damaged(write)


def _opener(file: InputFile, access: HubAccess | None) -> Open:
    if file.source is None or access is None:
        return open_file
    from tradewind.datasets.hub_texts import open_hub_file

    return partial(open_hub_file, source=file.source, access=access)
