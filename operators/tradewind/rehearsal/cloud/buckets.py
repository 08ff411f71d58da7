"""What Cloud Storage keeps, in memory: buckets of objects, each write a new generation, each change on its conditions.

Nothing here waits, so whoever calls from one event loop sees every change whole.
"""

from __future__ import annotations

import base64
import bisect
import datetime
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c

_CHANGEABLE = ("contentType", "cacheControl", "contentEncoding", "contentDisposition", "contentLanguage", "metadata")


class RefusedError(Exception):
    """The answer is this status instead of a resource."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class CloudObject:
    """One generation of an object.

    Attributes:
        fields: What the writer may set: content type, custom metadata and the like.
        created: Seconds since the epoch by the server's clock, as ``updated``.
    """

    bucket: str
    name: str
    data: bytes
    fields: Mapping[str, Any]
    generation: int
    metageneration: int
    created: float
    updated: float
    md5: str
    crc32c: str

    def resource(self) -> dict[str, Any]:
        """The object as the JSON API tells it."""
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "timeCreated": timestamp(self.created),
            "updated": timestamp(self.updated),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": self.etag,
            "storageClass": "STANDARD",
            "contentType": "application/octet-stream",
            **self.fields,
        }

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()


@dataclass
class Bucket:
    """A bucket, its objects by name, and their names in order while that is known."""

    name: str
    location: str
    created: float
    objects: dict[str, CloudObject] = field(default_factory=dict)
    order: list[str] | None = None

    def resource(self) -> dict[str, Any]:
        """The bucket as the JSON API tells it."""
        return {
            "kind": "storage#bucket",
            "id": self.name,
            "name": self.name,
            "location": self.location,
            "locationType": "region",
            "metageneration": "1",
            "storageClass": "STANDARD",
            "timeCreated": timestamp(self.created),
            "updated": timestamp(self.created),
        }

    def names_from(self, start: str) -> tuple[list[str], int]:
        """All names in order, and the place of the first that is not before ``start``."""
        if self.order is None:
            self.order = sorted(self.objects)
        return self.order, bisect.bisect_left(self.order, start)


@dataclass(frozen=True)
class Conditions:
    """What a request demands of the object that is there: ``ifGenerationMatch`` and its kin, None where it does not."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @staticmethod
    def of(query: Mapping[str, str], about: str = "if") -> Conditions:
        """Those in a request's query; ``about`` is ``ifSource`` for those on the source of a copy."""
        names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
        return Conditions(*(int(query[about + name]) if about + name in query else None for name in names))

    def check(self, found: CloudObject | None, is_read: bool = False) -> None:
        """Refuse the request if ``found`` is not as demanded; an object that is not there has generation 0."""
        generation, metageneration = (found.generation, found.metageneration) if found else (0, 0)
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise RefusedError(412, "At least one of the pre-conditions you specified did not hold.")
        if self.not_generation == generation or (found and self.not_metageneration == metageneration):
            raise RefusedError(304 if is_read else 412, "The object is the one that you excluded.")


class Buckets:
    """All buckets of one cloud; ``clock`` is the clock that stamps their objects."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._newest_generation = 0

    def create(self, name: str, location: str = "US") -> Bucket:
        """A new bucket."""
        if name in self._buckets:
            raise RefusedError(409, f"Your previous request to create the named bucket {name} succeeded.")
        self._buckets[name] = Bucket(name, location.upper(), self._clock())
        return self._buckets[name]

    def bucket(self, name: str) -> Bucket:
        """The bucket of that name."""
        if name not in self._buckets:
            raise RefusedError(404, f"The specified bucket does not exist: {name}")
        return self._buckets[name]

    def buckets(self) -> list[Bucket]:
        """All buckets by name."""
        return sorted(self._buckets.values(), key=lambda bucket: bucket.name)

    def drop(self, name: str) -> None:
        """Delete an empty bucket."""
        if self.bucket(name).objects:
            raise RefusedError(409, "The bucket you tried to delete is not empty.")
        del self._buckets[name]

    def get(self, bucket: str, name: str, query: Mapping[str, str], about: str = "if") -> CloudObject:
        """The object, on the conditions of a read."""
        found = self.bucket(bucket).objects.get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise RefusedError(404, f"No such object: {bucket}/{name}")
        Conditions.of(query, about).check(found, is_read=about == "if")
        return found

    def put(
        self, bucket: str, name: str, data: bytes, fields: Mapping[str, Any], query: Mapping[str, str]
    ) -> CloudObject:
        """Write a new generation, on the query's conditions."""
        objects = self.bucket(bucket)
        Conditions.of(query).check(objects.objects.get(name))
        now = self._clock()
        self._newest_generation = max(self._newest_generation + 1, int(now * 1e6))
        kept = {key: fields[key] for key in _CHANGEABLE if key in fields}
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        sums = md5, base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        if any(fields.get(key, value) != value for key, value in zip(("md5Hash", "crc32c"), sums, strict=True)):
            raise RefusedError(400, "Provided checksum does not match the data.")
        written = CloudObject(bucket, name, data, kept, self._newest_generation, 1, now, now, *sums)
        if name not in objects.objects:
            objects.order = None
        objects.objects[name] = written
        return written

    def patch(self, bucket: str, name: str, fields: Mapping[str, Any], query: Mapping[str, str]) -> CloudObject:
        """Change what is said of an object; its generation stays."""
        found = self._to_change(bucket, name, query)
        kept = dict(found.fields) | {key: fields[key] for key in _CHANGEABLE if key in fields}
        changed = replace(found, fields=kept, metageneration=found.metageneration + 1, updated=self._clock())
        self.bucket(bucket).objects[name] = changed
        return changed

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Delete the object, on the query's conditions."""
        self._to_change(bucket, name, query)
        self.bucket(bucket).order = None
        del self.bucket(bucket).objects[name]

    def list(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
        """One page of a listing; the token of the next is the last name or prefix of this one."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit, after = int(query.get("maxResults", 1000)), query.get("pageToken", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "")
        found = self.bucket(bucket)
        names, place = found.names_from(max(prefix, after, start))
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = ""
        while place < len(names) and names[place].startswith(prefix) and not (end and names[place] >= end):
            name = names[place]
            if len(items) + len(prefixes) == limit:
                return _page(items, prefixes, last)
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            folder = name[: cut + len(delimiter)] if cut >= 0 else ""
            last = folder or name
            place = bisect.bisect_left(names, folder[:-1] + chr(ord(folder[-1]) + 1)) if folder else place + 1
            if last <= after:
                continue
            if folder:
                prefixes.append(folder)
            else:
                items.append(found.objects[name].resource())
        return _page(items, prefixes)

    def _to_change(self, bucket: str, name: str, query: Mapping[str, str]) -> CloudObject:
        found = self.bucket(bucket).objects.get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise RefusedError(404, f"No such object: {bucket}/{name}")
        Conditions.of(query).check(found)
        return found


def timestamp(seconds: float) -> str:
    """A time as the JSON API writes it."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _page(items: list[dict[str, Any]], prefixes: list[str], next_token: str | None = None) -> dict[str, Any]:
    parts = {"items": items, "prefixes": prefixes, "nextPageToken": next_token}
    return {"kind": "storage#objects"} | {key: value for key, value in parts.items() if value}
