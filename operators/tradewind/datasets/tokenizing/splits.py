"""The two sets of texts, and in which pieces they are tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tradewind.datasets.tokenizing.inputs import InputFile
from tradewind.datasets.tokenizing.reading import Span, spans_of
from tradewind.datasets.tokenizing.shards import Shard, shard_key


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

    def told(self) -> dict[str, Any]:
        """What is written down of it once it is tokenized."""
        shards = self.shards.values()
        return {
            "documents": sum(shard.documents for shard in shards),
            "tokens": sum(shard.counts[0] for shard in shards),
            "files": len(self.files),
            "bytes": sum(file.size_bytes for file in self.files),
        }
