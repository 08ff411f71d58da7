"""Choose the checkpoint from which a training continues: the newest complete and undamaged one.

Permanent and temporary checkpoints may have different paths. Before any process looks for the newest, process 0 removes
incomplete ones, and damaged ones if there is an undamaged one, else the training fails. So all processes find the same
one, and training can write those steps again. Levanter would read a damaged checkpoint, and write into an incomplete
one. With another number of devices that fails, since the chunks have another shape. Of a folder that no training names
so, such as a user's copy, only the metadata is removed.

A checkpoint is complete when its folder has ``metadata.json``, which Levanter writes last. Right before, Tradewind adds
``files.json``: path, size and checksum of every file. On Cloud Storage the checksum is the store's own (CRC32C, part of
the listing), so no object is read; a local file's checksum is computed. A checkpoint without this list, such as one of
Levanter's own runs, counts as undamaged if it has data at all.

A training records which checkpoint of another training it began with, since a folder of checkpoints may get a newer one
at any time. Otherwise two processes or two starts could take different ones, take the first step for another, or
compare preferences with another model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from glob import escape
from typing import Any, Final

from tradewind.datasets.files import atomic_writer, basename, exists, is_remote, join, read_json, write_json
from tradewind.records.parsing import (
    FieldType,
    RecordFormatError,
    as_object,
    is_count,
    is_relative,
    is_text,
    parse,
    parse_fields,
)
from tradewind.storage import file_system_at, open_file
from tradewind.storage.bounded_read import LARGE, SMALL, Content, read_local
from tradewind.text import single_line, truncated_repr

FILE_LIST = "files.json"
METADATA = "metadata.json"
_OWN = (FILE_LIST, METADATA)
_MANIFEST = "manifest.ocdbt"
_NO_DATA: Final = "it has no data"
_MAX_LISTED: Final = 5
"""Damaged checkpoints in an error."""
_MAX_PATH: Final = 1000
"""Characters of a path in messages."""
_FOLDER: Final = re.compile(r"step-(0|[1-9][0-9]{0,15})")
_KINDS: Final = {
    "given": FieldType(is_text, "a path"),
    "checkpoint": FieldType(is_text, "a path"),
    "first_step": FieldType(is_count, "a step"),
}
"""Fields of an ``InitialCheckpointFile``."""


def write_file_list(checkpoint: str) -> None:
    """Record the files of a checkpoint that has all of them."""
    write_json(join(checkpoint, FILE_LIST), _files(checkpoint))


def damage(checkpoint: str) -> str | None:
    """Describe the damage of a complete checkpoint's files, as part of a sentence; None if there is none.

    Raises:
        OSError: The store does not answer, so the damage is unknown.
    """
    path = join(checkpoint, FILE_LIST)
    content = _contents([path], LARGE).get(path)
    if content is None:
        data = any(exists(join(checkpoint, name)) for name in (_MANIFEST, "model"))
        return None if data else _NO_DATA
    try:
        listed = json.loads(content.text)
    except (ValueError, RecursionError):
        return f"{FILE_LIST} is no JSON"
    if not isinstance(listed, dict) or not all(isinstance(each, dict) and "size" in each for each in listed.values()):
        return f"{FILE_LIST} is no list of files with their sizes"
    if not any(name == _MANIFEST or name.startswith("model/") for name in listed):
        return _NO_DATA
    files = _files(checkpoint)
    return next((wrong for name in sorted(listed) if (wrong := _difference(name, listed[name], files.get(name)))), None)


def make_incomplete(checkpoint: str) -> None:
    """Remove the metadata, so that a kill during the removal of the rest leaves no damaged checkpoint."""
    if _is_link(checkpoint):
        return  # its files are another training's
    fs, path = file_system_at(join(checkpoint, METADATA))
    with suppress(FileNotFoundError):
        fs.rm_file(path)


def remove_checkpoint(checkpoint: str) -> None:
    """Remove the folder, also while Levanter's own thread removes it; of a link only the link."""
    make_incomplete(checkpoint)
    if _is_link(checkpoint):
        with suppress(FileNotFoundError):
            os.unlink(checkpoint)
        return
    fs, root = file_system_at(checkpoint)
    with suppress(FileNotFoundError):
        fs.rm(root, recursive=True)


def _is_link(checkpoint: str) -> bool:
    return not is_remote(checkpoint) and os.path.islink(checkpoint.rstrip("/"))


def copy_files(checkpoint: str, target: str) -> None:
    """Copy the checkpoint without its metadata to another folder, of any store."""
    for name in [*_files(checkpoint), FILE_LIST]:
        if exists(join(checkpoint, name)):
            with open_file(join(checkpoint, name)) as source, atomic_writer(join(target, name)) as copy:
                shutil.copyfileobj(source, copy, 1 << 22)


def _files(checkpoint: str) -> dict[str, dict[str, Any]]:
    """Map paths below the checkpoint to size and checksum, from a fresh listing."""
    fs, root = file_system_at(checkpoint)
    fs.invalidate_cache()
    entries = fs.find(root, detail=True)
    start, remote = len(root.rstrip("/")) + 1, is_remote(checkpoint)
    return {
        path[start:]: _describe(fs, path, info, remote)
        for path, info in entries.items()
        if path[start:] not in _OWN and (remote or os.path.isfile(path) or os.path.isdir(path))  # a pipe would block
    }


def _describe(fs: Any, path: str, info: Mapping[str, Any], remote: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"size": info["size"]}
    if "crc32c" in info:
        described["crc32c"] = info["crc32c"]
    elif not remote:
        described["crc32"] = _crc32(fs, path)
    return described


def _crc32(fs: Any, path: str) -> int:
    checksum = 0
    with fs.open(path, "rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _difference(name: str, listed: Mapping[str, Any], found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return f"{single_line(name)} is missing"
    if found["size"] != listed["size"]:
        return f"{single_line(name)} has {found['size']} bytes instead of {truncated_repr(listed['size'])}"
    if any(listed[kind] != found[kind] for kind in listed.keys() & found.keys()):
        return f"{single_line(name)} has other content than was written"
    return None


def _contents(paths: Sequence[str], max_bytes: int) -> dict[str, Content]:
    """Read those files that exist, with a bound; a link is followed, as Levanter does."""
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    remote = [path for path in paths if is_remote(path)]
    found = read_contents(remote, max_bytes) if remote else {}
    for path in paths:
        name = None if is_remote(path) else file_system_at(path)[1]
        if name and os.path.exists(name):  # not for a link that leads nowhere, or to itself
            with suppress(FileNotFoundError, NotADirectoryError):  # Levanter removes it at the same time
                found[path] = read_local(name, max_bytes)
    return found


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint; ``step`` is the index of the last step in it."""

    path: str
    step: int
    is_temporary: bool


@dataclass(frozen=True)
class MislabeledCheckpoint:
    """A checkpoint whose metadata has another step than its folder; ``wrong`` says so as part of a sentence."""

    path: str
    wrong: str

    def may_be_after(self, step: int) -> bool:
        """Whether it may be newer than a checkpoint of that step, by its folder's name."""
        named = _FOLDER.fullmatch(basename(self.path))
        return named is None or int(named[1]) > step


def complete_checkpoints(roots: Sequence[str]) -> list[FoundCheckpoint]:
    """List the complete checkpoints that are, or are under, these folders; the newest last."""
    return [
        FoundCheckpoint(path, metadata["step"], bool(metadata.get("is_temporary")))
        for path, metadata in _discovered(roots)
        if _wrong_step(path, metadata["step"]) is None
    ]


def mislabeled_checkpoints(roots: Sequence[str]) -> list[MislabeledCheckpoint]:
    """List the checkpoints that Levanter would take for complete, but of a wrong step."""
    wrong = {path: _wrong_step(path, metadata["step"]) for path, metadata in _discovered(roots)}
    return [MislabeledCheckpoint(path, why) for path, why in wrong.items() if why is not None]


def _discovered(roots: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return path and metadata of what ``levanter.checkpoint`` takes for complete, in its order.

    Levanter would read metadata of any size.
    """
    found = _metadata_of([*roots, *_folders(roots)])
    valid = [(path, metadata) for path, metadata in found.items() if metadata is not None]
    return sorted(valid, key=lambda each: (int(each[1]["step"]), _time_of(each[1]), each[0]))


def _metadata_of(folders: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Map folders with metadata to it; None if Levanter cannot read it, and ignores the folder."""
    files = {join(folder, METADATA): folder for folder in folders}
    return {files[file]: _parse_metadata(content) for file, content in _contents([*files], SMALL).items()}


def _parse_metadata(content: Content) -> dict[str, Any] | None:
    try:
        metadata = as_object(json.loads(content.text))
        int(metadata["step"])
        _time_of(metadata)
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError):
        return None
    return metadata


def _time_of(metadata: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(metadata["timestamp"]).replace(tzinfo=None)


def _wrong_step(path: str, step: Any) -> str | None:
    """Describe a wrong step in metadata. Levanter accepts false, fractions and texts as steps."""
    named = _FOLDER.fullmatch(basename(path))
    if is_count(step) and (named is None or int(named[1]) == step):
        return None
    return f"is of step {truncated_repr(step)} by its {METADATA}"


def newest_checkpoint(roots: Sequence[str]) -> FoundCheckpoint | None:
    """Return the checkpoint to continue from; call ``clean_up_checkpoints`` before."""
    found = complete_checkpoints(roots)
    return found[-1] if found else None


def clean_up_checkpoints(roots: Sequence[str]) -> None:
    """Let process 0 remove unusable checkpoints, with a log line each; all processes wait until it has.

    Checkpoints older than the newest undamaged one are not checked.

    Raises:
        ValueError: As ``damaged_checkpoints``; nothing is removed.
    """
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    if jax.process_index() == 0:
        damaged = damaged_checkpoints(roots)
        permanent, folders = set(_checkpoint_folders(roots[:1])), _checkpoint_folders(roots)
        written = _metadata_of(folders)
        for folder in folders:
            if written.get(folder) is None and _has_all_files(folder):
                _write_metadata(folder, is_temporary=folder not in permanent)
            elif folder not in written:
                print(f"removed the incomplete checkpoint {single_line(folder, _MAX_PATH)}", flush=True)
                remove_checkpoint(folder)
        for checkpoint, wrong in damaged.items():
            is_own = checkpoint in folders or _is_link(checkpoint)
            what = "" if is_own else f"the {METADATA} of "
            print(f"removed {what}the damaged checkpoint {single_line(checkpoint, _MAX_PATH)}: {wrong}", flush=True)
            (remove_checkpoint if is_own else make_incomplete)(checkpoint)
    sync_global_devices("tradewind: checkpoints settled")


def damaged_checkpoints(roots: Sequence[str]) -> dict[str, str]:
    """Return path -> damage of the checkpoints to remove: of a wrong step, or newer than the newest undamaged one.

    Raises:
        ValueError: All are damaged: without them, the training would start again at step 0 and not say so.
    """
    folders = _checkpoint_folders(roots)
    written = _metadata_of(folders)
    whole = [folder for folder in folders if written.get(folder) is None and _has_all_files(folder)]
    invalid = [folder for folder, metadata in written.items() if metadata is None and folder not in whole]
    damaged = dict.fromkeys(invalid, f"its {METADATA} is invalid")
    damaged |= {each.path: f"it {each.wrong}" for each in mislabeled_checkpoints(roots)}
    for found in reversed(complete_checkpoints(roots)):
        wrong = damage(found.path)
        if wrong is None:
            return damaged
        damaged[found.path] = wrong
    if whole:
        return damaged
    lost = {path: wrong for path, wrong in damaged.items() if path not in roots}  # stray metadata beside them is none
    lost |= _lost([folder for folder in folders if folder not in written])
    if lost:
        listed = [f"{single_line(path, _MAX_PATH)}: {wrong}" for path, wrong in lost.items()]
        raise ValueError(
            "Every checkpoint of this training is damaged, so it would start again at step 0 "
            f"({'; '.join(listed[:_MAX_LISTED])}). Nothing was removed: restore one of them, or remove them to start "
            "again."
        )
    return damaged


def _lost(folders: Sequence[str]) -> dict[str, str]:
    """Return path -> damage of checkpoints that were once complete, of all without metadata or all their files.

    A kill leaves data of at most one incomplete checkpoint, and without its file list, which is written after the data.
    The next one may have an empty folder: Levanter creates it before it waits for the previous save.
    """
    own = [folder for folder in folders if not _is_link(folder) and _has_files(folder)]
    was_complete = len(own) > 1 or any(exists(join(folder, FILE_LIST)) for folder in own)
    return dict.fromkeys(own, f"its {METADATA} is missing") if was_complete else {}


def _has_files(folder: str) -> bool:
    fs, root = file_system_at(folder)
    return bool(fs.find(root))


def make_permanent(checkpoint: FoundCheckpoint, root: str) -> None:
    """Make a temporary checkpoint a permanent one under ``root``; its metadata comes last.

    A training that is killed right before it saves its last checkpoint ends with a temporary one.
    """
    target = join(root, basename(checkpoint.path))
    metadata = read_json(join(checkpoint.path, METADATA)) | {"is_temporary": False}
    if target != checkpoint.path:
        copy_files(checkpoint.path, target)
    write_json(join(target, METADATA), metadata)


def remove_temporary(roots: Sequence[str]) -> None:
    """Remove the temporary checkpoints of a training that has ended."""
    for found in complete_checkpoints(roots):
        if found.is_temporary:
            remove_checkpoint(found.path)


def _checkpoint_folders(roots: Sequence[str]) -> list[str]:
    """List the folders of checkpoints, complete or not."""
    return [folder for folder in _folders(roots) if _FOLDER.fullmatch(basename(folder))]


def _folders(roots: Sequence[str]) -> list[str]:
    """List the folders below the roots, freshly, since another process may have written or removed some."""
    folders: list[str] = []
    for root in roots:
        fs, plain = file_system_at(root)
        fs.invalidate_cache()
        for path, about in fs.glob(join(escape(plain), "*"), detail=True).items():
            if about["type"] == "directory" or ("://" not in root and _is_link(path)):
                folders.append(str(fs.unstrip_protocol(path)) if "://" in root else path)
    return folders


def _has_all_files(folder: str) -> bool:
    """Whether a checkpoint without valid metadata, its last file, lacks nothing else: a kill came right before."""
    return not _is_link(folder) and exists(join(folder, FILE_LIST)) and damage(folder) is None


def _write_metadata(folder: str, is_temporary: bool) -> None:
    step = int(basename(folder.rstrip("/")).removeprefix("step-"))
    now = datetime.now(UTC).replace(tzinfo=None).isoformat()
    write_json(join(folder, METADATA), {"step": step, "timestamp": now, "is_temporary": is_temporary})
    print(f"completed the checkpoint {folder}, of which only {METADATA} was missing", flush=True)


@dataclass(frozen=True)
class InitialCheckpoint:
    """The checkpoint of another training that a training began with.

    Attributes:
        given: Path in the config, which may be a folder of checkpoints.
        checkpoint: The checkpoint found there.
        first_step: Above 0 if the training continues the other one's whole state.
    """

    given: str
    checkpoint: str
    first_step: int = 0


@dataclass(frozen=True)
class InitialCheckpointFile:
    """The record of an ``InitialCheckpoint``, beside the training's own checkpoints."""

    path: str

    @classmethod
    def of_begin(cls, checkpoints: str) -> InitialCheckpointFile:
        """Return the record of the checkpoint that the training began with."""
        return cls(join(checkpoints, "begin.json"))

    @classmethod
    def of_reference(cls, checkpoints: str) -> InitialCheckpointFile:
        """Return the record of the reference of a preference training."""
        return cls(join(checkpoints, "reference.json"))

    def read(self) -> InitialCheckpoint | None:
        """Read the record, if there is one.

        Raises:
            ValueError: It is invalid.
        """
        from tradewind.storage.files import read_contents

        content = read_contents([self.path], SMALL).get(self.path)
        if content is None:
            return None
        try:
            if content.flaw is not None:
                raise RecordFormatError(content.flaw)
            taken = InitialCheckpoint(**parse_fields(parse(content.text), _KINDS, required=_KINDS))
            if not _is_below(taken.checkpoint, taken.given):
                raise RecordFormatError("its checkpoint is not below the given path")
        except RecordFormatError as flaw:
            raise ValueError(
                f"{self.path} does not say which checkpoint this training has taken, because {flaw}: restore it, or "
                "remove this training's checkpoints so that it begins anew."
            ) from None
        return taken

    def resolve(self, path: str, field: str, *, is_read: bool, has_own: bool) -> str:
        """Return the checkpoint at ``path`` of ``field``: the recorded one, if the record is of that path.

        Args:
            path: The checkpoint, or a folder of checkpoints.
            field: Field of the config, for errors.
            is_read: Whether the training reads it; else it need not exist.
            has_own: Whether the training has a checkpoint of its own, and so depends on this one.

        Raises:
            ValueError: The checkpoint is gone, or the record is invalid.
        """
        try:
            taken = self.read()
        except ValueError:
            if is_read and has_own:
                raise
            taken = None  # choose again, since no result depends on it
        if taken is None or taken.given != path:
            return newest_under(path, field).path if is_read else path
        if not is_read or newest_checkpoint([taken.checkpoint]) is not None:
            return taken.checkpoint
        if has_own:
            raise ValueError(
                f"{field}: the checkpoint {taken.checkpoint}, with which this training has worked so far, is gone: "
                "restore it."
            )
        return newest_under(path, field).path

    def write(self, taken: InitialCheckpoint) -> None:
        """Write the record. If two processes create it, one of them wins."""
        from tradewind.storage.files import create_text, write_text

        text = json.dumps(asdict(taken), indent=2, sort_keys=True) + "\n"
        if not create_text(self.path, text) and not self._holds_for(taken.given):
            write_text(self.path, text)

    def _holds_for(self, path: str) -> bool:
        """Whether the record is of that path, and its checkpoint exists."""
        try:
            recorded = self.read()
        except ValueError:
            return False
        return recorded is not None and recorded.given == path and newest_checkpoint([recorded.checkpoint]) is not None


def newest_under(path: str, field: str) -> FoundCheckpoint:
    """Return the newest checkpoint that is ``path``, or is in it: a training's output, or its checkpoint folder.

    Raises:
        ValueError: There is none, or one that may be newer has another step in its metadata.
    """
    roots = [path, join(path, "checkpoints")]
    found = newest_checkpoint(roots)
    for mislabeled in mislabeled_checkpoints(roots):
        if found is None or mislabeled.may_be_after(found.step):
            raise ValueError(
                f"{field}: the checkpoint {mislabeled.path} {mislabeled.wrong}: copy it again or give another."
            )
    if found is None:
        raise ValueError(f"There is no complete checkpoint under {field} {path}.")
    return found


def _is_below(path: str, folder: str) -> bool:
    below = path.removeprefix(f"{folder.rstrip('/')}/")
    return path == folder or (below != path and is_relative(below))
