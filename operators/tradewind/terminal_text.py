"""Text for a terminal.

It may come from a record, a log or a cluster, so nothing of it steers the terminal: control characters are written as
text, also the colours of a job's log, and what changes the direction of writing.
"""

from __future__ import annotations

import re
from typing import Final

_STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def as_text(text: str) -> str:
    """``text`` with all that a terminal would obey, but for newlines and tabs, written as Python writes it."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
