"""The ends of a turn whose keeper is this process: each is written once the store lets it, and never after the turn."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome
from tradewind.records.leases.turn import commit_turn, fail_turn, stop_turn
from tradewind.turns.keeper import Keeper


@dataclass(frozen=True)
class HeldTurn:
    """A turn that is at work here. Its methods end it.

    All of them raise ``LeaseLostError`` if it is over, and ``StoreError`` if the store has refused or been silent for
    too long.
    """

    path: str
    attempt: Attempt
    keeper: Keeper

    def commit(self) -> None:
        """Make the output a result.

        Raises:
            InputChangedError: Its inputs are not what they were when it was claimed.
        """
        keeper = self.keeper
        keeper.until_answered(lambda: commit_turn(keeper.finish, self.path, self.attempt, keeper.check))

    def fail(self, error: AttemptError) -> None:
        """End it with the fault of its function."""
        self.keeper.until_answered(lambda: fail_turn(self.keeper.finish, self.path, self.attempt, error))

    def stop(self, outcome: AttemptOutcome, error: AttemptError | None = None) -> None:
        """End it without a result and without a fault of its function."""
        self.keeper.until_answered(lambda: stop_turn(self.keeper.finish, self.path, self.attempt, outcome, error))
