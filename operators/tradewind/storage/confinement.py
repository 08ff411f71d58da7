"""Confine reads to the allowed roots, whatever links lead out of them.

A reader for pages checks a path from outside once, then joins the names of records to it. On a local disk, another
writer may have replaced a folder on the way by a link. So a confined read compares where the opened file is with the
roots. Buckets have no links.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

from tradewind.storage.paths import Roots

OUTSIDE: Final = "a folder above it is a link that leads outside of the allowed roots"
_allowed: ContextVar[Roots | None] = ContextVar("allowed roots", default=None)


@contextmanager
def confined_to(roots: Roots | None) -> Iterator[None]:
    """Confine the reads of local records by this thread, or request, to the files below ``roots``; None: to nothing."""
    token = _allowed.set(roots)
    try:
        yield
    finally:
        _allowed.reset(token)


def confined_threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads that are confined as this one is."""
    return ThreadPoolExecutor(count, initializer=_allowed.set, initargs=(_allowed.get(),))


def leads_outside(name: str, descriptor: int | None = None) -> bool:
    """Whether this thread is confined, and a local path, or what was opened there, is below none of its roots."""
    roots = _allowed.get()
    return roots is not None and is_outside(roots, name, descriptor)


def is_outside(roots: Roots, name: str, descriptor: int | None = None) -> bool:
    """Whether a local path, or what was opened there, is below none of the ``roots``."""
    if descriptor is not None:
        with suppress(OSError):  # only Linux tells where it is
            return not roots.allow_resolved(os.readlink(f"/proc/self/fd/{descriptor}"))
    return not roots.allow(name)
