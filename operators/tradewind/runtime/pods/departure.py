"""A pod that is about to go saves a checkpoint first: all hosts have the same notice, and leave by its deadline.

The notice is told to every process of the pod, because a checkpoint is saved together. Who saves and leaves first shows
that the checkpoint is there, so the others are not waited for much longer, and nobody beyond the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from tradewind.runtime.pods.host_view import SeenHost
from tradewind.runtime.pods.on_host.notices import Notice, is_sooner
from tradewind.runtime.pods.verdicts import NOTICED

_NOTICE_S: Final = 30.0
"""How long a node that is drained without a deadline is counted on."""
_LEAVE_S: Final = 2.0
"""How long before a deadline the processes are ended."""
_STRAGGLE_S: Final = 15.0
"""How long after the first process has saved its checkpoint and left the others may take."""


class Departure:
    """The notice that a pod has, if it has one, and when it must have left."""

    def __init__(self, hosts: Sequence[SeenHost], say: Callable[[str], None]) -> None:
        self._hosts = hosts
        self._say = say
        self._notice: Notice | None = None

    def announce_loss(self, host: SeenHost, deadline: float | None, why: str) -> None:
        """``host`` goes at ``deadline``, in seconds since the epoch, or soon."""
        at = time.time() + _NOTICE_S if deadline is None else deadline
        self.announce(Notice(at, f"{host.name} is about to go: {why}"))

    def announce(self, notice: Notice) -> None:
        """Leave the notice on all hosts, unless they have one as early: the processes save a checkpoint together."""
        if not is_sooner(notice, self._notice):
            return
        self._notice = notice
        left_s = max(0.0, notice.deadline - time.time())
        self._say(f"{notice.reason}; the processes have {left_s:.0f} s to save a checkpoint")
        for host in self._hosts:
            host.note(has_notice=True)
            host.actor.notify.remote(notice)

    @property
    def is_due(self) -> bool:
        """Whether the deadline of the notice is near, or the others do not follow the first one that left."""
        if self._notice is None:
            return False
        left = [
            host.exited_at for host in self._hosts if host.evidence.exit_code == NOTICED and host.exited_at is not None
        ]
        if left and all(host.has_exited for host in self._hosts):
            return True
        latest = min(
            [
                self._notice.deadline - _LEAVE_S,
                *(time.time() - time.monotonic() + at + _STRAGGLE_S for at in left),
            ]
        )
        return time.time() >= latest
