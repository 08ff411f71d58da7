"""Output of machines is read in bounded lines, so an endless line cannot fill memory."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from tests.fleet.sessions import session_of
from tradewind.fleet.access.ssh import HostResult, SshError, SshHost, bounded_lines, connection_loss_reason, end_of
from tradewind.fleet.dev_hosts import DevHosts


class Endless(io.RawIOBase):
    """A host that prints a number of letters, then ``end``."""

    def __init__(self, count: int, end: bytes = b"") -> None:
        self._left = count
        self._end = io.BytesIO(end)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        if not self._left:
            return self._end.readinto(buffer)
        count = min(len(buffer), self._left)
        buffer[:count] = b"a" * count
        self._left -= count
        return count


@pytest.mark.slow
def test_endless_line_is_cut_and_fills_no_memory() -> None:
    tracemalloc.start()
    try:
        lines = list(bounded_lines(io.BufferedReader(Endless(200 << 20)), 1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines == ["a" * 1000 + " ... (cut: the line has 1,000 bytes or more)"]
    assert peak < 10 << 20


def test_lines_after_a_cut_line_are_complete() -> None:
    first, *others = bounded_lines(io.BufferedReader(Endless(100_000, b"\nnext\r\n\nlast")), 1000)
    assert first.endswith("(cut: the line has 1,000 bytes or more)") and others == ["next", "", "last"]


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "a\n\nb\n", "ü\n"])
def test_short_lines_are_unchanged(text: str) -> None:
    assert list(bounded_lines(io.BytesIO(text.encode()), 1000)) == text.splitlines()


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert list(bounded_lines(io.BytesIO(b"a\xff\nb"), 1000)) == ["a\ufffd", "b"]
    assert list(bounded_lines(io.BytesIO("ü".encode() * 600), 1001))[0].startswith("ü" * 500 + "\ufffd ... (cut")


def test_only_the_end_of_a_log_is_read() -> None:
    assert end_of(io.BytesIO(b"a" * (1 << 20) + b"the end")).endswith("the end")
    assert len(end_of(io.BytesIO(b"a" * (1 << 20)))) == 64 * 1024
    assert end_of(io.BytesIO(b"all")) == "all"


def test_connection_loss_reason_is_short_for_any_output() -> None:
    host = SshHost("here", "one:0", "10.0.0.2", "ray", "key", ())
    why = connection_loss_reason("a banner\n" + "b" * 60_000 + "\n\n", host)
    assert why.startswith("Cluster here: ssh to one:0 at 10.0.0.2 ended: bbb") and len(why) < 500
    hosts = DevHosts(session_of("10.0.0.2"), [host], ["10.0.0.2/1/2"])
    with pytest.raises(SshError, match="Host one:0 did not take the files: aaa") as refused:
        hosts._check(HostResult("one:0", 1), "a" * (1 << 20))
    assert len(str(refused.value)) < 500
