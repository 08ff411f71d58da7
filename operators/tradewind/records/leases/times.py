"""When what happens under a lease: the one place where looking, fencing and taking over are weighed against each other.

All of it counts from the last renewal, from when its owner *began* to write it: others count from when the store took
it, which is later. Whoever works under a lease is cut off before others may take it over, by so much that a look that
comes late, a polite end that takes its grace and a frozen process all fit between:

====================  ======================================================================================
0                     the owner renews
``heartbeat_s``       it renews again
``fence_s``           cut off: the owner writes nothing more; what works for it is killed, without any grace
``killed_s``          the kernel ends whoever of them was frozen and could not do that itself
``stale_s``           somebody else may take over
====================  ======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARTBEAT_S: Final = 30.0
"""How often an owner renews, unless the deployment says otherwise; Marin's figure, as are 2 and 3 heartbeats."""
_FENCE_HEARTBEATS: Final = 2.0
_KILL_HEARTBEATS: Final = 2.5
_STALE_HEARTBEATS: Final = 3.0
_LOOKS_PER_HEARTBEAT: Final = 6
_LONGEST_LOOK_S: Final = 5.0
_LONGEST_CUT_S: Final = 0.25


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a lease that is renewed every ``heartbeat_s`` seconds."""

    heartbeat_s: float = HEARTBEAT_S

    @property
    def look_s(self) -> float:
        """How often its owner looks at it, for a request to stop or a loss."""
        return min(_LONGEST_LOOK_S, self.heartbeat_s / _LOOKS_PER_HEARTBEAT)

    @property
    def cut_look_s(self) -> float:
        """How often whoever may be cut off looks at the clock, at most."""
        return min(_LONGEST_CUT_S, self.heartbeat_s / _LOOKS_PER_HEARTBEAT)

    @property
    def fence_s(self) -> float:
        """After so long without a renewal its owner ends itself."""
        return _FENCE_HEARTBEATS * self.heartbeat_s

    @property
    def killed_s(self) -> float:
        """After so long nothing of its owner is at work any more."""
        return _KILL_HEARTBEATS * self.heartbeat_s

    @property
    def stale_s(self) -> float:
        """After so long without a change somebody else may take over."""
        return _STALE_HEARTBEATS * self.heartbeat_s
