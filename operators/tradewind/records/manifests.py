"""The manifest of an output: the files that an attempt left, in ``.attempts/N/manifest.json``, written before commit.

Each attempt has its own, so whoever comes too late to commit leaves that of the winner alone. Older outputs have theirs
in ``.manifest.json``.

Its digest is what the lease commits, so it covers what was made and nothing else: the same files give the same digest
whichever attempt made them and whenever. Left out are the records of the output itself and every folder below it that
is the output of another step, which has a manifest of its own. What a step returned, ``.artifact.json``, belongs to the
output.

The text is JSON with one file a line, by path::

    {"attempt": 2, "files": [
    {"path": "metrics.json", "size": 118, "checksum": "md5:0cc175b9c0f1b6a831c399e269772661"},
    {"path": "shards/00000.parquet", "size": 73400320, "checksum": "md5:92eb5ffee6ae2fec3ad71c777531578f"}
    ]}

The digest is the SHA-256 of the lines of the files, without the first line, the last, and the newlines beside them.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tradewind.records.attempts import ATTEMPTS_FOLDER, attempt_folder
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import LEASE_FILE
from tradewind.records.parsing import (
    COUNT,
    RAW_TEXT,
    TEXT,
    FieldType,
    RecordFormatError,
    is_relative,
    parse_fields,
    parse_object,
)
from tradewind.records.record import STATUS_FILE
from tradewind.steps.paths import self_and_parents
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_contents, write_text
from tradewind.storage.trees import StoredFile, list_files, read_files, reads_without_request

MANIFEST_FILE: Final = "manifest.json"
OLDER_MANIFEST_FILE: Final = ".manifest.json"
RESULT_FILE: Final = ".artifact.json"
RECORDS_OF_AN_OUTPUT: Final = frozenset({STATUS_FILE, LEASE_FILE, INFO_FILE})
"""A folder that holds one of these is the output of a step."""
MAX_MANIFEST_BYTES: Final = 256 << 20
"""Of a manifest's file: some two million files."""
_KINDS: Final = {"attempt": COUNT, "files": FieldType(lambda value: isinstance(value, list), "a list")}
_KINDS_OF_A_FILE: Final = {"path": RAW_TEXT, "size": COUNT, "checksum": TEXT.or_null()}
_HALF_WRITTEN: Final = re.compile(r"\..+\.[0-9a-f]{32}")
"""How the store names a local file until it is whole."""


class BadManifestError(BadRecordError):
    """There is a manifest, but it is not one that we wrote."""


@dataclass(frozen=True)
class Manifest:
    """The files of an output.

    Attributes:
        attempt: Who made them; outside of the digest.
        files: By path.
    """

    attempt: int
    files: tuple[StoredFile, ...]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of what the text says of the files."""
        return hashlib.sha256(self._lines.encode()).hexdigest()

    @property
    def size(self) -> int:
        """All bytes of the output."""
        return sum(file.size for file in self.files)

    @property
    def sentinel_file(self) -> str | None:
        """A file whose absence says that the output is gone: the largest that is not hidden, else the step's result."""
        shown = [file for file in self.files if is_relative(file.path) and not _is_hidden(file.path)]
        if shown:
            return min(shown, key=lambda file: (-file.size, file.path)).path
        return next((file.path for file in self.files if file.path == RESULT_FILE), None)

    def to_json(self) -> str:
        """The file's text."""
        return f'{{"attempt": {self.attempt}, "files": [\n{self._lines}\n]}}\n'

    @staticmethod
    def from_json(text: str) -> Manifest:
        """The manifest in a file's text.

        Raises:
            RecordFormatError: It is none.
        """
        fields = parse_fields(parse_object(text), _KINDS, _KINDS)
        return Manifest(fields["attempt"], tuple(map(_file, fields["files"])))

    @cached_property
    def _lines(self) -> str:
        told = ({"path": file.path, "size": file.size, "checksum": file.checksum} for file in self.files)
        return ",\n".join(map(json.dumps, told))


@dataclass(frozen=True)
class Problem:
    """A file that is not as its manifest says, and what is wrong with it, in words."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def output_files(output_path: str) -> list[StoredFile]:
    """The files of the output at ``output_path``: all below it but its records and the outputs of other steps."""
    files = list_files(output_path)
    others = {posixpath.dirname(file.path) for file in files if posixpath.basename(file.path) in RECORDS_OF_AN_OUTPUT}
    return [
        file
        for file in files
        if not is_record(file.path) and others.isdisjoint(self_and_parents(posixpath.dirname(file.path)))
    ]


def is_record(path: str) -> bool:
    """Whether ``path``, relative to an output, is a record of it, also one that is being written."""
    top, _, rest = path.partition("/")
    if top.startswith(".executor_") or top in (OLDER_MANIFEST_FILE, ATTEMPTS_FOLDER):
        return True
    return not rest and _HALF_WRITTEN.fullmatch(top) is not None


def make_manifest(output_path: str, attempt: int) -> Manifest:
    """The manifest of what lies at ``output_path`` now.

    Local files are read for their checksums; object stores are believed, so that nothing is read there.
    """
    files = output_files(output_path)
    return Manifest(attempt, tuple(read_files(output_path, files) if reads_without_request(output_path) else files))


def write_manifest(output_path: str, manifest: Manifest) -> None:
    """Put ``manifest`` beside the output, where its attempt has it."""
    write_text(manifest_path(output_path, manifest.attempt), manifest.to_json())


def read_manifest(output_path: str, attempt: int) -> Manifest | None:
    """The manifest of ``attempt``, which the lease names, or None when there is none.

    Raises:
        BadManifestError: What is there is no manifest.
    """
    for path in (manifest_path(output_path, attempt), posixpath.join(output_path, OLDER_MANIFEST_FILE)):
        found = read_contents([path], MAX_MANIFEST_BYTES).get(path)
        if found is None:
            continue
        if found.flaw is not None:
            raise BadManifestError(path, found.flaw)
        try:
            return Manifest.from_json(found.text)
        except RecordFormatError as flaw:
            raise BadManifestError(path, str(flaw)) from None
    return None


def manifest_path(output_path: str, attempt: int) -> str:
    """Where the manifest of ``attempt`` lies."""
    return posixpath.join(attempt_folder(output_path, attempt), MANIFEST_FILE)


def verify_output(output_path: str, manifest: Manifest, digest: str | None = None) -> list[Problem]:
    """What is not as ``manifest`` says: files that are missing, changed or added, by path.

    Args:
        digest: The one in the lease; a manifest that does not fit it is the first problem.
    """
    expected = {file.path: file for file in manifest.files}
    found = {file.path: file for file in _with_checksums(output_path, expected)}
    problems = []
    if digest not in (None, manifest.digest):
        problems.append(Problem(MANIFEST_FILE, "not the one that was committed"))
    for path in sorted(expected.keys() | found.keys()):
        what = _difference(expected.get(path), found.get(path))
        if what is not None:
            problems.append(Problem(path, what))
    return problems


def _with_checksums(output_path: str, expected: dict[str, StoredFile]) -> Iterator[StoredFile]:
    """The files as they are now, each read whose size is right but whose MD5 the store does not keep."""
    to_read: list[StoredFile] = []
    for file in output_files(output_path):
        other = expected.get(file.path)
        may_be_same = other is not None and other.size == file.size
        if may_be_same and _kind(other) == "md5" and _kind(file) != "md5":
            to_read.append(file)
        else:
            yield file
    yield from read_files(output_path, to_read)


def _difference(expected: StoredFile | None, found: StoredFile | None) -> str | None:
    if expected is None:
        return "not in the manifest"
    if found is None:
        return "missing"
    if found.size != expected.size:
        return f"{found.size} bytes instead of {expected.size}"
    if expected.checksum in (None, found.checksum):
        return None
    if _kind(expected) == _kind(found):
        return "checksum differs"
    return f"cannot be compared: the manifest has its {_kind(expected)}, and the store keeps {_kind(found) or 'none'}"


def _kind(file: StoredFile | None) -> str:
    """The kind of checksum that is known of ``file``: ``md5``, ``crc32c`` or nothing."""
    return (file.checksum or "").partition(":")[0] if file else ""


def _file(fields: object) -> StoredFile:
    known = parse_fields(fields, _KINDS_OF_A_FILE, _KINDS_OF_A_FILE, whose="a file's")
    return StoredFile(known["path"], known["size"], known["checksum"])


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))
