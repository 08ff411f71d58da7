"""The token of a ``ray`` connection: from its password field, a file of mode 0600, or Secret Manager; one of the three.

Wherever it comes from, it is masked in logs before anyone can use it. What Secret Manager gave, or why it gave
nothing, is kept in this process for a while, so that hundreds of tasks on one cluster ask once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tradewind.ray_jobs.errors import BadTokenError, RayJobsError, RayUnreachableError
from tradewind.ray_jobs.token_file import BadTokenFileError, read_token_file
from tradewind.steps import SecretReference

if TYPE_CHECKING:
    from airflow.sdk import Connection

KEPT_S = 300.0
KEPT_FAILURE_S = 15.0
_NOT_SHOWN = "(not shown, for it may be the token itself)"


def token_of(connection: Connection) -> str | None:
    """The token that ``connection`` names, masked in logs from now on; None if it names none. It may block.

    Raises:
        BadTokenError: There are two sources, or the one that there is does not give a token.
        RayUnreachableError: Secret Manager does not answer.
    """
    token = _read(connection)
    if token:
        from airflow.sdk.log import mask_secret

        mask_secret(token)
    return token


def forget_token(connection: Connection) -> bool:
    """Drop what is kept for ``connection``, because the cluster refuses it; whether asking anew can help."""
    return secret_tokens.forget(_text(connection.extra_dejson, "token_secret"))


def _read(connection: Connection) -> str | None:
    extra = connection.extra_dejson
    file, secret = _text(extra, "token_file"), _text(extra, "token_secret")
    whose = f"Connection {connection.conn_id!r}"
    if sum(map(bool, (connection.password, file, secret))) > 1:
        raise BadTokenError(
            f"{whose} names its token more than once: fill in one of password, token_file and token_secret."
        )
    if file:
        return _token_in_file(file, whose)
    if secret:
        return _token_in_secret(secret, whose)
    return connection.password or None


def _text(extra: Mapping[str, Any], name: str) -> str:
    return str(extra.get(name) or "").strip()


def _token_in_file(path: str, whose: str) -> str:
    if not os.path.isabs(path) or "\0" in path:
        raise BadTokenError(
            f"{whose}: token_file names no whole path (it is not shown, for it may be the token itself): give an "
            "absolute path."
        )
    try:
        return read_token_file(path)
    except BadTokenFileError as error:
        raise BadTokenError(f"{whose}: token_file {path} {error}") from None
    except OSError as error:
        shown = path if os.path.isdir(os.path.dirname(path)) and path.count("/") > 1 else _NOT_SHOWN
        raise BadTokenError(f"{whose}: token_file {shown} cannot be read here ({error.strerror}).") from None


def _token_in_secret(name: str, whose: str) -> str:
    reference = SecretReference.parse(name)
    if reference is None or reference.version is None:
        raise BadTokenError(
            f"{whose}: token_secret is no name of a secret (it is not shown, for it may be the token itself): write "
            "projects/PROJECT/secrets/SECRET."
        )
    return secret_tokens.get(name, lambda: _fetch(reference, whose))


def _fetch(reference: SecretReference, whose: str) -> str:
    from tradewind.cloud_tpu.secret_manager import SecretManagerError, SecretManagerUnreachableError, read_secret

    try:
        token = read_secret(str(reference)).strip()
    except SecretManagerUnreachableError as error:
        raise RayUnreachableError(f"{whose}: the token cannot be read from {reference}: {error}.") from None
    except SecretManagerError as error:
        raise BadTokenError(f"{whose}: the token cannot be read from {reference}: {error}.") from None
    if not token:
        raise BadTokenError(f"{whose}: {reference} is empty.")
    return token


@dataclass
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: str | RayJobsError | None = field(default=None, repr=False)
    until: float = 0.0


class KeptTokens:
    """What was fetched, by the name of its secret, for ``KEPT_S``; a failure for ``KEPT_FAILURE_S``.

    Threads that want the same secret at once wait for one of them to fetch it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def get(self, name: str, fetch: Callable[[], str]) -> str:
        """The token in the secret ``name``."""
        with self._lock:
            kept = self._kept.setdefault(name, _Kept())
        with kept.lock:
            if kept.found is None or self._clock() >= kept.until:
                self._renew(kept, fetch)
            if isinstance(kept.found, RayJobsError):
                raise type(kept.found)(*kept.found.args)
            assert kept.found is not None
            return kept.found

    def forget(self, name: str) -> bool:
        """Fetch it anew next time; whether anything was kept."""
        with self._lock:
            return self._kept.pop(name, None) is not None

    def _renew(self, kept: _Kept, fetch: Callable[[], str]) -> None:
        try:
            kept.found, lifetime = fetch(), KEPT_S
        except RayJobsError as error:
            kept.found, lifetime = error.with_traceback(None), KEPT_FAILURE_S
        kept.until = self._clock() + lifetime


secret_tokens = KeptTokens()
