"""What a driver and its children print also goes to a log beside the output, where it outlives the cluster.

It is passed on as valid UTF-8, since Ray cannot follow a job whose log is not, and without the values of secrets.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tradewind.calls.masking import Masker, StreamMasker
from tradewind.runtime.driver.stored_log import StoredLog

DRIVER_LOG: Final = "driver.log"
_STANDARD: Final = (1, 2)
_CHUNK: Final = 65536
_DRAIN_S: Final = 2.0
"""How long a process that was left behind, and still holds the pipe, can keep us."""


@contextmanager
def kept_output(folder: str, masker: Masker) -> Iterator[None]:
    """Keep what this process and its children print in ``folder`` as well, for the length of the block.

    What ``masker`` knows, or learns meanwhile, is hidden in both places.
    """
    log = StoredLog(folder, DRIVER_LOG)
    reader, writer = os.pipe()
    shown = os.dup(1)
    saved = {descriptor: os.dup(descriptor) for descriptor in _STANDARD}
    for descriptor in _STANDARD:
        os.dup2(writer, descriptor)
    os.close(writer)
    pumping = threading.Thread(target=pump, args=(reader, shown, log, StreamMasker(masker)), daemon=True)
    pumping.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, original in saved.items():
            os.dup2(original, descriptor)
            os.close(original)
        pumping.join(_DRAIN_S)
        log.close()
        log.bring_home()


def pump(reader: int, shown: int, log: StoredLog, masked: StreamMasker) -> None:
    """Pass everything on until the last process that holds the pipe has let go of it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        data = os.read(reader, _CHUNK)
        shown_data = masked.feed(data) if data else masked.end()
        text = decoder.decode(shown_data, final=not data).encode()
        _write_all(shown, text)
        log.write(text)
        if not data:
            return


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
