"""A turn that no job works at: whoever brings an output in, or removes it, holds its lease meanwhile.

So nobody reuses what is half there, and nobody starts to make it. Renewing is left to whom the caller names, since
this layer starts no threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from tradewind.records.leases.store import Held, LeaseStore
from tradewind.storage.errors import LeaseLostError, RecordsError

Result = TypeVar("Result")


class OutputBusyError(RecordsError):
    """Somebody is at work on the output, or has just changed it."""


class TurnKeeper(Protocol):
    """A turn that somebody renews."""

    @property
    def end(self) -> object | None:
        """Why the work must end, if it must."""

    def check(self) -> None:
        """Raises ``LeaseLostError`` if the turn is over."""

    def finish(self, **changes: Any) -> Held:
        """The last write of the turn; it is renewed until then."""

    def until_answered(self, call: Callable[[], Result], /) -> Result:
        """What ``call`` returns, once the store lets it; it may be called many times."""


Keep = Callable[[LeaseStore, Held], AbstractContextManager[TurnKeeper]]
"""Renews a turn for the length of a ``with`` block."""


def check_goes_on(turn: TurnKeeper) -> None:
    """Refuse to go on with a turn that is over.

    Raises:
        LeaseLostError: It is over, or somebody asked for its end.
    """
    turn.check()
    if turn.end is not None:
        raise LeaseLostError("The turn at this output is over.")


def is_taken(held: Held | None) -> bool:
    """Whether somebody is at work, as far as the lease says."""
    return held is not None and held.lease.is_live and held.age_s <= held.lease.stale_s
