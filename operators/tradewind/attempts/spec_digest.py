"""What a driver runs is what was claimed: the SHA-256 of the spec stands on the command line of whoever runs it.

The attempt's file lies in the bucket, and whoever may write there may change it between the claim and the start. So
nothing of it is imported, and nothing run, before its spec has the digest that the claimant gave. Steps in the Airflow
worker are not read back from the bucket at all: their attempt comes through the standard input, ``-`` for the file.
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
"""Exit code of whoever was to run a spec that is not the one that was claimed (EX_NOPERM of sysexits.h)."""
CHANGED_LATER: Final = "What is to run was changed after this driver began, so its function was not called."
STDIN_ARGUMENT: Final = "-"
"""In place of the attempt's file: the attempt comes through the standard input."""


class SpecChangedError(SpecError):
    """What is to run is not what was claimed. Nothing of it was imported or run, and nothing written."""


def spec_digest(spec: Mapping[str, Any]) -> str:
    """The SHA-256 of the canonical JSON of a spec, the same before it is written and after it is read."""
    plain = json.loads(json.dumps(spec))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def driver_arguments(attempt_file: str, attempt: Attempt) -> list[str]:
    """The arguments of the driver of ``attempt``."""
    return [attempt_file, spec_digest(attempt.spec)]


def load_claimed_spec(attempt_file: str, digest: str) -> tuple[Attempt, StepSpec]:
    """The attempt in a file, and its spec, which is what was claimed.

    Raises:
        SpecChangedError: It is not, or nobody can say.
        StoreError: The store does not answer.
    """
    try:
        attempt = _given() if attempt_file == STDIN_ARGUMENT else retry_store(lambda: read_attempt(attempt_file))
    except (BadAttemptError, RecordFormatError) as error:
        raise SpecChangedError(f"{error} So it is not what was claimed, and nothing of it was run.") from None
    if attempt is None:
        raise SpecChangedError(f"There is no attempt file at {attempt_file}, so nothing was run.")
    if not hmac.compare_digest(spec_digest(attempt.spec), digest):
        raise SpecChangedError(
            f"What {attempt_file} says is to run is not what was claimed: somebody has changed it since, so nothing of "
            "it was run. Look who may write there, and clear the task to claim a new attempt."
        )
    return attempt, StepSpec.from_json(attempt.spec)


def load_spec_from_argv(arguments: Sequence[str]) -> tuple[Attempt, StepSpec]:
    """``load_claimed_spec`` by the first two arguments; says in one sentence what is wrong with them and ends, if
    something is.

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
    """A file without a name that holds ``attempt``, for the standard input of its driver."""
    with tempfile.TemporaryFile() as file:
        file.write(attempt.to_json().encode())
        file.seek(0)
        yield file


def _given() -> Attempt:
    return Attempt.from_json(sys.stdin.read())
