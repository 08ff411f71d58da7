"""Two regions as two prefixes of one store, and the lease of a step that syncs a mirror."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.runtime.mirror_copies import MirrorCopy, find_source, record_of
from tradewind.runtime.mirrors import MirrorSync
from tradewind.serialization.mirrors import MirroredPath, locate_mirrors
from tradewind.steps.placeholders import Mirror
from tradewind.storage import file_system_at
from tradewind.storage.trees import list_files

Result = TypeVar("Result")
QUICK_S = 0.4
"""Heartbeat interval for copies whose lease owner is killed."""


class StepLease:
    """Stub of a lease that never ends."""

    end = None

    def check(self) -> None:
        pass

    def finish(self, **changes: Any) -> HeldLease:
        raise AssertionError("a copy does not end the lease of its step")

    def retry_store(self, call: Callable[[], Result], /) -> Result:
        return call()


def put(folder: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        fs, path = file_system_at(posixpath.join(folder, name))
        fs.makedirs(posixpath.dirname(path), exist_ok=True)
        fs.pipe_file(path, text.encode())


def texts(folder: str) -> dict[str, str]:
    """Return the files below a folder without the records of mirrors and leases."""
    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    names = [file.path for file in list_files(folder) if not file.path.startswith(".tradewind/")]
    return {name: fs.cat_file(f"{root}/{name}").decode() for name in names}


def mirror_of(
    path: str, prefix: str, *sources: str, budget_gb: float | None = 10, field: str = "config.data"
) -> MirroredPath:
    (placed,) = locate_mirrors([Mirror(field, path, budget_gb, prefix)], sources)
    return placed


def sync(*mirrors: MirroredPath, heartbeat_s: float = 30.0, by: str = "test") -> None:
    MirrorSync({"run": by}, heartbeat_s, StepLease()).sync_all(mirrors)


def copy_after(mirror: MirroredPath, act: Callable[[], object]) -> None:
    """Find the source, change the source or the destination, then copy."""
    found = find_source(mirror)
    act()
    MirrorCopy(mirror, found, StepLease()).make()


def lease_of_copy(mirror: MirroredPath) -> Any:
    held = LeaseStore(record_of(mirror.prefix, mirror.name)).read()
    assert held is not None
    return held.lease
