"""Bounded reads of TOML files that others wrote, such as the ``pyproject.toml`` of a checkout."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any, Final

from tradewind.storage.bounded_read import SMALL, read_local

_MAX_BYTES: Final = SMALL // 4
"""Several times the size of the largest projects: the parser takes a second for it at worst."""
_MAX_PARTS: Final = 32
_PART: Final = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY: Final = re.compile(rf"(?<![\w\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MAX_PARTS}}}")
"""A dotted key on which the parser would spend the square of its length, in memory too."""


def read_toml(path: str | os.PathLike[str], max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """Return the content of a local TOML file.

    Raises:
        OSError: It does not exist or cannot be opened.
        ValueError: It is no TOML file of bounded size and depth; the text follows "because".
    """
    content = read_local(path, max_bytes)
    if content.flaw:
        raise ValueError(content.flaw)
    if _LONG_KEY.search(content.text):
        raise ValueError(f"it has a key of more than {_MAX_PARTS} parts")
    try:
        return tomllib.loads(content.text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
