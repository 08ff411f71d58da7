"""Answers that a server gave, kept beside an attempt, so that the next attempt asks for none of them again.

A segment is a file of JSON lines, each with the hash of a request, which of several equal requests it is, and the
answer, compressed. Its name begins with the hash of what else decides an answer, such as the model: segments of another
model are not read. A local segment grows with each answer. In a bucket, where no file can grow, a new one follows every
two seconds. The last line of a killed attempt may be torn: that request is sent again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tradewind.datasets.files import basename, is_remote, join
from tradewind.storage import file_system_at
from tradewind.storage.bounded_read import LARGE
from tradewind.storage.files import list_names, read_contents, write_text
from tradewind.text import single_line

FLUSH_S: Final = 2.0
_SEGMENT: Final = re.compile(r"(?P<scope>[0-9a-f]{16})-[0-9a-f]{12}(-[0-9]{6})?\.jsonl")
_MAX_SEGMENT_CHARS: Final = 16 << 20
_MAX_ANSWER_BYTES: Final = 256 << 20
_READ_AT_ONCE: Final = 16
_KEY: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RequestKey:
    """Which request it is: a hash of its path and body, and how many equal ones were before it."""

    digest: str
    number: int


@dataclass(frozen=True)
class _Place:
    """Where a line is."""

    file: str
    offset: int
    size: int


@dataclass
class Answers:
    """The answers below a folder, for one thread at a time.

    Attributes:
        folder: Local folder or URL.
        scope: What else decides an answer: the model and its weights, the engine and its options.
        log: Prints a line for the user.
    """

    folder: str
    scope: Mapping[str, Any]
    log: Callable[[str], None] = print
    _places: dict[RequestKey, _Place] = field(default_factory=dict, init=False)
    _seen: Counter[str] = field(default_factory=Counter, init=False)
    _local: str = field(default="", init=False)
    _file: _SegmentFile | None = field(default=None, init=False)
    _uploads: _Uploads | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(_canonical(self.scope).encode()).hexdigest()[:16]
        self._head = f"{digest}-{uuid.uuid4().hex[:12]}"
        is_local = not is_remote(self.folder)
        self._local = str(file_system_at(self.folder)[1]) if is_local else tempfile.mkdtemp(prefix="tradewind-answers-")
        torn = 0
        for file in self._segments(digest):
            torn += self._index(file)
        if self._places:
            self.log(f"{len(self._places):,} requests were answered in an earlier attempt and are not sent again.")
        if torn:
            self.log(f"{torn:,} stored answers cannot be read: their requests are sent again.")

    def __len__(self) -> int:
        return len(self._places)

    def key(self, path: str, body: Any) -> RequestKey:
        """Return the key of the next request with this body; each call counts one."""
        digest = hashlib.sha256(f"{path}\n{_canonical(body)}".encode("utf-8", "surrogatepass")).hexdigest()
        number = self._seen[digest]
        self._seen[digest] += 1
        return RequestKey(digest, number)

    def rewind(self) -> None:
        """Count equal requests from the first again, since the client starts anew."""
        self._seen.clear()

    def find(self, key: RequestKey) -> bytes | None:
        """Return the body of the answer; None if the request is to be sent."""
        place = self._places.get(key)
        if place is None:
            return None
        with open(place.file, "rb") as file:
            file.seek(place.offset)
            parsed = _parse(file.read(place.size))
        return parsed[1] if parsed is not None and parsed[0] == key else None

    def add(self, key: RequestKey, body: bytes) -> None:
        """Keep an answer; on a local store it is written when the call returns."""
        if self._file is None:
            self._file = _SegmentFile(os.path.join(self._local, f"{self._head}.jsonl"))
            if is_remote(self.folder):
                self._uploads = _Uploads(join(self.folder, self._head), self.log)
        packed = base64.b64encode(zlib.compress(body, 1)).decode("ascii")
        line = json.dumps({"key": key.digest, "n": key.number, "z": packed}) + "\n"
        self._places[key] = self._file.add(line.encode())
        if self._uploads is not None:
            self._uploads.add(line)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._file is not None:
            self._file.close()
        if self._uploads is not None:
            self._uploads.close()
        if is_remote(self.folder):
            shutil.rmtree(self._local, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder: the evaluation has ended, and nothing is to be asked again."""
        self.close()
        fs, root = file_system_at(self.folder)
        fs.invalidate_cache()
        if fs.exists(root):
            fs.rm(root, recursive=True)

    def _segments(self, scope: str) -> Iterator[str]:
        """Yield local files with the segments of this scope, in the order in which they were written."""
        names = sorted(name for name in list_names(self.folder) if _is_segment(name, scope))
        if not is_remote(self.folder):
            yield from (os.path.join(self._local, name) for name in names)
            return
        for first in range(0, len(names), _READ_AT_ONCE):
            some = [join(self.folder, name) for name in names[first : first + _READ_AT_ONCE]]
            for path, content in read_contents(some, LARGE).items():
                copy = Path(self._local, basename(path))
                copy.write_text(content.text)
                yield str(copy)

    def _index(self, file: str) -> int:
        """Note where the answers of a segment are; return how many cannot be read."""
        torn = offset = 0
        with open(file, "rb") as lines:
            while line := lines.readline(_MAX_ANSWER_BYTES):
                parsed = _parse(line) if line.endswith(b"\n") else None
                if parsed is None:
                    torn += 1
                else:
                    self._places[parsed[0]] = _Place(file, offset, len(line))
                offset += len(line)
        return torn


def _is_segment(name: str, scope: str) -> bool:
    match = _SEGMENT.fullmatch(name)
    return match is not None and match["scope"] == scope


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _parse(line: bytes) -> tuple[RequestKey, bytes] | None:
    """Return the request and the answer of a line; None if it is torn, or written by something else."""
    try:
        given = json.loads(line)
        key, number, packed = given["key"], given["n"], given["z"]
        if not isinstance(key, str) or not _KEY.fullmatch(key) or type(number) is not int:
            return None
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(base64.b64decode(packed, validate=True), _MAX_ANSWER_BYTES)
        return (RequestKey(key, number), body) if unpacker.eof else None
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error):
        return None


class _SegmentFile:
    """A local segment: a line is there when its call returns, also if the process is killed then."""

    def __init__(self, file: str) -> None:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        self._name = file
        self._file: IO[bytes] = open(file, "ab", buffering=0)  # noqa: SIM115
        self._size = 0

    def add(self, line: bytes) -> _Place:
        """Write a line, or nothing of it; return where it is."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:  # a full disk
            self._file.truncate(self._size)
            raise
        place = _Place(self._name, self._size, len(line))
        self._size += len(line)
        return place

    def close(self) -> None:
        self._file.close()


class _Uploads:
    """A segment in a bucket every two seconds, by a thread; a killed process loses the lines in between."""

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        self._path = path
        self._log = log
        self._lines: list[str] = []
        self._segments = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Take a line along."""
        with self._lock:
            self._lines.append(line)

    def close(self) -> None:
        """Write the rest."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        while lines:
            chars, count = 0, 0
            while count < len(lines) and (not count or chars + len(lines[count]) <= _MAX_SEGMENT_CHARS):
                chars += len(lines[count])
                count += 1
            try:
                write_text(f"{self._path}-{self._segments:06d}.jsonl", "".join(lines[:count]))
            except Exception as error:  # any error of a store: the answers are kept for the next time
                self._log(f"Answers cannot be saved now; they would be asked for again: {single_line(error)}")
                with self._lock:
                    self._lines = lines + self._lines
                return
            self._segments += 1
            lines = lines[count:]
