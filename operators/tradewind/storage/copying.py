"""Copy single files between any stores: a copy is complete and as its source was listed, or absent.

Within Cloud Storage the store copies, on the condition that the source still has the listed generation and that nothing
exists at the target. Other copies are read, written to a temporary path, compared and renamed. The comparison uses the
size and the checksum that the source's store keeps (MD5, or CRC32C of composite objects), else the MD5 of the bytes
read. The copy's values come from its store, else from reading it again.
"""

from __future__ import annotations

import base64
import hashlib
import os
import posixpath
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from fsspec.implementations.local import LocalFileSystem

from tradewind.storage import Location, file_system_at
from tradewind.storage.client import translated_client_errors
from tradewind.storage.errors import StorageError, StoreUnavailableError
from tradewind.storage.filesystems import remove_file, rename_file
from tradewind.storage.trees import StoredFile, reads_without_request, stored_checksum

_CHUNK: Final = 1 << 20


class CopyRefusedError(StorageError):
    """A file was not copied; there is no copy of it."""


class DamagedCopyError(CopyRefusedError):
    """The bytes differ from what the source's store reported."""


class TargetOccupiedError(CopyRefusedError):
    """Another object exists at the target."""


def copy_file(folder: str, file: StoredFile, target: str, aside: str, check: Callable[[], object]) -> None:
    """Copy ``file``, as listed below ``folder``, to ``target``.

    Args:
        aside: A temporary path in the target's store; it is removed afterwards.
        check: Called before each mebibyte; aborts the copy by raising.

    Raises:
        CopyRefusedError: There is no copy, for this reason.
        StoreError: A store does not answer, or refuses access.
    """
    source = posixpath.join(folder, file.path)
    if {Location.of(source).scheme, Location.of(target).scheme} == {"gs"} and file.tag:
        from tradewind.storage.gcs import rewrite_object

        found = rewrite_object(source, file.tag, target, check)
        if found is None:
            raise CopyRefusedError(f"{source} has changed, or is gone, since it was listed.")
        if not found:  # an object exists: this copy, if its response was lost
            if not _is_copy(target, file):
                raise TargetOccupiedError(f"Another process has written {target} meanwhile.")
            return
        size, checksum = _size_and_checksum(found, file)
        if size != file.size or file.checksum not in (None, checksum):
            _remove(target)
            raise _damaged(source, file, size, checksum)
        return
    try:
        md5 = _copy_aside(source, file, aside, check)
        _check_copy(aside, file, md5)
        _move(aside, target)
    except BaseException:
        _remove(aside)
        raise
    if not reads_without_request(target):  # in a bucket, a rename is another copy
        try:
            _check_copy(target, file, md5)
        except DamagedCopyError:
            _remove(target)
            raise


def _is_copy(target: str, file: StoredFile) -> bool:
    """Whether the object at the target has the size and the checksum of the file."""
    fs, name = file_system_at(target)
    with translated_client_errors(target):
        fs.invalidate_cache()
        try:
            about = fs.info(name)
        except FileNotFoundError:
            return False
    return file.checksum is not None and _size_and_checksum(about, file) == (file.size, file.checksum)


def _size_and_checksum(about: Mapping[str, Any], file: StoredFile) -> tuple[int, str | None]:
    """Return size and checksum of a Cloud Storage object, the checksum in the kind that the file has."""
    is_composite = (file.checksum or "").startswith("crc32c:")  # a copy of it may have an MD5 too
    return int(about["size"]), f"crc32c:{about['crc32c']}" if is_composite else stored_checksum(about)


def _copy_aside(source: str, file: StoredFile, aside: str, check: Callable[[], object]) -> str:
    """Copy the file; return ``md5:`` and the digest of the bytes read."""
    from_fs, from_name = file_system_at(source)
    to_fs, to_name = file_system_at(aside)
    try:
        with translated_client_errors(f"{source} or {aside}"):
            to_fs.makedirs(posixpath.dirname(to_name), exist_ok=True)
            with from_fs.open(from_name, "rb") as reader, to_fs.open(to_name, "wb") as writer:
                size, sums = _pour(reader, writer, (file.checksum or "").startswith("crc32c:"), check)
    except FileNotFoundError as error:
        from_fs.invalidate_cache()
        if from_fs.exists(from_name):  # so the target's store lost what was written
            raise StoreUnavailableError(f"{aside} could not be written: {error}") from error
        raise CopyRefusedError(f"{source} is gone since it was listed: {error}") from error
    checksum = next((each for each in sums if _has_same_kind(file.checksum, each)), None)
    if size != file.size or checksum not in (None, file.checksum):
        raise _damaged(source, file, size, checksum)
    return sums[0]


def _pour(reader: IO[bytes], writer: IO[bytes], with_crc: bool, check: Callable[[], object]) -> tuple[int, list[str]]:
    """Copy all bytes; return their number and their checksums, the MD5 first."""
    md5, crc, size = hashlib.md5(usedforsecurity=False), None, 0
    if with_crc:
        from google_crc32c import Checksum

        crc = Checksum()
    while chunk := reader.read(_CHUNK):
        check()
        writer.write(chunk)
        md5.update(chunk)
        size += len(chunk)
        if crc is not None:
            crc.update(chunk)
    sums = [f"md5:{md5.hexdigest()}"]
    return size, sums if crc is None else [*sums, f"crc32c:{base64.b64encode(crc.digest()).decode()}"]


def _check_copy(aside: str, file: StoredFile, md5: str) -> None:
    fs, name = file_system_at(aside)
    with translated_client_errors(aside):
        fs.invalidate_cache()
        about = fs.info(name)
        checksum = stored_checksum(about)
        if not _has_same_kind(md5, checksum):
            with fs.open(name, "rb") as written:
                checksum = f"md5:{hashlib.file_digest(written, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()}"
    if int(about["size"]) != file.size or checksum != md5:
        raise DamagedCopyError(f"The copy of {file.path} was written with {md5} and is {checksum} in its store.")


def _move(aside: str, target: str) -> None:
    fs, name = file_system_at(aside)
    _, to_name = file_system_at(target)
    with translated_client_errors(target):
        if isinstance(fs, LocalFileSystem):
            os.makedirs(posixpath.dirname(to_name), exist_ok=True)
        rename_file(fs, name, to_name)


def _remove(path: str) -> None:
    fs, name = file_system_at(path)
    with translated_client_errors(path):
        remove_file(fs, name)


def _has_same_kind(checksum: str | None, other: str | None) -> bool:
    return None not in (checksum, other) and str(checksum).partition(":")[0] == str(other).partition(":")[0]


def _damaged(source: str, file: StoredFile, size: int, checksum: str | None) -> DamagedCopyError:
    got = f"{size:,} bytes" + (f" with {checksum}" if checksum else "")
    return DamagedCopyError(
        f"{source} gave {got}, and its store says {file.size:,} bytes with {file.checksum or 'no checksum'}."
    )
