"""Log of a driver and its children beside the output, which survives the cluster.

The output is passed on as valid UTF-8, since Ray cannot follow a job whose log is not, and without values of secrets.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tradewind.serialization.masking import Masker, StreamMasker
from tradewind.storage import file_system_at

DRIVER_LOG: Final = "driver.log"
_STANDARD: Final = (1, 2)
_CHUNK: Final = 65536
_DRAIN_S: Final = 2.0
"""How long to wait for a process that is left and still holds the pipe."""


class StoredLog:
    """The log ``name`` in ``folder``: written there directly on a disk, uploaded once complete to another store.

    Nothing is written if ``folder`` is None.
    """

    def __init__(self, folder: str | None, name: str) -> None:
        self._file: IO[bytes] | None = None
        self._remote: str | None = None
        self._scratch: Path | None = None
        if folder is None:
            return
        from fsspec.implementations.local import LocalFileSystem

        filesystem, path = file_system_at(folder)
        if isinstance(filesystem, LocalFileSystem):
            Path(path).mkdir(parents=True, exist_ok=True)
            self._file = (Path(path) / name).open("ab", buffering=0)
        else:
            self._scratch = Path(tempfile.mkdtemp(prefix="tradewind-log-"))
            self._remote = f"{folder.rstrip('/')}/{name}"
            self._file = (self._scratch / name).open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append ``data``; an error closes the log and does not stop the step."""
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as problem:
            print(f"Cannot write the log beside the output: {problem}. The step continues without.", file=sys.stderr)
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def upload(self) -> None:
        """Upload the log, unless it was written in its folder."""
        if self._remote is None or self._scratch is None:
            return
        filesystem, path = file_system_at(self._remote)
        filesystem.put_file(str(self._scratch / Path(path).name), path)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._remote = self._scratch = None


@contextmanager
def capturing_output(folder: str, masker: Masker) -> Iterator[None]:
    """Copy the output of this process and its children to a log in ``folder`` for the length of the block.

    The secrets that ``masker`` knows, or learns meanwhile, are hidden in both places.
    """
    log = StoredLog(folder, DRIVER_LOG)
    reader, writer = os.pipe()
    stdout = os.dup(1)
    saved = {descriptor: os.dup(descriptor) for descriptor in _STANDARD}
    for descriptor in _STANDARD:
        os.dup2(writer, descriptor)
    os.close(writer)
    pumping = threading.Thread(target=pump, args=(reader, stdout, log, StreamMasker(masker)), daemon=True)
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
        log.upload()


def pump(reader: int, stdout: int, log: StoredLog, masked: StreamMasker) -> None:
    """Pass on all output until the last process that holds the pipe closes it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        data = os.read(reader, _CHUNK)
        shown_data = masked.feed(data) if data else masked.end()
        text = decoder.decode(shown_data, final=not data).encode()
        written = 0
        while written < len(text):
            written += os.write(stdout, text[written:])
        log.write(text)
        if not data:
            return
