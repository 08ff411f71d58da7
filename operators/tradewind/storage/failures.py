"""What a client's error means for whoever asked: the store may answer later, or it said no.

What is not there, or there already, is an answer and stays ``FileNotFoundError`` or ``FileExistsError``. Errors that no
store could cause stay what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tradewind.storage import StorageError
from tradewind.storage import backends as stores
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import RecordsError, StoreUnavailableError

_PASSING = frozenset({408, 409, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""
_ANSWERS = (FileNotFoundError, FileExistsError, NotADirectoryError)
_REFUSALS = (PermissionError, IsADirectoryError)


@contextmanager
def failures_told(path: str) -> Iterator[None]:
    """Turn failures of any store's client into ours, which name ``path``.

    Raises:
        StoreUnavailableError: The store does not answer, or not now.
        StoreRefusedError: It does not let us.
    """
    try:
        yield
    except (StorageError, *_ANSWERS):
        raise
    except Exception as error:
        told = _told(path, error)
        if told is None:
            raise
        raise told from error


def answered(error: BaseException) -> tuple[int, str]:
    """Status and code of the answer that a client made ``error`` of; 0 when there was none."""
    if isinstance(code := getattr(error, "code", None), int):
        return code, ""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def _told(path: str, error: Exception) -> RecordsError | None:
    status, _ = answered(error)
    if status:
        kind = StoreUnavailableError if status in _PASSING else StoreRefusedError
        return kind(f"{path}: the store answered {status}: {error}")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(f"{path}: the store gave no usable answer for {stores.PATIENCE_S:.0f} s")
    if isinstance(error, _lost_connections()):
        return StoreUnavailableError(f"{path}: the store cannot be reached: {error}")
    if isinstance(error, _REFUSALS) or (isinstance(error, OSError) and error.errno is None):
        return StoreRefusedError(f"{path}: the store does not let us: {error}")
    return StoreUnavailableError(f"{path}: the store fails: {error}") if isinstance(error, OSError) else None


def _lost_connections() -> tuple[type[Exception], ...]:
    """What the clients that are loaded raise without an answer."""
    kinds: list[type[Exception]] = [ConnectionError]
    if "gcsfs" in sys.modules:
        from aiohttp import ClientError
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        kinds += [ClientError, GoogleAuthError, RequestException]
    if "s3fs" in sys.modules:
        from botocore.exceptions import ConnectionError as BotoConnectionError
        from botocore.exceptions import HTTPClientError

        kinds += [BotoConnectionError, HTTPClientError]
    return tuple(kinds)
