"""Texts of a data set of the Hugging Face hub, read from there while they are tokenized.

The first attempt resolves the revision, and records the commit in the output (``REVISION_FILE``). Later attempts read
that commit, also if the branch has moved since: no output is of two commits.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any, Final

from tradewind.datasets.files import join, write_json
from tradewind.datasets.hub import Hub, HubAccess, HubRevision
from tradewind.datasets.hub_splits import MAX_HEAD_BYTES, README, split_files
from tradewind.datasets.source_files import DownloadError, SourceFile, repeat_if_damaged
from tradewind.datasets.token_inputs import InputFile
from tradewind.steps.fields import SOME_TEXT
from tradewind.storage.bounded_read import SMALL
from tradewind.storage.files import read_contents
from tradewind.text import quote_first_names, single_line

REVISION_FILE: Final = ".dataset"
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class HubTexts:
    """A part of a data set at a commit.

    Attributes:
        id: ``owner/name``.
        name: The part (a config of the data set); None for the default.
        revision: Branch, tag or commit, as requested.
        commit: The commit that it led to.
    """

    id: str
    name: str | None
    revision: str
    commit: str


def hub_texts(config: Any, hub: Hub) -> tuple[HubTexts, dict[str, list[InputFile]]]:
    """Return the data set of an ``HfTokenizeConfig``, and the files of its splits ``train`` and ``validation``.

    Raises:
        DownloadError: The hub has no such data set or revision, or denies access.
        HubLayoutError: Its files are not of a kind that can be tokenized.
    """
    name, revision = getattr(config, "name", None), getattr(config, "revision", None)
    for field, value in (("id", config.id), ("name", name), ("revision", revision)):
        SOME_TEXT.or_none().check(field, value)
    revision = revision or "main"
    commit = _recorded_commit(config.cache_path, {"id": config.id, "name": name, "revision": revision})
    try:
        found = hub.revision(config.id, commit or revision, "dataset")
    except DownloadError as error:
        if commit is None:
            raise
        raise DownloadError(
            f"{error} An earlier attempt began with this commit of {revision!r}, and an output is of one commit only: "
            f"remove {join(config.cache_path, REVISION_FILE)} to begin again with the current one."
        ) from error
    texts = HubTexts(config.id, name, revision, found.commit)
    by_name = {file.name: file for file in found.files}
    readme = repeat_if_damaged(lambda: _head_of_readme(by_name, hub))
    splits = split_files(by_name, readme, name, config.id)
    inputs: dict[str, list[InputFile]] = {
        split: [_input(found, by_name[file]) for file in splits[split]]
        for split in ("train", "validation")
        if split in splits
    }
    if not inputs:
        raise ValueError(f"{config.id} has neither a split 'train' nor 'validation', but {quote_first_names(splits)}.")
    if commit is None:
        write_json(join(config.cache_path, REVISION_FILE), asdict(texts))
    counts = ", ".join(f"{split} with {len(files):,} files" for split, files in inputs.items())
    others = sorted(set(splits) - set(inputs))
    left_out = f"; left out: {single_line(', '.join(others))}" if others else ""
    print(f"{config.id} at commit {found.commit}: {counts}{left_out}", flush=True)
    return texts, inputs


def _recorded_commit(cache_path: str, wanted: Mapping[str, Any]) -> str | None:
    """Return the commit that an earlier attempt at the same data set began with; None without one."""
    path = join(cache_path, REVISION_FILE)
    content = read_contents([path], SMALL).get(path)
    if content is None:
        return None
    try:
        recorded = json.loads(content.text)
        texts = HubTexts(**recorded)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not what a tokenization writes ({content.flaw or error}): remove it.") from error
    return texts.commit if {field: recorded[field] for field in wanted} == wanted else None


def _head_of_readme(files: Mapping[str, SourceFile], hub: Hub) -> str:
    readme = files.get(README)
    if readme is None:
        return ""
    head = bytearray()
    with closing(readme.verify(hub.reader().read(readme))) as chunks:  # type: ignore[type-var]  # a generator
        for chunk in chunks:
            head += chunk
            if len(head) > MAX_HEAD_BYTES:
                break
    return head[:MAX_HEAD_BYTES].decode("utf-8", errors="replace")


def _input(revision: HubRevision, file: SourceFile) -> InputFile:
    checksum = file.sha256 or file.git_blob or ""
    path = f"hf://datasets/{revision.repo}@{revision.commit}/{file.name}"
    return InputFile(path, file.size_bytes or 0, checksum, file)


@contextmanager
def open_hub_file(path: str, source: SourceFile, access: HubAccess) -> Iterator[IO[bytes]]:
    """Open a file as its bytes arrive; reading to its end raises ``DamagedDownloadError`` for other bytes.

    A Parquet file, whose index is at its end, becomes a temporary one first.
    """
    with closing(source.verify(access.reader().read(source))) as chunks:  # type: ignore[type-var]  # a generator
        stream = io.BufferedReader(_Stream(chunks), _COPY_BYTES)
        if not path.endswith(".parquet"):
            yield stream
            return
        with tempfile.TemporaryFile(prefix="tradewind-") as copy:
            shutil.copyfileobj(stream, copy, _COPY_BYTES)
            copy.seek(0)
            yield copy


class _Stream(io.RawIOBase):
    """Chunks as a file.

    Args:
        chunks: None of them empty.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
