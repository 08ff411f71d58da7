"""Copies of files in a folder of any store: each is whole and right, or not there.

What was begun is written down before the first file (``LIST_FILE``), so that an attempt after a kill knows which files
are copies of the same ones: those it leaves, and copies the rest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Final

from tradewind.datasets.downloading.http_reader import CHUNK_BYTES
from tradewind.datasets.downloading.source import DamagedDownloadError, DownloadError, SourceFile
from tradewind.datasets.files import UNFINISHED, atomic_writer, join, read_text, state_of, write_text
from tradewind.storage import file_system_at, open_file
from tradewind.storage.gate import remove_file

LIST_FILE: Final = ".download"
MOST_AT_ONCE: Final = 16
MOST_DAMAGED: Final = 3
"""How often a file may come wrong."""

Reader = Callable[[SourceFile], Iterator[bytes]]


def read_store(file: SourceFile) -> Iterator[bytes]:
    """The bytes of a file in a store, such as ``gs://``, which reads each part of it by itself.

    Raises:
        DownloadError: Its end may be that of another file than its beginning.
    """
    before = state_of(file.url)
    with open_file(file.url) as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk
    if not file.is_checked and state_of(file.url) != before:
        raise DownloadError(
            f"{file.url} changed while it was read. Give its sha256, or an address whose file does not change."
        )


class Copies:
    """Copies files into a folder.

    Args:
        read: Gives the bytes of a file.
        count: Told of each file that is there, and of bytes: ``(files, bytes)`` more.
    """

    def __init__(self, folder: str, read: Reader, count: Callable[[int, int], object]) -> None:
        self._folder = folder
        self._read = read
        self._count = count
        self._has_failed = threading.Event()

    def make(self, files: Sequence[SourceFile]) -> None:
        """Copy the files, several at once; those that are there already are left.

        Raises:
            DownloadError: One could not be copied; those that were are kept.
        """
        there = _begin(files, self._folder)
        for size in there.values():
            self._count(1, size)
        with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="download") as threads:
            copies = [threads.submit(self._copy, file) for file in files if file.name not in there]
            try:
                for copy in as_completed(copies):
                    copy.result()
            except BaseException:  # also Ctrl-C, after which nobody waits for what has not begun
                self._has_failed.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _copy(self, file: SourceFile) -> None:
        for left in range(MOST_DAMAGED - 1, -1, -1):
            try:
                return self._copy_once(file)
            except DamagedDownloadError as error:
                if not left:
                    raise
                print(f"{error} Reading it again.", flush=True)

    def _copy_once(self, file: SourceFile) -> None:
        copied = 0
        try:
            with atomic_writer(join(self._folder, file.name)) as opened:
                for chunk in file.checked(self._read(file)):
                    if self._has_failed.is_set():
                        raise DownloadError(f"{file.url} is not read on, since the download has ended.")
                    opened.write(chunk)
                    copied += len(chunk)
                    self._count(0, len(chunk))
        except BaseException:
            self._count(0, -copied)
            raise
        self._count(1, 0)


def _begin(files: Sequence[SourceFile], folder: str) -> Mapping[str, int]:
    """Name and size of the copies that are there; what was begun with another list is removed."""
    wanted = json.dumps([asdict(file) for file in files])
    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    root = root.rstrip("/")
    found = {name[len(root) + 1 :]: entry["size"] for name, entry in fs.find(root, detail=True).items()}
    begun = read_text(join(folder, LIST_FILE)) if LIST_FILE in found else None
    others = _names(begun) if begun is not None and begun != wanted else set()
    for name in [name for name in found if UNFINISHED.search(name) or name in others]:
        remove_file(fs, f"{root}/{name}")
        del found[name]
    if begun != wanted:
        write_text(join(folder, LIST_FILE), wanted)
        return {}
    return {
        file.name: found[file.name]
        for file in files
        if file.name in found and file.size_bytes in (None, found[file.name])
    }


def _names(listed: str) -> set[str]:
    try:
        return {str(each["name"]) for each in json.loads(listed)}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DownloadError(f"{LIST_FILE} in the output is not what a download writes ({error}). Remove it.") from error
