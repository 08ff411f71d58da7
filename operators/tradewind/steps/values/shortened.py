"""What a message shows: any value in a line, however long, and what was meant by a name that there is not."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Collection
from typing import Final

MOST_BITS: Final = 14_000
"""Of a whole number that can be written: Python writes none with more than 4,300 digits."""
_LONGEST: Final = 80


def shortened(value: object) -> str:
    """``value`` as ``repr`` shows it, at most 80 characters of it."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def meant_by(name: object, known: Collection[str]) -> str:
    """The end of a message about a name that is none of ``known``: the nearest of them, or all."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}."


class _Short(reprlib.Repr):
    """Shows any value in few characters, also numbers that Python refuses to write."""

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MOST_BITS:
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)


_SHORT: Final = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST
_SHORT.maxlevel = 3
