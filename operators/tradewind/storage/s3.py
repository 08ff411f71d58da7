"""Conditional writes to S3: an object's tag is its ETag, as ``If-Match`` and ``If-None-Match`` require.

Calls go through s3fs, for its credentials, its connections and its new start after a fork. A store that speaks S3 but
ignores those two headers would let every writer win, so each bucket is tested before the first write.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from tradewind.storage import UnsupportedStoreError
from tradewind.storage.backends import REQUEST_TIMEOUT_S, StoredObject, StoreRefusedError
from tradewind.storage.bounded_read import SMALL, content_of
from tradewind.storage.client import call_with_timeout, gather_bounded, http_answer, read_at_most
from tradewind.timeouts import within

_AT_ONCE = 50
_CONFLICT = 409
"""Another conditional write was in progress; S3 asks for a retry."""

_proven: set[tuple[str | None, str]] = set()
"""Endpoints and buckets known to respect conditions."""


class S3Store:
    """Buckets of S3, or of a server that speaks its protocol."""

    def read(self, path: str) -> StoredObject | None:
        return call_with_timeout(path, _read)

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        async def write(fs: Any, bucket: str, key: str) -> StoredObject | None:
            await _prove(fs, bucket, key)
            tag = await _put(fs, bucket, key, text, expected)
            return None if tag is None else StoredObject(text, tag, 0.0)

        return call_with_timeout(path, write)

    def remove(self, path: str, expected: str) -> None:
        call_with_timeout(path, lambda fs, bucket, name: remove_if(fs, {f"{bucket}/{name}": expected}))


async def _read(fs: Any, bucket: str, key: str) -> StoredObject | None:
    try:
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
    except FileNotFoundError:
        return None
    async with answer["Body"] as body:
        content = content_of(await read_at_most(body, SMALL), SMALL)
    date = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    age_s = (date - answer["LastModified"]).total_seconds()  # both by the server's clock
    return StoredObject(content.text, answer["ETag"], max(0.0, float(age_s)), content.flaw)


async def _put(fs: Any, bucket: str, key: str, text: str, expected: str | None) -> str | None:
    """Return the tag of the written object, or None if the expected object was not there."""
    condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
    while True:
        try:
            answer = await fs._call_s3("put_object", Bucket=bucket, Key=key, Body=text.encode(), **condition)
            return str(answer["ETag"])
        except OSError as error:
            status, code = http_answer(error)
            if code == "NoSuchBucket":
                raise StoreRefusedError(f"s3://{bucket}: there is no such bucket, or no access to it") from error
            if status == 412 or code == "NoSuchKey":
                return None
            if status != _CONFLICT:
                raise
            await asyncio.sleep(0.1)


async def _prove(fs: Any, bucket: str, key: str) -> None:
    """Write with conditions that cannot hold: a store that executes the write ignores conditions."""
    if (fs.endpoint_url, bucket) in _proven:
        return
    probe = f"{key}.probe-{uuid.uuid4().hex}"
    ignored = await _ignored_condition(fs, bucket, probe)
    await fs._call_s3("delete_object", Bucket=bucket, Key=probe)
    if ignored is not None:
        raise UnsupportedStoreError(f"s3://{bucket}: this store ignores {ignored}, so a step could run twice")
    _proven.add((fs.endpoint_url, bucket))


async def _ignored_condition(fs: Any, bucket: str, probe: str) -> str | None:
    """Return the header that the store ignores: for no object, for any object, or for another object."""
    if await _put(fs, bucket, probe, "", '"never"') is not None:
        return "If-Match"
    await _put(fs, bucket, probe, "", None)
    if await _put(fs, bucket, probe, "again", None) is not None:
        return "If-None-Match"
    return "If-Match" if await _put(fs, bucket, probe, "again", '"never"') is not None else None


async def contents_of(fs: Any, names: Sequence[str], max_bytes: int) -> dict[str, bytes]:
    """Return the bytes of those objects that exist, at most ``max_bytes`` + 1 of each."""

    async def fetch(name: str) -> bytes | None:
        bucket, _, key = name.partition("/")
        try:
            answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None
        async with answer["Body"] as body:
            return await read_at_most(body, max_bytes)

    return await gather_bounded(fetch, names, _AT_ONCE)


async def remove_if(fs: Any, etags: Mapping[str, str | None]) -> None:
    """Remove those objects that still have these ETags, in one request: they share a bucket."""
    if not etags:
        return
    keys = {name.split("/", 1)[1]: etag for name, etag in etags.items()}
    wanted = [{"Key": key, "ETag": etag} if etag else {"Key": key} for key, etag in keys.items()]
    bucket = next(iter(etags)).split("/", 1)[0]
    async with within(REQUEST_TIMEOUT_S):
        answer = await fs._call_s3("delete_objects", Bucket=bucket, Delete={"Objects": wanted, "Quiet": True})
    for refused in answer.get("Errors", ()):
        code = refused.get("Code")
        if code not in ("PreconditionFailed", "NoSuchKey"):
            kind = PermissionError if code == "AccessDenied" else OSError
            raise kind(f"{bucket}/{refused.get('Key')}: {code}: {refused.get('Message')}")


async def existing_of(fs: Any, names: Sequence[str]) -> set[str]:
    """Return those objects that exist."""

    async def head(name: str) -> bool | None:
        bucket, _, key = name.partition("/")
        try:
            return bool(await fs._call_s3("head_object", Bucket=bucket, Key=key))
        except FileNotFoundError:
            return None

    return set(await gather_bounded(head, names, _AT_ONCE))
