"""What a driver and its children print also goes to a log beside the output, where it outlives the cluster.

It is passed on as valid UTF-8: Ray cannot follow a job whose log is not.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tradewind.runtime.stored_log import StoredLog

DRIVER_LOG: Final = "driver.log"
_STANDARD: Final = (1, 2)
_CHUNK: Final = 65536
_DRAIN_SECONDS: Final = 2.0
"""How long a process that was left behind, and still holds the pipe, can keep us."""


@contextmanager
def kept_output(folder: str) -> Iterator[None]:
    """Keep what this process and its children print in ``folder`` as well, for the length of the block."""
    log = StoredLog(folder, DRIVER_LOG)
    reader, writer = os.pipe()
    shown = os.dup(1)
    saved = {one: os.dup(one) for one in _STANDARD}
    for one in _STANDARD:
        os.dup2(writer, one)
    os.close(writer)
    pump = threading.Thread(target=_pump, args=(reader, shown, log), daemon=True)
    pump.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for one, original in saved.items():
            os.dup2(original, one)
            os.close(original)
        pump.join(_DRAIN_SECONDS)
        log.close()
        log.bring_home()


def _pump(reader: int, shown: int, log: StoredLog) -> None:
    """Pass everything on until the last process that holds the pipe has let go of it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        data = os.read(reader, _CHUNK)
        text = decoder.decode(data, final=not data).encode()
        _write_all(shown, text)
        log.write(text)
        if not data:
            return


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
