"""From which checkpoint a training goes on: the newest that is complete and sound, wherever it was written.

Permanent checkpoints and temporary ones may lie under different paths. Before any process looks for the newest, process
0 removes what is half written or damaged, so all of them find the same one, and training can write those steps again.
Levanter would read a damaged one, and would write into a half-written one; with another number of devices that fails,
since the chunks have another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tradewind.datasets.files import basename, exists, join, read_json, write_json
from tradewind.recipes.checkpoints.files import METADATA, copy_files, damage, remove_checkpoint
from tradewind.storage import file_system_at


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint; ``step`` is the index of the last step in it."""

    path: str
    step: int
    is_temporary: bool


def complete_checkpoints(roots: Sequence[str]) -> list[FoundCheckpoint]:
    """All complete checkpoints under these folders, or that are these folders; the newest last."""
    from levanter.checkpoint import discover_checkpoint_candidates

    for root in roots:
        file_system_at(root)[0].invalidate_cache()  # another process may have written or removed some
    return [
        FoundCheckpoint(found.path, found.step, bool(found.metadata.get("is_temporary")))
        for found in discover_checkpoint_candidates(*roots)
    ]


def newest_checkpoint(roots: Sequence[str]) -> FoundCheckpoint | None:
    """The one to go on from, after ``settle_checkpoints``."""
    found = complete_checkpoints(roots)
    return found[-1] if found else None


def settle_checkpoints(roots: Sequence[str]) -> None:
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
    for found in reversed(complete_checkpoints(roots)):
        wrong = damage(found.path)
        if wrong is None:
            return
        print(f"removed the damaged checkpoint {found.path}: {wrong}", flush=True)
        remove_checkpoint(found.path)


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
