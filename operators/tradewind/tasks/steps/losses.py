"""An attempt is lost: whether the next one follows within the same try, or the task ends because that is no help."""

from __future__ import annotations

from typing import Final

from tradewind.ray_jobs.follow.endings import Ending
from tradewind.records.attempts import AttemptOutcome
from tradewind.records.leases.lease import Lease
from tradewind.tasks.errors import StepFailedError, StepLostError
from tradewind.tasks.jobs.errors import LOSSES
from tradewind.tasks.steps.progress import Progress
from tradewind.turns.claims import StepTurns

MOST_LOSSES: Final = 100
"""How many nodes or heads in a row a step may lose within one try."""
MOST_WITHOUT_KEEPER: Final = 3
"""After so many attempts in a row whose driver never began, a dying node is no likely cause any more."""


def after_loss(turns: StepTurns, lease: Lease, ending: Ending, progress: Progress) -> Progress:
    """How far the try is once the attempt of ``lease``, whose job ended so, is lost.

    Raises:
        StepLostError: Airflow's next try may have more luck.
        StepFailedError: No driver of this step has come to life. The step itself is not marked as failed.
    """
    name, lost = turns.step.name, progress.after_loss(lease)
    attempt = turns.attempt(lease.attempt)
    if attempt is not None and attempt.outcome is AttemptOutcome.LOST and attempt.error is not None:
        raise StepLostError(
            f"Step {name!r}, attempt {lease.attempt}: {attempt.error.message} Airflow's next try makes a new attempt."
        )
    if progress.losses >= MOST_LOSSES:
        raise StepLostError(
            f"Step {name!r}, attempt {lease.attempt}: {ending.sentence} It is the {lost.losses}th that was lost in "
            "this try; Airflow's next try makes a new attempt."
        )
    if lost.without_keeper >= MOST_WITHOUT_KEEPER:
        error = StepLostError if ending.kind in LOSSES else StepFailedError
        raise error(
            f"Step {name!r}, attempt {lease.attempt}: {ending.sentence} The drivers of {lost.without_keeper} attempts "
            "in a row have ended before they began; what the last one said is above. Look there, and at its node."
        )
    return lost
