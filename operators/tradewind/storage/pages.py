"""Pages of the names in a folder of a bucket, which cost the same for ten names and for ten million."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tradewind.storage import Location
from tradewind.storage.client import call_with_timeout

PAGE_NAMES: Final = 1000
"""The most names that both stores give at once."""


@dataclass(frozen=True)
class FolderPage:
    """Some names directly below a folder.

    Attributes:
        entries: Name → facts as fsspec gives them (``type``, ``size``, ``updated`` or ``LastModified``), in order.
        next: Where the next page begins; None at the end.
    """

    entries: Mapping[str, Mapping[str, Any]]
    next: str | None


def has_pages(folder: str) -> bool:
    """Whether the store of a folder gives names in pages; a disk and memory do not."""
    return Location.of(folder).scheme in _ASKS


def list_page(
    folder: str, prefix: str = "", after: str | None = None, limit: int = PAGE_NAMES, timeout_s: float | None = None
) -> FolderPage:
    """List at most ``limit`` names that begin with ``prefix``, in one request; none if there is no such folder.

    Args:
        after: ``next`` of the page before.
        timeout_s: By default that of every request.

    Raises:
        StoreUnavailableError: The store does not answer in time.
        FileNotFoundError: There is no such bucket.
    """
    ask = _ASKS[Location.of(folder).scheme]

    async def call(fs: Any, bucket: str, key: str) -> FolderPage:
        start = f"{key.rstrip('/')}/{prefix}" if key.strip("/") else prefix
        files, folders, following = await ask(fs, bucket, start, after, limit)
        found: dict[str, Mapping[str, Any]] = {name: info for name, info in files.items() if not name.endswith("/")}
        found |= {name.rstrip("/"): {"type": "directory"} for name in folders}
        return FolderPage({name.rpartition("/")[2]: found[name] for name in sorted(found)}, following)

    return call_with_timeout(folder, call, timeout_s)


def list_pages(folder: str) -> Iterator[FolderPage]:
    """Yield all pages of a folder, each as it is wanted; raises what ``list_page`` does."""
    after: str | None = None
    while True:
        page = list_page(folder, after=after)
        yield page
        after = page.next
        if after is None:
            return


Answer = tuple[Mapping[str, Mapping[str, Any]], list[str], str | None]
"""Names of files with their facts, names of folders, and where the next page begins."""


async def _ask_gcs(fs: Any, bucket: str, start: str, after: str | None, limit: int) -> Answer:
    query = {"prefix": start, "delimiter": "/", "maxResults": str(limit), **({"pageToken": after} if after else {})}
    fields = "nextPageToken,prefixes,items(name,size,updated)"
    url = f"{fs._location}/storage/v1/b/{quote(bucket, safe='')}/o"
    _, contents = await fs._call("GET", url, fields=fields, **query)
    answer = json.loads(contents)
    files = {item["name"]: {"size": item["size"], "updated": item["updated"]} for item in answer.get("items", ())}
    return files, answer.get("prefixes", []), answer.get("nextPageToken")


async def _ask_s3(fs: Any, bucket: str, start: str, after: str | None, limit: int) -> Answer:
    more = {"ContinuationToken": after} if after else {}
    answer = await fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=start, Delimiter="/", MaxKeys=limit, **more)
    files = {
        item["Key"]: {"size": item["Size"], "LastModified": item["LastModified"]} for item in answer.get("Contents", ())
    }
    return files, [each["Prefix"] for each in answer.get("CommonPrefixes", ())], answer.get("NextContinuationToken")


_ASKS: Final = {"gs": _ask_gcs, "s3": _ask_s3}
