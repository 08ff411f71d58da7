"""From which checkpoint a training goes on: the newest that is complete and sound, wherever it was written.

Permanent checkpoints and temporary ones may lie under different paths. Before any process looks for the newest, process
0 removes what is half written or damaged, so all of them find the same one, and training can write those steps again.
Levanter would read a damaged one, and would write into a half-written one; with another number of devices that fails,
since the chunks have another shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tradewind.datasets.files import basename, exists, join, read_json, write_json
from tradewind.recipes.checkpoints.files import METADATA, copy_files, damage, make_incomplete, remove_checkpoint
from tradewind.records.parsing import is_count
from tradewind.steps.values.shortened import shortened
from tradewind.storage import file_system_at

_FOLDER: Final = re.compile(r"step-([0-9]{1,16})")


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint; ``step`` is the index of the last step in it."""

    path: str
    step: int
    is_temporary: bool


@dataclass(frozen=True)
class UntrueCheckpoint:
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


def untrue_checkpoints(roots: Sequence[str]) -> list[UntrueCheckpoint]:
    """Those that Levanter would take for complete, and for older or newer than they are."""
    steps = {found.path: found.metadata["step"] for found in _discovered(roots)}
    wrong = {path: _wrong_step(path, step) for path, step in steps.items()}
    return [UntrueCheckpoint(path, why) for path, why in wrong.items() if why is not None]


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
    return f"is of step {shortened(step)} by its {METADATA}"


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
    for untrue in untrue_checkpoints(roots):
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
