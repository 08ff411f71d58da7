"""Calls to fsspec's asynchronous file systems, in their event loop, with a timeout."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fsspec.asyn import sync

from tradewind.storage import Location, StorageError, file_system_at
from tradewind.storage import backends as stores
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import RecordsError, StoreUnavailableError
from tradewind.timeouts import within

_TRANSIENT = frozenset({408, 409, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""
_ANSWERS = (FileNotFoundError, FileExistsError, NotADirectoryError)
_REFUSALS = (PermissionError, IsADirectoryError)


@contextmanager
def translated_client_errors(path: str) -> Iterator[None]:
    """Translate failures of any store's client to Tradewind's errors, which name ``path``.

    ``FileNotFoundError``, ``FileExistsError`` and errors that no store can cause stay as they are.

    Raises:
        StoreUnavailableError: The store does not answer, or is temporarily unavailable.
        StoreRefusedError: It refuses access.
    """
    try:
        yield
    except (StorageError, *_ANSWERS):
        raise
    except Exception as error:
        if (translated := _translated(path, error)) is None:
            raise
        raise translated from error


def http_answer(error: BaseException) -> tuple[int, str]:
    """Return status and code of the response behind ``error``; 0 if there was none."""
    if isinstance(code := getattr(error, "code", None), int):
        return code, ""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def _translated(path: str, error: Exception) -> RecordsError | None:
    status, _ = http_answer(error)
    if status:
        kind = StoreUnavailableError if status in _TRANSIENT else StoreRefusedError
        return kind(f"{path}: the store answered {status}: {error}")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(f"{path}: the store has not answered for {stores.REQUEST_TIMEOUT_S:.0f} s")
    if isinstance(error, _lost_connections()):
        return StoreUnavailableError(f"{path}: the store cannot be reached: {error}")
    if isinstance(error, _REFUSALS) or (isinstance(error, OSError) and error.errno is None):
        return StoreRefusedError(f"{path}: the store refuses access: {error}")
    return StoreUnavailableError(f"{path}: the store fails: {error}") if isinstance(error, OSError) else None


def _lost_connections() -> tuple[type[Exception], ...]:
    """Return the exceptions that the loaded clients raise without a response."""
    kinds: list[type[Exception]] = [ConnectionError]
    if "aiohttp" in sys.modules:
        from aiohttp import ClientError

        kinds.append(ClientError)
    if "gcsfs" in sys.modules:
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        kinds += [GoogleAuthError, RequestException]
    if "s3fs" in sys.modules:
        from botocore.exceptions import BotoCoreError

        kinds.append(BotoCoreError)
    return tuple(kinds)


Result = TypeVar("Result")

_shared: dict[tuple[int, str], Any] = {}
"""The file system per process and protocol. fsspec would make one per thread, each with its own client."""
_connecting: dict[int, threading.Lock] = {}
"""One lock per process: a fork copies a lock that another thread holds."""


def file_system_of(path: str) -> tuple[Any, str]:
    """Return the file system of ``path`` and its name there; a new one, with new connections, after a fork."""
    scheme = Location.of(path).scheme
    if scheme not in ("gs", "s3"):
        return file_system_at(path)
    key = (os.getpid(), scheme)
    if (found := _shared.get(key)) is None:
        with _connecting.setdefault(os.getpid(), threading.Lock()):
            if (found := _shared.get(key)) is None:
                found = _shared[key] = _connected(file_system_at(path)[0])
    return found, str(found._strip_protocol(path))


def _connected(fs: Any) -> Any:
    """Give an S3 file system its only client.

    s3fs 2026.2 makes another client, of 0.3 s, for each call that begins before the first has a connection.
    """
    if "s3" in fs.protocol:
        client = sync(fs.loop, fs.set_session)

        async def set_session(refresh: bool = False, kwargs: object = None) -> Any:
            return client

        fs.set_session = set_session
    return fs


def call_with_timeout(
    path: str, call: Callable[[Any, str, str], Awaitable[Result]], timeout_s: float | None = None
) -> Result:
    """Return ``call(...)`` for the file system, bucket and key of ``path``; the default is ``REQUEST_TIMEOUT_S``."""
    with translated_client_errors(path):
        fs, name = file_system_of(path)
        bucket, _, key = name.partition("/")
        limit_s = stores.REQUEST_TIMEOUT_S if timeout_s is None else timeout_s
        result: Result = sync(fs.loop, lambda: asyncio.wait_for(call(fs, bucket, key), limit_s))
        return result


def call_method(path: str, method: str, *args: Any, requests: int = 1, **options: Any) -> Any:
    """Return the result of a method of the store's client, such as ``info``, within ``requests`` request timeouts.

    ``FileNotFoundError`` stays. A disk has no event loop, and no timeout.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    limit_s = requests * stores.REQUEST_TIMEOUT_S
    with translated_client_errors(path):
        fs, _ = file_system_of(path)
        if not fs.async_impl:
            return getattr(fs, method)(*args, **options)
        try:
            return sync(fs.loop, lambda: asyncio.wait_for(getattr(fs, f"_{method}")(*args, **options), limit_s))
        except TimeoutError as error:
            raise StoreUnavailableError(f"{path}: the store has not answered for {limit_s:.0f} s") from error


async def gather_bounded(
    call: Callable[[str], Awaitable[Result | None]], names: Sequence[str], workers: int
) -> dict[str, Result]:
    """Return the result of ``call`` for each name that has one, from ``workers`` concurrent tasks."""
    results: dict[str, Result] = {}
    waiting: Iterator[str] = iter(names)

    async def work() -> None:
        for name in waiting:
            async with within(stores.REQUEST_TIMEOUT_S):
                result = await call(name)
            if result is not None:
                results[name] = result

    tasks = [asyncio.create_task(work()) for _ in range(min(workers, len(names)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return results


async def read_at_most(stream: Any, max_bytes: int) -> bytes:
    """Read a stream, at most ``max_bytes`` + 1 bytes."""
    parts: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (part := await stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
