"""Bound the memory of one request by the kernel, in a process that does nothing else."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tradewind.browsing.limits import MEMORY_BYTES

_LIBRARY_BYTES: Final = 768 << 20
"""Allowed in addition while a library or a tokenizer is loaded, which the process keeps for later requests."""

_is_bounded = False


@contextmanager
def bounded() -> Iterator[None]:
    """Let the kernel refuse more than what the process has and one request may take."""
    global _is_bounded
    before = resource.getrlimit(resource.RLIMIT_DATA)
    _is_bounded = True
    try:
        _allow(MEMORY_BYTES)
        yield
    finally:
        _is_bounded = False
        resource.setrlimit(resource.RLIMIT_DATA, before)


@contextmanager
def loading() -> Iterator[None]:
    """Allow more while something is loaded that the process keeps; afterwards the request has its full share again."""
    if not _is_bounded:
        yield
        return
    _allow(MEMORY_BYTES + _LIBRARY_BYTES)
    try:
        yield
    finally:
        _allow(MEMORY_BYTES)


def memory_of_process(field: str) -> int:
    """Return a line of the process's status, such as ``VmRSS``, in bytes; 0 where the system has none."""
    try:
        with open("/proc/self/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith(f"{field}:")), 0)
    except OSError:
        return 0


def _allow(more: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if has := memory_of_process("VmData"):
        resource.setrlimit(resource.RLIMIT_DATA, (has + more, hard))
