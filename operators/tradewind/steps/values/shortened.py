"""Any value as a message shows it: in a line, whatever it is and however long."""

from __future__ import annotations

import reprlib
from typing import Final

MOST_BITS: Final = 14_000
"""Of a whole number that can be written: Python writes none with more than 4,300 digits."""
_LONGEST: Final = 80


def shortened(value: object) -> str:
    """``value`` as ``repr`` shows it, at most 80 characters of it."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


class _Short(reprlib.Repr):
    """Shows any value in few characters, also numbers that Python refuses to write."""

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MOST_BITS:
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)


_SHORT: Final = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST
_SHORT.maxlevel = 3
