"""A lease whose file cannot be read blocks its output until a person has looked at it.

It may be somebody's turn, or a result: whoever guessed could let two write at once, or take half an output for a whole.
"""

from __future__ import annotations

import posixpath
import shlex

from tradewind.records.leases.lease import LEASE_FILE, Lease
from tradewind.storage import Location
from tradewind.storage.errors import RecordsError


class UnreadableLeaseError(RecordsError):
    """The lease of an output cannot be read, so nothing is made, reused or removed there."""

    def __init__(self, output_path: str, lease: Lease) -> None:
        file = posixpath.join(output_path, lease.flawed_file)
        what = "lease" if lease.flawed_file == LEASE_FILE else "status"
        super().__init__(
            f"The {what} {file} cannot be read, because {lease.flaw}: whose turn it is there cannot be said, so "
            "nothing is made, reused or removed. If a newer Tradewind wrote it, update this one; else, when nobody is "
            f"at work there, remove it with `{_removal(file)}`."
        )


def check_readable(output_path: str, lease: Lease | None) -> None:
    """Refuse to go on where the lease cannot be read.

    Raises:
        UnreadableLeaseError: It cannot.
    """
    if lease is not None and lease.flaw is not None:
        raise UnreadableLeaseError(output_path, lease)


def _removal(file: str) -> str:
    at = Location.of(file)
    match at.scheme:
        case "gs":
            return f"gcloud storage rm {shlex.quote(f'gs://{at.bucket}/{at.name}')}"
        case "s3":
            return f"aws s3 rm {shlex.quote(f's3://{at.bucket}/{at.name}')}"
    return f"rm {shlex.quote(at.name)}"
