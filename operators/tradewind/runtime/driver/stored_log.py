"""A log file beside an output: written straight there if that is local, else brought there when it is complete."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

from tradewind.storage import file_system_at


class StoredLog:
    """The log ``name`` in ``folder``, which any fsspec store may hold; nothing is kept if ``folder`` is None."""

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
        """Add ``data``; a store that cannot be written to does not stop the work."""
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as problem:
            print(f"The log beside the output is not written any more: {problem}", file=sys.stderr)
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def bring_home(self) -> None:
        """Put the log where it belongs, if it is not there already."""
        if self._remote is None or self._scratch is None:
            return

        filesystem, path = file_system_at(self._remote)
        filesystem.put_file(str(self._scratch / Path(path).name), path)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._remote = self._scratch = None
