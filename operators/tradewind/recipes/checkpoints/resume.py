"""From which checkpoint a training goes on: the newest that is complete and sound, wherever it was written.

Permanent checkpoints and temporary ones may lie under different paths. Before any process looks for the newest, process
0 removes what is half written or damaged, so all of them find the same one, and training can write those steps again.
Levanter would read a damaged one, and would write into a half-written one; with another number of devices that fails,
since the chunks have another shape.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from tradewind.datasets.files import atomic_writer, basename, exists, is_remote, join, read_json, write_json
from tradewind.records.parsing import FieldType, RecordFormatError, is_count, is_relative, is_text, parse, parse_fields
from tradewind.storage import file_system_at, open_file
from tradewind.storage.bounded_read import SMALL
from tradewind.text import truncated_repr

# Is a checkpoint as it was written? A list of its files says so, and no file of an object store is read for it.
#
# A checkpoint is complete when ``metadata.json`` is in its folder, which Levanter writes last. Right before it we add
# ``files.json``: path, size and checksum of every file. On Cloud Storage the checksum is the store's own (CRC32C, part
# of the listing); a local file's is computed. What a store may change or lose later shows as damage. A checkpoint
# without a list, such as one of Levanter's own runs, counts as sound when its data is there at all.

FILE_LIST = "files.json"
METADATA = "metadata.json"
_OWN = (FILE_LIST, METADATA)
_MANIFEST = "manifest.ocdbt"


def write_file_list(checkpoint: str) -> None:
    """Write down the files of the checkpoint in that folder, all of which are there."""
    write_json(join(checkpoint, FILE_LIST), _files(checkpoint))


def damage(checkpoint: str) -> str | None:
    """What is wrong with the files of that complete checkpoint, as part of a sentence; None if they are sound.

    Raises ``OSError`` if the store does not answer: that says nothing about the checkpoint.
    """
    path = join(checkpoint, FILE_LIST)
    if not exists(path):
        data = any(exists(join(checkpoint, name)) for name in (_MANIFEST, "model"))
        return None if data else "it has no data"
    try:
        listed = read_json(path)
    except (ValueError, RecursionError):
        return f"{FILE_LIST} is no JSON"
    if not isinstance(listed, dict) or not all(isinstance(each, dict) and "size" in each for each in listed.values()):
        return f"{FILE_LIST} is no list of files with their sizes"
    found = _files(checkpoint)
    return next((wrong for name in sorted(listed) if (wrong := _difference(name, listed[name], found.get(name)))), None)


def make_incomplete(checkpoint: str) -> None:
    """Take away what says that it is complete: a kill while the rest is removed then leaves nothing to trip over."""

    fs, path = file_system_at(join(checkpoint, METADATA))
    with suppress(FileNotFoundError):
        fs.rm_file(path)


def remove_checkpoint(checkpoint: str) -> None:
    """Remove the folder, also while Levanter's own thread removes it."""

    make_incomplete(checkpoint)
    fs, root = file_system_at(checkpoint)
    with suppress(FileNotFoundError):
        fs.rm(root, recursive=True)


def copy_files(checkpoint: str, target: str) -> None:
    """Copy the checkpoint to another folder, of any store, without what says that it is complete."""

    for name in [*_files(checkpoint), FILE_LIST]:
        if exists(join(checkpoint, name)):
            with open_file(join(checkpoint, name)) as source, atomic_writer(join(target, name)) as copy:
                shutil.copyfileobj(source, copy, 1 << 22)


def _files(checkpoint: str) -> dict[str, dict[str, Any]]:
    """Path below the checkpoint -> size and checksum, read past any listing that the client remembers."""

    fs, root = file_system_at(checkpoint)
    fs.invalidate_cache()
    found = fs.find(root, detail=True)
    start = len(root.rstrip("/")) + 1
    return {
        path[start:]: _describe(fs, path, info, is_remote(checkpoint))
        for path, info in found.items()
        if path[start:] not in _OWN
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
        return f"{name} is missing"
    if found["size"] != listed["size"]:
        return f"{name} has {found['size']} bytes instead of {listed['size']}"
    if any(listed[kind] != found[kind] for kind in listed.keys() & found.keys()):
        return f"{name} has other content than was written"
    return None


_FOLDER: Final = re.compile(r"step-([0-9]{1,16})")


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint; ``step`` is the index of the last step in it."""

    path: str
    step: int
    is_temporary: bool


@dataclass(frozen=True)
class MislabeledCheckpoint:
    """A checkpoint whose metadata says another step than its own; ``wrong`` tells that as part of a sentence."""

    path: str
    wrong: str

    def may_be_after(self, step: int) -> bool:
        """Whether it may be newer than one of that step, as far as its folder tells."""
        named = _FOLDER.fullmatch(basename(self.path))
        return named is None or int(named[1]) > step


def complete_checkpoints(roots: Sequence[str]) -> list[FoundCheckpoint]:
    """All complete checkpoints under these folders, or that are these folders; the newest last."""
    return [
        FoundCheckpoint(found.path, found.step, bool(found.metadata.get("is_temporary")))
        for found in _discovered(roots)
        if _wrong_step(found.path, found.metadata["step"]) is None
    ]


def mislabeled_checkpoints(roots: Sequence[str]) -> list[MislabeledCheckpoint]:
    """Those that Levanter would take for complete, and for older or newer than they are."""
    steps = {found.path: found.metadata["step"] for found in _discovered(roots)}
    wrong = {path: _wrong_step(path, step) for path, step in steps.items()}
    return [MislabeledCheckpoint(path, why) for path, why in wrong.items() if why is not None]


def _discovered(roots: Sequence[str]) -> list[Any]:
    from levanter.checkpoint import discover_checkpoint_candidates

    for root in roots:
        file_system_at(root)[0].invalidate_cache()  # another process may have written or removed some
    return list(discover_checkpoint_candidates(*roots))


def _wrong_step(path: str, step: Any) -> str | None:
    """Levanter takes false for 0, cuts off fractions, and reads the numbers in texts."""
    named = _FOLDER.fullmatch(basename(path))
    if is_count(step) and (named is None or int(named[1]) == step):
        return None
    return f"is of step {truncated_repr(step)} by its {METADATA}"


def newest_checkpoint(roots: Sequence[str]) -> FoundCheckpoint | None:
    """The one to go on from, after ``clean_up_checkpoints``."""
    found = complete_checkpoints(roots)
    return found[-1] if found else None


def clean_up_checkpoints(roots: Sequence[str]) -> None:
    """Process 0 removes what training cannot go on from, with a line each; no process returns before that is done.

    Checkpoints that are older than the newest sound one are not looked at.
    """
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    if jax.process_index() == 0:
        for folder in _incomplete(roots):
            remove_checkpoint(folder)
        _remove_damaged(roots)
    sync_global_devices("tradewind: checkpoints settled")


def make_permanent(checkpoint: FoundCheckpoint, root: str) -> None:
    """Make a temporary checkpoint a permanent one in the folder ``root``, complete only when all of it is there.

    A training that is killed right before it saves its last checkpoint has ended with a temporary one.
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


def _remove_damaged(roots: Sequence[str]) -> None:
    for untrue in mislabeled_checkpoints(roots):
        _remove(untrue.path, f"it {untrue.wrong}", roots)
    for found in reversed(complete_checkpoints(roots)):
        wrong = damage(found.path)
        if wrong is None:
            return
        _remove(found.path, wrong, roots)


def _remove(checkpoint: str, wrong: str, roots: Sequence[str]) -> None:
    """Metadata that lies beside the checkpoints makes none of their folder."""
    print(f"removed the damaged checkpoint {checkpoint}: {wrong}", flush=True)
    (make_incomplete if checkpoint in roots else remove_checkpoint)(checkpoint)


def _incomplete(roots: Sequence[str]) -> Iterator[str]:
    """Folders of checkpoints whose metadata is not there or cannot be read."""

    for root in roots:
        fs, plain = file_system_at(root)
        fs.invalidate_cache()
        for folder in fs.glob(join(plain, "step-*")):
            path = str(fs.unstrip_protocol(folder)) if "://" in root else folder
            if not _has_metadata(path):
                yield path


def _has_metadata(checkpoint: str) -> bool:
    path = join(checkpoint, METADATA)
    if not exists(path):
        return False
    try:
        metadata: Any = read_json(path)
        int(metadata["step"])
        datetime.fromisoformat(metadata["timestamp"])
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError):  # nor does Levanter see it
        return False
    return True


# Which checkpoint of another training is taken: decided once, written down, and gone by at every later start.
#
# A folder of checkpoints may get another newest one at any time: between two processes that look for it, and between
# two starts of one training, which would then take its first step for another, or be compared with another model.

_KINDS: Final = {
    "given": FieldType(is_text, "a path"),
    "checkpoint": FieldType(is_text, "a path"),
    "first_step": FieldType(is_count, "a step"),
}


@dataclass(frozen=True)
class InitialCheckpoint:
    """The checkpoint of another training that one took.

    Attributes:
        given: What the config named, which may be a folder of checkpoints.
        checkpoint: The one that was found there.
        first_step: More than 0 where the training goes on with all that the other was.
    """

    given: str
    checkpoint: str
    first_step: int = 0


@dataclass(frozen=True)
class InitialCheckpointFile:
    """Where that is written down; ``path`` lies beside the training's own checkpoints, and stays as long as they do."""

    path: str

    @classmethod
    def of_begin(cls, checkpoints: str) -> InitialCheckpointFile:
        """Of what the training whose own checkpoints lie there began with."""
        return cls(join(checkpoints, "begin.json"))

    @classmethod
    def of_reference(cls, checkpoints: str) -> InitialCheckpointFile:
        """Of what the preferences of that training are compared with."""
        return cls(join(checkpoints, "reference.json"))

    def read(self) -> InitialCheckpoint | None:
        """What is written there, if anything is.

        Raises:
            ValueError: It is not what we have written.
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
                raise RecordFormatError("its checkpoint does not lie below what was given")
        except RecordFormatError as flaw:
            raise ValueError(
                f"{self.path} does not say which checkpoint this training has taken, because {flaw}: put back what it "
                "was, or remove this training's checkpoints so that it begins anew."
            ) from None
        return taken

    def found(self, path: str, field: str, *, is_read: bool, has_own: bool) -> str:
        """The checkpoint that ``field`` names with ``path``; what is written down, if it is of that path.

        Args:
            is_read: Whether the training will read it; else it need not be there.
            has_own: Whether the training has a checkpoint of its own, and so has worked with this one.

        Raises:
            ValueError: It is not there, or nobody knows any more which it was.
        """
        try:
            taken = self.read()
        except ValueError:
            if is_read and has_own:
                raise
            taken = None  # decided anew, since nothing was made with it
        if taken is None or taken.given != path:
            return newest_under(path, field).path if is_read else path
        if not is_read or newest_checkpoint([taken.checkpoint]) is not None:
            return taken.checkpoint
        if has_own:
            raise ValueError(
                f"{field}: the checkpoint {taken.checkpoint}, with which this training has worked so far, is not there "
                "any more: put it back."
            )
        return newest_under(path, field).path

    def write(self, taken: InitialCheckpoint) -> None:
        """Write it down. Of two that find nothing there one wins."""
        from tradewind.storage.files import create_text, write_text

        text = json.dumps(asdict(taken), indent=2, sort_keys=True) + "\n"
        if not create_text(self.path, text) and not self._holds_for(taken.given):
            write_text(self.path, text)

    def _holds_for(self, path: str) -> bool:
        """Whether what is written there is of that path, and can be gone by."""
        try:
            there = self.read()
        except ValueError:
            return False
        return there is not None and there.given == path and newest_checkpoint([there.checkpoint]) is not None


def newest_under(path: str, field: str) -> FoundCheckpoint:
    """The checkpoint itself, if the output of a training or the folder of its checkpoints is given.

    Raises:
        ValueError: There is none, or one that may be newer says another step than its own.
    """
    roots = [path, join(path, "checkpoints")]
    found = newest_checkpoint(roots)
    for untrue in mislabeled_checkpoints(roots):
        if found is None or untrue.may_be_after(found.step):
            raise ValueError(f"{field}: the checkpoint {untrue.path} {untrue.wrong}: copy it again or give another.")
    if found is None:
        raise ValueError(f"There is no complete checkpoint under {field} {path}.")
    return found


def _is_below(path: str, folder: str) -> bool:
    below = path.removeprefix(f"{folder.rstrip('/')}/")
    return path == folder or (below != path and is_relative(below))
