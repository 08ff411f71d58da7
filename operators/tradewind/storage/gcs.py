"""Conditional writes to Google Cloud Storage: the tag of an object is its generation, which every write changes.

Calls go through gcsfs, so they share credentials and connections with all other reads of a process, and with them the
fresh start after a fork. It passes preconditions on and hands out the answer's own ``Date``, against which an object's
age is told.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from tradewind.storage.backends import StoredObject, StoreRefusedError
from tradewind.storage.bounded_read import SMALL, content_of, too_large
from tradewind.storage.client import call_with_timeout, gather_bounded
from tradewind.storage.errors import StoreUnavailableError

_REREADS = 5
_REWRITE_S = 120.0
"""A step of a copy between regions takes longer than a small request."""
_AT_ONCE = 100
"""As many connections as gcsfs's session keeps."""


class GcsStore:
    """Buckets of Cloud Storage, or of a server that ``STORAGE_EMULATOR_HOST`` names."""

    def read(self, path: str) -> StoredObject | None:
        return call_with_timeout(path, _read)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        return call_with_timeout(path, lambda fs, bucket, name: _write(fs, bucket, name, text, expected))

    def remove(self, path: str, expected: str) -> None:
        call_with_timeout(path, lambda fs, bucket, name: remove_if(fs, {f"{bucket}/{name}": expected}))


async def _read(fs: Any, bucket: str, name: str) -> StoredObject | None:
    """The object's generation and age, then its text; again if it was replaced between the two."""
    url = _object_url(fs, bucket, name)
    for _ in range(_REREADS):
        try:
            headers, contents = await fs._call("GET", url)
        except FileNotFoundError:
            return None
        about = json.loads(contents)
        if int(about["size"]) > SMALL:
            return StoredObject("", about["generation"], _age(about, headers), too_large(SMALL).flaw)
        try:
            _, data = await fs._call("GET", url, alt="media", generation=about["generation"])
        except FileNotFoundError:
            continue
        content = content_of(data, SMALL)
        return StoredObject(content.text, about["generation"], _age(about, headers), content.flaw)
    raise StoreUnavailableError(f"gs://{bucket}/{name} changes faster than it can be read")


async def _write(fs: Any, bucket: str, name: str, text: str, expected: str | None) -> StoredObject | None:
    url = f"{fs._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o"
    conditions = {"uploadType": "media", "name": name, "ifGenerationMatch": expected or "0"}
    headers = {"Content-Type": "application/json"}
    try:
        _, contents = await fs._call("POST", url, headers=headers, data=text.encode(), **conditions)
    except FileExistsError:  # which is what gcsfs makes of 412
        return None
    except FileNotFoundError as error:
        raise StoreRefusedError(f"gs://{bucket}: there is no such bucket, or it is not for us") from error
    return StoredObject(text, json.loads(contents)["generation"], 0.0)


def rewrite_object(source: str, generation: str, target: str, go_on: Callable[[], object]) -> Mapping[str, Any] | None:
    """Have the store copy that generation of ``source`` to ``target``, if nothing is there.

    ``go_on`` is asked before each of its steps, of which a large object takes many.

    Returns:
        What the store says of the copy; nothing if something is at the target; None if the source is another by now.
    """
    token: str | None = None
    while True:
        go_on()
        told = call_with_timeout(
            target, partial(_rewrite, source=source, generation=generation, token=token), _REWRITE_S
        )
        if told is None or not told:
            return told
        if told.get("done"):
            return dict(told["resource"])
        token = told["rewriteToken"]


async def _rewrite(
    fs: Any, bucket: str, name: str, source: str, generation: str, token: str | None
) -> Mapping[str, Any] | None:
    from_bucket, _, from_name = str(fs._strip_protocol(source)).partition("/")
    url = f"{_object_url(fs, from_bucket, from_name)}/rewriteTo/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
    conditions = {"sourceGeneration": generation, "ifSourceGenerationMatch": generation, "ifGenerationMatch": "0"}
    more = {"rewriteToken": token} if token else {}
    try:
        _, contents = await fs._call("POST", url, headers={"Content-Type": "application/json"}, **conditions, **more)
    except FileNotFoundError:
        return None
    except FileExistsError:  # which is what gcsfs makes of 412, of whichever condition
        return {} if await _generation(fs, source) == generation else None
    return dict(json.loads(contents))


async def _generation(fs: Any, path: str) -> str | None:
    bucket, _, name = str(fs._strip_protocol(path)).partition("/")
    try:
        _, contents = await fs._call("GET", _object_url(fs, bucket, name), fields="generation")
    except FileNotFoundError:
        return None
    return str(json.loads(contents)["generation"])


def _object_url(fs: Any, bucket: str, name: str) -> str:
    return f"{fs._location}/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def _age(about: Mapping[str, Any], headers: Mapping[str, str]) -> float:
    """From the last change to the answer, both by the server's clock; ``Date`` has whole seconds, so never too old."""
    updated = datetime.datetime.fromisoformat(about["updated"])
    return max(0.0, (parsedate_to_datetime(headers["Date"]) - updated).total_seconds())


async def contents_of(fs: Any, names: Sequence[str], most: int) -> dict[str, bytes]:
    """The bytes of those objects that exist, of each one more than ``most`` at the most."""
    return await _fetch(fs, names, most, alt="media")


async def existing_of(fs: Any, names: Sequence[str]) -> set[str]:
    """Those objects that exist."""
    return set(await _fetch(fs, names, SMALL, fields="name"))


async def remove_if(fs: Any, generations: Mapping[str, str | None]) -> None:
    """Remove those objects that still have these generations."""

    async def remove(name: str) -> None:
        url, generation = _object_url(fs, *name.split("/", 1)), generations[name]
        with suppress(FileNotFoundError, FileExistsError):  # it is gone, or another one, which gcsfs tells by 412
            await fs._call("DELETE", url, ifGenerationMatch=generation)

    await gather_bounded(remove, list(generations), _AT_ONCE)


async def _fetch(fs: Any, names: Sequence[str], most: int, **query: str) -> dict[str, bytes]:
    """Answers of many objects, straight from gcsfs's session: its own calls take nearly twice the work for each.

    An object that is missing costs no more than one that is there. Any other trouble is left to gcsfs and its retries.
    """
    from aiohttp import ClientError
    from yarl import URL

    session = await fs._set_session()
    headers, suffix = fs._get_headers(None), urlencode(fs._get_params(query))

    async def fetch(name: str) -> bytes | None:
        url = _object_url(fs, *name.split("/", 1))
        try:
            async with session.get(URL(f"{url}?{suffix}", encoded=True), headers=headers) as answer:
                if answer.status in (200, 404):
                    return await read_at_most(answer.content, most) if answer.status == 200 else None
        except ClientError:
            pass
        return await _fetch_with_retries(fs, url, most, query)

    return await gather_bounded(fetch, names, _AT_ONCE)


async def read_at_most(stream: Any, most: int) -> bytes:
    """What a stream holds, but not more than one byte more than ``most``."""
    parts: list[bytes] = []
    left = most + 1
    while left > 0 and (part := await stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


async def _fetch_with_retries(fs: Any, url: str, most: int, query: Mapping[str, str]) -> bytes | None:
    try:
        if "alt" in query:
            _, about = await fs._call("GET", url, fields="size")
            if int(json.loads(about)["size"]) > most:
                return bytes(most + 1)
        _, data = await fs._call("GET", url, **query)
        return bytes(data)
    except FileNotFoundError:
        return None
