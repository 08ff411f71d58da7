"""Names of a data set's files: a pattern such as ``data-{shard:05d}-of-{total:05d}.jsonl.gz``, or a function."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tradewind.text import single_line, truncated_repr

Pattern = str | Callable[[int, int], str]
"""A text with ``{shard}``, ``{total}`` and ``{basename}``, or a function of a shard's number and their total."""
_WIDTH: Final = re.compile(r"(0?[0-9]{1,2})?d?")
_FORMATS: Final = {"shard": _WIDTH, "total": _WIDTH, "basename": re.compile("")}
_DOUBLE_SLASHES: Final = re.compile(r"(?<![:/])/{2,}")


@dataclass(frozen=True)
class FilePattern:
    """Name the file of each shard.

    Attributes:
        method: Name of the writing method, for errors.
        pattern: As users give it.

    Raises:
        ValueError: The pattern has other fields, or other formats of them than a width.
    """

    method: str
    pattern: Pattern

    def __post_init__(self) -> None:
        if callable(self.pattern):
            return
        if not isinstance(self.pattern, str) or not self.pattern.strip("/ "):
            raise ValueError(f"{self.method}({truncated_repr(self.pattern)}): give a pattern or a function.")
        try:
            fields = [entry for entry in string.Formatter().parse(self.pattern) if entry[1] is not None]
        except ValueError as error:
            raise ValueError(f"{self.method}({truncated_repr(self.pattern)}): {error}.") from error
        for _, name, form, conversion in fields:
            if conversion or name not in _FORMATS or not _FORMATS[name].fullmatch(form or ""):
                field = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}"
                raise ValueError(
                    f"{self.method}({truncated_repr(self.pattern)}): {single_line(field, 40)} is unknown: there are "
                    "{shard} and {total}, also with a width up to 99, such as {shard:05d}, and {basename}."
                )

    def of(self, shard: int, total: int) -> str:
        """Return the name of one shard's file."""
        if callable(self.pattern):
            name = self.pattern(shard, total)
            if not isinstance(name, str) or not name:
                raise ValueError(f"{self.method}: the function of names returned {truncated_repr(name)} for {shard}.")
            return name
        name = self.pattern.format(shard=shard, total=total, basename=f"shard_{shard}")
        return _DOUBLE_SLASHES.sub("/", name)

    def all(self, total: int) -> Sequence[str]:
        """Return the names of all shards' files.

        Raises:
            ValueError: Two shards have one name.
        """
        names = [self.of(shard, total) for shard in range(total)]
        name, count = Counter(names).most_common(1)[0] if names else ("", 0)
        if count > 1:
            raise ValueError(
                f"{self.method}: {count:,} of {total:,} shards have the name {truncated_repr(name)}: put {{shard}} "
                "into the pattern."
            )
        return names
