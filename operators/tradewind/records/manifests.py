"""The manifest of an output: the files that an attempt made, in ``.attempts/N/manifest.json``, written before commit.

Each attempt has its own, so an attempt that is too late to commit does not change the winner's. Older outputs have
theirs in ``.manifest.json``.

The lease commits its digest, so it covers only the files: the same files give the same digest, whichever attempt made
them and whenever. It omits the records of the output, and each folder below that is the output of another step, which
has its own manifest. The step's return value, ``.artifact.json``, belongs to the output.

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
"""Size of a manifest with about two million files."""
_KINDS: Final = {"attempt": COUNT, "files": FieldType(lambda value: isinstance(value, list), "a list")}
_KINDS_OF_A_FILE: Final = {"path": RAW_TEXT, "size": COUNT, "checksum": TEXT.or_null()}
_HALF_WRITTEN: Final = re.compile(r"\..+\.[0-9a-f]{32}")
"""Name that the store gives a local file until it is complete."""


class BadManifestError(BadRecordError):
    """The file of a manifest cannot be read as one."""


@dataclass(frozen=True)
class Manifest:
    """The files of an output.

    Attributes:
        attempt: The attempt that made them; not part of the digest.
        files: By path.
    """

    attempt: int
    files: tuple[StoredFile, ...]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the lines of the files."""
        return hashlib.sha256(self._lines.encode()).hexdigest()

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def sentinel_file(self) -> str | None:
        """A file whose absence means that the output is gone: the largest not hidden, else the step's result."""
        visible = [
            file
            for file in self.files
            if is_relative(file.path) and not any(part.startswith(".") for part in file.path.split("/"))
        ]
        if visible:
            return min(visible, key=lambda file: (-file.size, file.path)).path
        return next((file.path for file in self.files if file.path == RESULT_FILE), None)

    def to_json(self) -> str:
        """The file's text."""
        return f'{{"attempt": {self.attempt}, "files": [\n{self._lines}\n]}}\n'

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Return the manifest in a file's text.

        Raises:
            RecordFormatError: The text is not a manifest.
        """
        fields = parse_fields(parse_object(text), _KINDS, _KINDS)
        return Manifest(fields["attempt"], tuple(map(_file, fields["files"])))

    @cached_property
    def _lines(self) -> str:
        entries = ({"path": file.path, "size": file.size, "checksum": file.checksum} for file in self.files)
        return ",\n".join(map(json.dumps, entries))


@dataclass(frozen=True)
class Problem:
    """A file that differs from its manifest, and how, in words."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def output_files(output_path: str) -> list[StoredFile]:
    """List the files of an output: all below its path except its records and the outputs of other steps."""
    files = list_files(output_path)
    others = {posixpath.dirname(file.path) for file in files if posixpath.basename(file.path) in RECORDS_OF_AN_OUTPUT}
    return [
        file
        for file in files
        if not is_record(file.path) and others.isdisjoint(self_and_parents(posixpath.dirname(file.path)))
    ]


def is_record(path: str) -> bool:
    """Whether ``path``, relative to an output, is a record of it, even an incomplete one."""
    top, _, rest = path.partition("/")
    if top.startswith(".executor_") or top in (OLDER_MANIFEST_FILE, ATTEMPTS_FOLDER):
        return True
    return not rest and _HALF_WRITTEN.fullmatch(top) is not None


def make_manifest(output_path: str, attempt: int) -> Manifest:
    """Return the manifest of the files at ``output_path`` now.

    Local files are read for their checksums. The checksums of object stores are trusted, so no file is read there.
    """
    files = output_files(output_path)
    return Manifest(attempt, tuple(read_files(output_path, files) if reads_without_request(output_path) else files))


def write_manifest(output_path: str, manifest: Manifest) -> None:
    """Write ``manifest`` into the folder of its attempt."""
    write_text(manifest_path(output_path, manifest.attempt), manifest.to_json())


def read_manifest(output_path: str, attempt: int) -> Manifest | None:
    """Return the manifest of ``attempt``, which the lease names, or None if there is none.

    Raises:
        BadManifestError: The file cannot be read as a manifest.
    """
    for path in (manifest_path(output_path, attempt), posixpath.join(output_path, OLDER_MANIFEST_FILE)):
        content = read_contents([path], MAX_MANIFEST_BYTES).get(path)
        if content is None:
            continue
        if content.flaw is not None:
            raise BadManifestError(path, content.flaw)
        try:
            return Manifest.from_json(content.text)
        except RecordFormatError as flaw:
            raise BadManifestError(path, str(flaw)) from None
    return None


def manifest_path(output_path: str, attempt: int) -> str:
    """Return the path of the manifest of ``attempt``."""
    return posixpath.join(attempt_folder(output_path, attempt), MANIFEST_FILE)


def verify_output(output_path: str, manifest: Manifest, digest: str | None = None) -> list[Problem]:
    """List the files that differ from ``manifest``, because they are missing, changed or added, by path.

    Args:
        digest: The digest in the lease; a manifest with another one is the first problem.
    """
    expected = {file.path: file for file in manifest.files}
    present = {file.path: file for file in _with_checksums(output_path, expected)}
    problems = []
    if digest not in (None, manifest.digest):
        problems.append(Problem(MANIFEST_FILE, "not the one that was committed"))
    for path in sorted(expected.keys() | present.keys()):
        what = _difference(expected.get(path), present.get(path))
        if what is not None:
            problems.append(Problem(path, what))
    return problems


def _with_checksums(output_path: str, expected: dict[str, StoredFile]) -> Iterator[StoredFile]:
    """Yield the present files; read those of the expected size whose MD5 the store does not keep."""
    to_read: list[StoredFile] = []
    for file in output_files(output_path):
        other = expected.get(file.path)
        may_be_same = other is not None and other.size == file.size
        if may_be_same and _kind(other) == "md5" and _kind(file) != "md5":
            to_read.append(file)
        else:
            yield file
    yield from read_files(output_path, to_read)


def _difference(expected: StoredFile | None, present: StoredFile | None) -> str | None:
    if expected is None:
        return "not in the manifest"
    if present is None:
        return "missing"
    if present.size != expected.size:
        return f"{present.size} bytes instead of {expected.size}"
    if expected.checksum in (None, present.checksum):
        return None
    if _kind(expected) == _kind(present):
        return "checksum differs"
    return f"cannot be compared: the manifest has its {_kind(expected)}, and the store keeps {_kind(present) or 'none'}"


def _kind(file: StoredFile | None) -> str:
    """Return the kind of checksum of ``file``: ``md5``, ``crc32c`` or nothing."""
    return (file.checksum or "").partition(":")[0] if file else ""


def _file(fields: object) -> StoredFile:
    known = parse_fields(fields, _KINDS_OF_A_FILE, _KINDS_OF_A_FILE, whose="a file's")
    return StoredFile(known["path"], known["size"], known["checksum"])
