"""Conditional writes to Google Cloud Storage: the tag of an object is its generation, which every write changes.

Calls go through gcsfs, so they share credentials and connections with all other reads of a process, and with them the
fresh start after a fork. It passes preconditions on and hands out the answer's own ``Date``, against which an object's
age is told.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Coroutine, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from fsspec.core import url_to_fs

from tradewind.records.errors import StoreUnavailableError
from tradewind.records.stores import PATIENCE_S, Stored, StoreRefusedError

_REREADS = 5


class GcsStore:
    """Buckets of Cloud Storage, or of a server that ``STORAGE_EMULATOR_HOST`` names."""

    def read(self, path: str) -> Stored | None:
        return _ask(path, _read)

    def write(self, path: str, text: str, expected: str | None) -> Stored | None:
        return _ask(path, lambda fs, bucket, name: _write(fs, bucket, name, text, expected))


async def _read(fs: Any, bucket: str, name: str) -> Stored | None:
    """The object's generation and age, then its text; again if it was replaced between the two."""
    url = _object_url(fs, bucket, name)
    for _ in range(_REREADS):
        try:
            headers, contents = await fs._call("GET", url)
        except FileNotFoundError:
            return None
        about = json.loads(contents)
        try:
            _, data = await fs._call("GET", url, alt="media", generation=about["generation"])
        except FileNotFoundError:
            continue
        return Stored(data.decode(), about["generation"], _age(about, headers))
    raise StoreUnavailableError(f"gs://{bucket}/{name} changes faster than it can be read")


async def _write(fs: Any, bucket: str, name: str, text: str, expected: str | None) -> Stored | None:
    url = f"{fs._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o"
    conditions = {"uploadType": "media", "name": name, "ifGenerationMatch": expected or "0"}
    headers = {"Content-Type": "application/json"}
    try:
        _, contents = await fs._call("POST", url, headers=headers, data=text.encode(), **conditions)
    except FileExistsError:  # which is what gcsfs makes of 412
        return None
    except FileNotFoundError as error:
        raise StoreRefusedError(f"gs://{bucket}: there is no such bucket, or it is not for us") from error
    return Stored(text, json.loads(contents)["generation"], 0.0)


def _object_url(fs: Any, bucket: str, name: str) -> str:
    return f"{fs._location}/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def _age(about: Mapping[str, Any], headers: Mapping[str, str]) -> float:
    """From the last change to the answer, both by the server's clock; ``Date`` has whole seconds, so never too old."""
    updated = datetime.datetime.fromisoformat(about["updated"])
    return max(0.0, (parsedate_to_datetime(headers["Date"]) - updated).total_seconds())


def _ask(path: str, call: Callable[[Any, str, str], Coroutine[Any, Any, Stored | None]]) -> Stored | None:
    """Run ``call`` within our patience, and tell failures by what they mean for the caller."""
    import requests
    from aiohttp import ClientError
    from fsspec.asyn import sync
    from gcsfs.retry import HttpError
    from google.auth.exceptions import GoogleAuthError

    try:
        fs, name = url_to_fs(path)
        bucket, _, key = name.partition("/")
        return sync(fs.loop, lambda: asyncio.wait_for(call(fs, bucket, key), PATIENCE_S))  # type: ignore[no-any-return]
    except TimeoutError as error:
        raise StoreUnavailableError(f"{path}: Cloud Storage gave no usable answer for {PATIENCE_S:.0f} s") from error
    except HttpError as error:
        kind = StoreUnavailableError if error.code in _PASSING else StoreRefusedError
        raise kind(f"{path}: Cloud Storage answered {error}") from error
    except (ClientError, requests.RequestException, GoogleAuthError, ConnectionError) as error:
        raise StoreUnavailableError(f"{path}: Cloud Storage cannot be reached: {error}") from error
    except (OSError, ValueError) as error:
        raise StoreRefusedError(f"{path}: Cloud Storage refused: {error}") from error


_PASSING = frozenset({408, 429, *range(500, 600)})
