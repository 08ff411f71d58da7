"""What lay in a folder before the first attempt at an output there. It is somebody else's, so it is never removed.

The attempt's file lists it, and each later one says the same again, so one that cannot be read costs nothing. All else
of an attempt without a result is a leftover. A folder that already holds outputs of other steps is refused, and so is
one with so many files that the list would be no record any more.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from typing import Final

from tradewind.records.attempts import (
    Attempt,
    AttemptOutcome,
    BadAttemptError,
    attempt_numbers,
    attempt_path,
    read_attempt,
)
from tradewind.records.experiment_info import EXPERIMENTS_FOLDER, is_experiment_file
from tradewind.records.leases.lease import Lease, Phase
from tradewind.records.outputs.manifests import RECORDS_OF_AN_OUTPUT, output_files
from tradewind.records.outputs.pins import OWN_FOLDER
from tradewind.records.status import STATUS_FILE
from tradewind.records.step_info import INFO_FILE
from tradewind.storage.errors import RecordsError
from tradewind.storage.files import list_names
from tradewind.storage.trees import StoredFile, list_files

logger = logging.getLogger(__name__)

MOST_FOUND: Final = 1000
"""So many files of others an output's folder may hold."""
_LONGEST_LIST_BYTES: Final = 1 << 18
_SHOWN: Final = 3


class OccupiedFolderError(RecordsError):
    """The folder of an output holds what belongs to others, so nothing was claimed there."""


def found_before(output_path: str, over: Lease | None) -> tuple[str, ...]:
    """What an attempt that is claimed now must leave alone, relative to ``output_path``.

    Args:
        over: The lease as it is.

    Raises:
        OccupiedFolderError: The folder holds outputs of other steps, or too many files of others.
        StoreUnavailableError: The store does not answer.
    """
    known = found_by_record(output_path, over)
    return known if known is not None else _look(output_path)


def found_by_record(output_path: str, lease: Lease | None) -> tuple[str, ...] | None:
    """What the record says was there before the first attempt; None if it does not say so.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    numbers = attempt_numbers(output_path)
    for number in reversed(numbers):
        attempt = _readable(attempt_path(output_path, number))
        if attempt is None:
            continue
        if str(attempt.spec.get("adopted", "")).rstrip("/") != output_path.rstrip("/"):
            return attempt.found
        is_lease = lease is not None and lease.phase is Phase.COMMITTED and lease.attempt == attempt.number
        return () if is_lease or attempt.outcome is AttemptOutcome.SUCCEEDED else None
    if numbers:
        logger.warning(
            "No attempt's file at %s can be read: all that lies there counts as somebody else's.", output_path
        )
        return None
    is_marins = lease is not None and lease.is_marins
    return () if is_marins or {STATUS_FILE, INFO_FILE} & {*list_names(output_path)} else None


def check_holds_no_outputs(output_path: str) -> list[StoredFile]:
    """All that lies at ``output_path``, where no other step may have an output below.

    Raises:
        OccupiedFolderError: One has.
    """
    files = list_files(output_path)
    for file in files:
        folder, name = posixpath.split(file.path)
        is_output = folder and name in RECORDS_OF_AN_OUTPUT
        is_prefix = file.path.startswith(f"{OWN_FOLDER}/") or (
            folder == EXPERIMENTS_FOLDER and is_experiment_file(name)
        )
        if is_output or is_prefix:
            raise OccupiedFolderError(
                f"{output_path} holds outputs of other steps, as {file.path} says: give the step another name or "
                "override_output_path. Nothing was claimed."
            )
    return files


def _look(output_path: str) -> tuple[str, ...]:
    check_holds_no_outputs(output_path)
    found = [file.path for file in output_files(output_path)]
    if len(found) > MOST_FOUND or sum(len(path.encode(errors="surrogatepass")) for path in found) > _LONGEST_LIST_BYTES:
        raise OccupiedFolderError(
            f"{output_path} holds {len(found):,} files that no step has made, more than the {MOST_FOUND:,} that an "
            "attempt's record lists: move them, make them the step's result with `tradewind adopt`, or give the step "
            "another override_output_path. Nothing was claimed."
        )
    if found:
        logger.warning("%s", _warning(output_path, found))
    return tuple(found)


def _warning(output_path: str, found: Sequence[str]) -> str:
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return (
        f"{output_path} holds files that no step has made: {', '.join(found[:_SHOWN])}{more}. They stay, and "
        "will count as files of the result."
    )


def _readable(path: str) -> Attempt | None:
    try:
        return read_attempt(path)
    except BadAttemptError as error:
        logger.warning("%s", error)
        return None
