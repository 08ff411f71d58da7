"""A file with the token of a cluster, which nobody but its owner may use."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tradewind.ray_jobs.cluster import is_token

_LARGEST_BYTES: Final = 64 * 1024


class BadTokenFileError(Exception):
    """The file cannot be used as it is; the text goes on a sentence that names the file."""


def read_token_file(file: str | Path) -> str:
    """The token in ``file``.

    Raises:
        BadTokenFileError: Others than its owner can use it, or what it holds is no token.
        OSError: It cannot be read.
    """
    with open(file, "rb") as opened:
        mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadTokenFileError(f"can be used by others than its owner (mode {mode:04o}): do 'chmod 600' on it.")
        token = opened.read(_LARGEST_BYTES).decode(errors="replace").strip()
    if not token:
        raise BadTokenFileError("is empty.")
    if not is_token(token):
        raise BadTokenFileError(
            "holds what is no token (it is not shown): up to 4096 letters, digits and signs without spaces or lines "
            "between them."
        )
    return token
