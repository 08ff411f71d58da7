"""Which sessions were allocated from this machine, and what each holds: nobody else can write that.

Whoever may submit jobs to a cluster may call one as another person does, and have it tell of any slice. So what is sent
goes where this machine has seen its own job hold a slice, and the cluster is asked only whether that job goes on.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tradewind.cloud_tpu.on_hosts.dev_slices import BadDevSliceError, DevSlice
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.local_paths import state_folder

_JOB: Final = re.compile(r"dev-tpu-[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_JOB: Final = 128
_OLD_S: Final = 30 * 86400.0
_LARGEST_BYTES: Final = 1 << 20


def is_session_id(job: str) -> bool:
    """Whether ``allocate`` could have called a job so: on hosts a folder is called by it."""
    return len(job) <= _LONGEST_JOB and _JOB.fullmatch(job) is not None


class OwnSessions:
    """Those on one cluster: a file for each, for its owner alone.

    Args:
        root: Below it lie those of all clusters; default: with this user's other records.
    """

    def __init__(self, cluster: FleetCluster, root: Path | None = None) -> None:
        self._folder = (root or state_folder() / "dev") / cluster.project / cluster.name

    def note(self, job: str, name: str, held: DevSlice) -> None:
        """Write down that ``job`` holds a slice that is called ``name``."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in self._folder.iterdir():
            with suppress(OSError):
                if file.stat().st_mtime < time.time() - _OLD_S:  # of one that was killed
                    file.unlink()
        aside = self._folder / f".{os.getpid()}.new"
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(f"{name}\n{held.line()}\n")
        os.replace(aside, self._folder / job)

    def forget(self, job: str) -> None:
        """It holds nothing any more."""
        (self._folder / job).unlink(missing_ok=True)

    def called(self, name: str) -> dict[str, DevSlice]:
        """Job → slice, of those that were called ``name``, the newest first."""
        with suppress(OSError):
            files = [file for file in self._folder.iterdir() if is_session_id(file.name)]
            newest = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
            return {file.name: held for file in newest if (held := _held(file, name)) is not None}
        return {}


def _held(file: Path, name: str) -> DevSlice | None:
    with suppress(OSError, ValueError, BadDevSliceError), file.open() as opened:
        given, _, line = opened.read(_LARGEST_BYTES).partition("\n")
        return DevSlice.in_log(line) if given == name else None
    return None
