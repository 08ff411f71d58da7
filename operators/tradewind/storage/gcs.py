"""Conditional writes to Google Cloud Storage: an object's tag is its generation, which every write changes.

Calls go through gcsfs, so they share the process's credentials and connections, and the new start after a fork. gcsfs
passes preconditions through and exposes the response's ``Date``, against which an object's age is measured.
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
from tradewind.storage.client import call_with_timeout, gather_bounded, read_at_most
from tradewind.storage.errors import StoreUnavailableError

_MAX_READS = 5
_REWRITE_TIMEOUT_S = 120.0
"""Timeout of one step of a copy between regions, which takes longer than a small request."""
_AT_ONCE = 100
"""The number of connections that gcsfs's session keeps."""


class GcsStore:
    """Buckets of Cloud Storage, or of a server that ``STORAGE_EMULATOR_HOST`` names."""

    def read(self, path: str) -> StoredObject | None:
        return call_with_timeout(path, _read)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        return call_with_timeout(path, lambda fs, bucket, name: _write(fs, bucket, name, text, expected))

    def remove(self, path: str, expected: str) -> None:
        call_with_timeout(path, lambda fs, bucket, name: remove_if(fs, {f"{bucket}/{name}": expected}))


async def _read(fs: Any, bucket: str, name: str) -> StoredObject | None:
    """Read the object's generation and age, then its text; repeat if it was replaced between the two."""
    url = _object_url(fs, bucket, name)
    for _ in range(_MAX_READS):
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
    except FileExistsError:  # gcsfs raises it for 412
        return None
    except FileNotFoundError as error:
        raise StoreRefusedError(f"gs://{bucket}: there is no such bucket, or no access to it") from error
    return StoredObject(text, json.loads(contents)["generation"], 0.0)


def rewrite_object(source: str, generation: str, target: str, check: Callable[[], object]) -> Mapping[str, Any] | None:
    """Let the store copy a generation of ``source`` to ``target``, if nothing exists there.

    ``check`` is called before each step of the copy; a large object takes many.

    Returns:
        The store's metadata of the copy; empty if the target exists; None if the source was replaced.
    """
    token: str | None = None
    while True:
        check()
        rewrite = partial(_rewrite, source=source, generation=generation, token=token)
        answer = call_with_timeout(target, rewrite, _REWRITE_TIMEOUT_S)
        if not answer:
            return answer
        if answer.get("done"):
            return dict(answer["resource"])
        token = answer["rewriteToken"]


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
    except FileExistsError:  # gcsfs raises it for 412, whichever condition failed
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
    """Return the time from the last change to the response, both by the server's clock.

    ``Date`` has whole seconds, so the age is never too large.
    """
    updated = datetime.datetime.fromisoformat(about["updated"])
    return max(0.0, (parsedate_to_datetime(headers["Date"]) - updated).total_seconds())


async def contents_of(fs: Any, names: Sequence[str], max_bytes: int) -> dict[str, bytes]:
    """Return the bytes of those objects that exist, at most ``max_bytes`` + 1 of each."""
    return await _fetch(fs, names, max_bytes, alt="media")


async def existing_of(fs: Any, names: Sequence[str]) -> set[str]:
    """Return those objects that exist."""
    return set(await _fetch(fs, names, SMALL, fields="name"))


async def remove_if(fs: Any, generations: Mapping[str, str | None]) -> None:
    """Remove those objects that still have these generations."""

    async def remove(name: str) -> None:
        url, generation = _object_url(fs, *name.split("/", 1)), generations[name]
        with suppress(FileNotFoundError, FileExistsError):  # it is gone or replaced (gcsfs: 412)
            await fs._call("DELETE", url, ifGenerationMatch=generation)

    await gather_bounded(remove, list(generations), _AT_ONCE)


async def _fetch(fs: Any, names: Sequence[str], max_bytes: int, **query: str) -> dict[str, bytes]:
    """Fetch responses for many objects through gcsfs's session: its own calls cost nearly twice the work.

    A missing object costs the same as an existing one. Other failures are left to gcsfs and its retries.
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
                    return await read_at_most(answer.content, max_bytes) if answer.status == 200 else None
        except ClientError:
            pass
        return await _fetch_with_retries(fs, url, max_bytes, query)

    return await gather_bounded(fetch, names, _AT_ONCE)


async def _fetch_with_retries(fs: Any, url: str, max_bytes: int, query: Mapping[str, str]) -> bytes | None:
    try:
        if "alt" in query:
            _, about = await fs._call("GET", url, fields="size")
            if int(json.loads(about)["size"]) > max_bytes:
                return bytes(max_bytes + 1)
        _, data = await fs._call("GET", url, **query)
        return bytes(data)
    except FileNotFoundError:
        return None
