"""Address, token and TLS settings of a Ray cluster, as a value: one process can serve many clusters."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from tradewind.ray_jobs.errors import BadAddressError, BadTokenError

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_MAX_ADDRESS_CHARS: Final = 2000
_MAX_FILE_BYTES: Final = 64 * 1024


def job_path(job: str) -> str:
    """Return the path of a job in the Jobs API: any text names only the job with exactly this ID."""
    name = quote(job, safe="", errors="replace")
    return f"/api/jobs/{name if name.strip('.') else '%252E'}"  # URLs drop dots, and no job has such an ID


def is_token(text: str) -> bool:
    """Return whether an HTTP header can carry ``text``; clients reject others with errors that show them."""
    return _TOKEN.fullmatch(text) is not None


@dataclass(frozen=True)
class RayCluster:
    """Access to a cluster's Jobs API.

    Attributes:
        name: The ID of its Airflow connection.
        address: URL of its dashboard, such as ``http://10.0.0.2:8265``.
        token: Bearer token, if the cluster requires one. Sent as a header with every call, never put into the
            environment.
        verify: Whether to check its TLS certificate, or the path of the CA bundle to check it with.
    """

    name: str
    address: str
    token: str | None = field(default=None, repr=False)
    verify: bool | str = True

    def __post_init__(self) -> None:
        if any(mark in self.address for mark in "@?#"):
            raise BadAddressError(
                f"Ray cluster {self.name!r}: its address has a user name, a query or a fragment (not shown, since "
                "that may be a secret and every log names the address): write it as http://HOST:8265, and put the "
                "token into the password field of the connection."
            )
        if not _is_dashboard(self.address):
            raise BadAddressError(
                f"Ray cluster {self.name!r}: its address (not shown, as it may hold a secret) is no dashboard "
                "address; write it as http://HOST:8265 in the host field of the connection."
            )
        if self.token and not is_token(self.token):
            raise BadTokenError(
                f"Ray cluster {self.name!r}: the token holds a space, a line break or another character that no HTTP "
                "header can carry, or more than 4096 of them: enter it again."
            )

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def job_url(self, job: str) -> str:
        """Return the URL of a job's dashboard page."""
        return f"{self.address.rstrip('/')}/#/jobs/{quote(job, safe='', errors='replace')}"

    def log_url(self, job: str) -> str:
        """Return the URL of a job's whole log."""
        return f"{self.address.rstrip('/')}{job_path(job)}/logs"

    def __str__(self) -> str:
        return f"Ray cluster {self.name!r} ({self.address})"


def _is_dashboard(address: str) -> bool:
    try:
        parts = urlsplit(address)
        if not address.isprintable() or " " in address or len(address) > _MAX_ADDRESS_CHARS:
            return False
        is_host = (parts.hostname or "").strip(".") not in ("", "http", "https")  # "http://" alone is no host
        return parts.scheme in ("http", "https") and is_host and parts.port != 0
    except ValueError:  # a port that is no number, or half an IPv6 address
        return False


class BadTokenFileError(Exception):
    """A token file is unusable; the text continues a sentence that names the file."""


def read_token_file(file: str | Path) -> str:
    """Return the token in ``file``, which only its owner may be able to access.

    Raises:
        BadTokenFileError: Users other than its owner can access it, or it holds no valid token.
        OSError: The file cannot be read.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        found = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(found):
            raise BadTokenFileError("is no regular file.")
        mode = stat.S_IMODE(found)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadTokenFileError(
                f"is accessible to users other than its owner (mode {mode:04o}): run 'chmod 600' on it."
            )
        token = opened.read(_MAX_FILE_BYTES).decode(errors="replace").strip()
    if not token:
        raise BadTokenFileError("is empty.")
    if not is_token(token):
        raise BadTokenFileError(
            "holds no valid token (not shown): a token has up to 4096 letters, digits and signs, without spaces "
            "or line breaks."
        )
    return token
