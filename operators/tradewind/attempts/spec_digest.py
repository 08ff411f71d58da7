"""Check that a driver runs the claimed spec: its command line holds the SHA-256 of the spec.

The attempt's file is in the bucket, so another writer of the bucket can change it between the claim and the start. The
driver imports and runs nothing of it unless its spec has the digest that the claimer gave. Steps in the Airflow worker
are not read from the bucket: their attempt comes through the standard input, with ``-`` for the file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

from tradewind.attempts.store_retry import retry_store
from tradewind.records.attempts import Attempt, BadAttemptError, read_attempt
from tradewind.records.parsing import RecordFormatError
from tradewind.serialization.errors import SpecError
from tradewind.serialization.spec import StepSpec

EXIT_SPEC_CHANGED: Final = 77
"""Exit code of a process whose spec differs from the claimed one (EX_NOPERM of sysexits.h)."""
CHANGED_LATER: Final = "The spec was changed after this driver began, so its function was not called."
STDIN_ARGUMENT: Final = "-"
"""Instead of the attempt's file: read the attempt from the standard input."""


class SpecChangedError(SpecError):
    """The spec is not the claimed one. The process imported, ran and wrote nothing."""


def spec_digest(spec: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a spec's canonical JSON, equal before it is written and after it is read."""
    plain = json.loads(json.dumps(spec))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def driver_arguments(attempt_file: str, attempt: Attempt) -> list[str]:
    """Return the command line arguments of the driver of ``attempt``."""
    return [attempt_file, spec_digest(attempt.spec)]


def load_claimed_spec(attempt_file: str, digest: str) -> tuple[Attempt, StepSpec]:
    """Return the attempt in a file, and its spec, which is the claimed one.

    Raises:
        SpecChangedError: The spec is another one, or cannot be read.
        StoreError: The store does not answer.
    """
    try:
        if attempt_file == STDIN_ARGUMENT:
            attempt: Attempt | None = Attempt.from_json(sys.stdin.read())
        else:
            attempt = retry_store(lambda: read_attempt(attempt_file))
    except (BadAttemptError, RecordFormatError) as error:
        raise SpecChangedError(f"{error} So the spec is not what was claimed, and nothing was run.") from None
    if attempt is None:
        raise SpecChangedError(f"There is no attempt file at {attempt_file}, so nothing was run.")
    if not hmac.compare_digest(spec_digest(attempt.spec), digest):
        raise SpecChangedError(
            f"The spec in {attempt_file} is not what was claimed: another process has changed it since, so nothing was "
            "run. Check who can write to that file, and clear the task to claim a new attempt."
        )
    return attempt, StepSpec.from_json(attempt.spec)


def load_spec_from_argv(arguments: Sequence[str]) -> tuple[Attempt, StepSpec]:
    """Load the claimed spec by the first two arguments; on a bad spec, print why and exit with 77.

    Raises:
        StoreError: The store does not answer.
    """
    try:
        if len(arguments) < 2:
            raise SpecChangedError(
                "The digest of the spec is missing after the attempt's file, so nothing was run: the Tradewind that "
                "claimed this attempt is older than the one on this cluster; update it."
            )
        return load_claimed_spec(arguments[0], arguments[1])
    except SpecError as error:
        print(f"tradewind: {error}", flush=True)
        sys.exit(EXIT_SPEC_CHANGED)


@contextmanager
def as_stdin_file(attempt: Attempt) -> Iterator[IO[bytes]]:
    """Provide an unnamed file that holds ``attempt``, for the standard input of its driver."""
    with tempfile.TemporaryFile() as file:
        file.write(attempt.to_json().encode())
        file.seek(0)
        yield file
