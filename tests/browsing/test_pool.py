"""Readers' processes: bombs, silent stores and dead processes cost a server bounded memory, time and threads."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.browsing.files import WRITERS
from tradewind.browsing import pool as pools
from tradewind.browsing.limits import MEMORY_BYTES
from tradewind.browsing.pool import Answer, Reader, ReaderPool
from tradewind.browsing.refusals import BrowsingError, BusyError, OutsideError, StoreSilentError, TooLargeError


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    found = Reader()
    yield found
    found.end()


def ask(reader: Reader, root: Path, call: str, name: str, **arguments: Any) -> Any:
    answer = reader.ask(call, [str(root)], {"path": f"{root}/{name}", **arguments}, 8.0)
    return json.loads(answer.body)


def memory_of(reader: Reader, field: str) -> int:
    assert reader._process is not None
    status = Path(f"/proc/{reader._process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(f"{field}:"))


def test_column_names_that_are_no_text_are_answered(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"\\ud800": "\\udfff"}\n')
    page = ask(reader, tmp_path, "rows", "a.jsonl")
    assert (page["columns"][0]["name"], page["rows"][0]["values"]) == ("?", ["?"])


@pytest.mark.slow
def test_parquet_bombs_stay_within_the_memory_limit(reader: Reader, tmp_path: Path) -> None:
    """Files of some kilobytes that take gigabytes when they are unpacked whole."""
    text = "x" * (8 << 20)
    parquet.write_table(pa.table({"a": [text] * 20}), tmp_path / "texts.parquet", compression="zstd")
    parquet.write_table(pa.table({"a": [b"\0" * (200 << 20)]}), tmp_path / "value.parquet", compression="zstd")
    lists = pa.FixedSizeListArray.from_arrays(np.full(4096 * 4000, 0.5), 4096).cast(pa.list_(pa.float64()))
    parquet.write_table(pa.table({"a": lists}), tmp_path / "lists.parquet")
    parquet.write_table(pa.table({f"c{at}": [1] for at in range(1000)}), tmp_path / "wide.parquet")
    WRITERS["a.parquet"](tmp_path / "a.parquet")
    assert ask(reader, tmp_path, "rows", "a.parquet", limit=10)["total"] == 1000
    before = memory_of(reader, "VmRSS")
    page = ask(reader, tmp_path, "rows", "texts.parquet", limit=2)
    assert page["rows"][0]["cut"] == [0] and page["next"].startswith("2@")
    with pytest.raises(TooLargeError, match=r"value\.parquet needs more than 64 MB of memory"):
        ask(reader, tmp_path, "rows", "value.parquet")
    page = ask(reader, tmp_path, "rows", "lists.parquet", limit=20)
    assert page["rows"][19]["values"][0].startswith("[0.5, 0.5")
    page = ask(reader, tmp_path, "rows", "wide.parquet")
    assert len(page["columns"]) == 200 and page["note"] is not None
    assert memory_of(reader, "VmHWM") - before < 2 * MEMORY_BYTES  # with the stacks and pages that the limit leaves out
    assert ask(reader, tmp_path, "rows", "a.parquet", limit=10)["total"] == 1000


def test_reader_starts_again_after_its_end(reader: Reader, tmp_path: Path) -> None:
    WRITERS["a.jsonl"](tmp_path / "a.jsonl")
    assert ask(reader, tmp_path, "list", "")["entries"][0]["name"] == "a.jsonl"
    assert reader._process is not None
    os.kill(reader._process.pid, signal.SIGKILL)
    reader._process.wait()
    assert ask(reader, tmp_path, "list", "")["entries"][0]["name"] == "a.jsonl"


def test_reader_dies_of_a_silent_store(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that accepts connections and never answers ends the process, not the server's patience."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(pools, "GRACE_S", 1.0)
        reader.end()  # its environment is that of the start
        began = time.monotonic()
        with pytest.raises(StoreSilentError, match="gs://bucket/a"):
            reader.ask("list", ["gs://bucket"], {"path": "gs://bucket/a"}, 3.0)
        assert time.monotonic() - began < 15
    WRITERS["a.jsonl"](tmp_path / "a.jsonl")
    assert len(ask(reader, tmp_path, "rows", "a.jsonl", limit=3)["rows"]) == 3


def test_start_takes_no_time_of_a_request(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the modules of a process load for longer than a store may be silent."""
    WRITERS["a.jsonl"](tmp_path / "a.jsonl")
    slow = "import time; time.sleep(3); from tradewind.browsing.worker import main; main()"
    monkeypatch.setattr(pools, "_COMMAND", (sys.executable, "-c", slow))
    monkeypatch.setattr(pools, "GRACE_S", 0.0)
    reader.end()
    answer = reader.ask("list", [str(tmp_path)], {"path": str(tmp_path)}, 2.5)
    assert json.loads(answer.body)["entries"][0]["name"] == "a.jsonl"
    monkeypatch.setattr(pools, "START_S", 0.1)
    reader.end()
    with pytest.raises(BusyError, match="has not started for 0 s"):
        reader.ask("list", [str(tmp_path)], {"path": str(tmp_path)}, 8.0)


def test_process_that_cannot_start_is_told(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_COMMAND", (sys.executable, "-c", "print('not ready')"))
    reader.end()
    with pytest.raises(BusyError, match="ended while it started"):
        reader.ask("list", ["/store"], {"path": "/store"}, 8.0)


def test_refusals_keep_their_kind(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="below no allowed root"):
        reader.ask("text", [str(tmp_path)], {"path": "/etc/passwd"}, 5.0)
    with pytest.raises(BrowsingError):
        reader.ask("text", [], {"path": str(tmp_path)}, 5.0)


def test_pool_refuses_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def wait(*_: object) -> Answer:
        release.wait(20)
        return Answer({}, b"")

    monkeypatch.setattr(Reader, "ask", wait)
    pool = ReaderPool(processes=2)
    try:
        asked = [pool.submit("list", [], {"path": "/a"}) for _ in range(2 + pools.MAX_WAITING)]
        with pytest.raises(BusyError, match="busy"):
            pool.submit("list", [], {"path": "/b"})
        release.set()
        assert [each.result(20).body for each in asked] == [b""] * len(asked)
        assert pool.submit("list", [], {"path": "/b"}).result(20).body == b""
    finally:
        release.set()
        pool.end()


def test_request_that_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_WAIT_S", -1.0)
    pool = ReaderPool(processes=1)
    try:
        with pytest.raises(BusyError):
            pool.submit("list", [], {"path": "/a"}).result(20)
    finally:
        pool.end()
