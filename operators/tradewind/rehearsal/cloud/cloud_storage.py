"""Local Cloud Storage: the JSON API that google-cloud-storage and gcsfs use, with all preconditions.

Both clients find it when ``STORAGE_EMULATOR_HOST`` is its ``url``. Its state is in memory: buckets of objects. Each
write creates a generation, each change checks its conditions. No method waits, so callers on one event loop see every
change as atomic.
"""

from __future__ import annotations

import base64
import bisect
import datetime
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import google_crc32c

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer, RefusedError, json_answer

_CHANGEABLE = ("contentType", "cacheControl", "contentEncoding", "contentDisposition", "contentLanguage", "metadata")


@dataclass(frozen=True)
class CloudObject:
    """One generation of an object.

    Attributes:
        fields: Fields that the writer sets, such as content type and custom metadata.
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
        """Return the object in the JSON API's form."""
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
    """A bucket, its objects by name, and a cache of their names in order."""

    name: str
    location: str
    created: float
    objects: dict[str, CloudObject] = field(default_factory=dict)
    order: list[str] | None = None

    def resource(self) -> dict[str, Any]:
        """Return the bucket in the JSON API's form."""
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
        """Return all names in order, and the index of the first that is not before ``start``."""
        if self.order is None:
            self.order = sorted(self.objects)
        return self.order, bisect.bisect_left(self.order, start)


@dataclass(frozen=True)
class Conditions:
    """Preconditions of a request, ``ifGenerationMatch`` and the like; None where absent."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @staticmethod
    def of(query: Mapping[str, str], condition: str = "if") -> Conditions:
        """Read the conditions of a query; ``condition`` is ``ifSource`` for those on a copy's source."""
        names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
        return Conditions(*(int(query[condition + name]) if condition + name in query else None for name in names))

    def check(self, found: CloudObject | None, is_read: bool = False) -> None:
        """Refuse the request if ``found`` fails a condition; a missing object has generation 0."""
        generation, metageneration = (found.generation, found.metageneration) if found else (0, 0)
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise RefusedError(412, "At least one of the pre-conditions you specified did not hold.")
        if self.not_generation == generation or (found and self.not_metageneration == metageneration):
            raise RefusedError(304 if is_read else 412, "The object is the one that you excluded.")


class Buckets:
    """All buckets of one cloud; ``clock`` stamps their objects."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._newest_generation = 0

    def create(self, name: str, location: str = "US") -> Bucket:
        """Create a bucket."""
        if name in self._buckets:
            raise RefusedError(409, f"Your previous request to create the named bucket {name} succeeded.")
        self._buckets[name] = Bucket(name, location.upper(), self._clock())
        return self._buckets[name]

    def bucket(self, name: str) -> Bucket:
        """Return the bucket of that name."""
        if name not in self._buckets:
            raise RefusedError(404, f"The specified bucket does not exist: {name}")
        return self._buckets[name]

    def buckets(self) -> list[Bucket]:
        """Return all buckets by name."""
        return sorted(self._buckets.values(), key=lambda bucket: bucket.name)

    def drop(self, name: str) -> None:
        """Delete an empty bucket."""
        if self.bucket(name).objects:
            raise RefusedError(409, "The bucket you tried to delete is not empty.")
        del self._buckets[name]

    def get(self, bucket: str, name: str, query: Mapping[str, str], condition: str = "if") -> CloudObject:
        """Return the object, on the conditions of a read."""
        found = self.bucket(bucket).objects.get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise RefusedError(404, f"No such object: {bucket}/{name}")
        Conditions.of(query, condition).check(found, is_read=condition == "if")
        return found

    def put(
        self, bucket: str, name: str, data: bytes, fields: Mapping[str, Any], query: Mapping[str, str]
    ) -> CloudObject:
        """Write a new generation, on the query's conditions."""
        objects = self.bucket(bucket)
        Conditions.of(query).check(objects.objects.get(name))
        now = self._clock()
        self._newest_generation = max(self._newest_generation + 1, int(now * 1e6))
        changeable = {key: fields[key] for key in _CHANGEABLE if key in fields}
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        sums = md5, base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        if any(fields.get(key, value) != value for key, value in zip(("md5Hash", "crc32c"), sums, strict=True)):
            raise RefusedError(400, "Provided checksum does not match the data.")
        written = CloudObject(bucket, name, data, changeable, self._newest_generation, 1, now, now, *sums)
        if name not in objects.objects:
            objects.order = None
        objects.objects[name] = written
        return written

    def patch(self, bucket: str, name: str, fields: Mapping[str, Any], query: Mapping[str, str]) -> CloudObject:
        """Change an object's metadata; its generation stays."""
        found = self._to_change(bucket, name, query)
        changeable = dict(found.fields) | {key: fields[key] for key in _CHANGEABLE if key in fields}
        changed = replace(found, fields=changeable, metageneration=found.metageneration + 1, updated=self._clock())
        self.bucket(bucket).objects[name] = changed
        return changed

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Delete the object, on the query's conditions."""
        self._to_change(bucket, name, query)
        self.bucket(bucket).order = None
        del self.bucket(bucket).objects[name]

    def list(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one page of a listing; the next page's token is the last name or prefix of this one."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit, after = int(query.get("maxResults", 1000)), query.get("pageToken", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "")
        found = self.bucket(bucket)
        names, index = found.names_from(max(prefix, after, start))
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = ""
        while index < len(names) and names[index].startswith(prefix) and not (end and names[index] >= end):
            name = names[index]
            if len(items) + len(prefixes) == limit:
                return _page(items, prefixes, last)
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            folder = name[: cut + len(delimiter)] if cut >= 0 else ""
            last = folder or name
            index = bisect.bisect_left(names, folder[:-1] + chr(ord(folder[-1]) + 1)) if folder else index + 1
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
    """Format a time as the JSON API does."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _page(items: list[dict[str, Any]], prefixes: list[str], next_token: str | None = None) -> dict[str, Any]:
    parts = {"items": items, "prefixes": prefixes, "nextPageToken": next_token}
    return {"kind": "storage#objects"} | {key: value for key, value in parts.items() if value}


_OBJECT = r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)"
_OBJECTS = r"/storage/v1/b/([^/]+)/o"
_BUCKET = r"/storage/v1/b/([^/]+)"
_BUCKETS = r"/storage/v1/b/?"
_UPLOAD = r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o"
_COPY = _OBJECT + r"/(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_PIECE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


@dataclass
class _Upload:
    """A resumable upload in progress."""

    bucket: str
    fields: Mapping[str, Any]
    query: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)


class LocalCloudStorage(LoopbackServer):
    """The server; the kinds of requests are get, read, list, write, delete, patch, copy and bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = Buckets(self.clock)
        self.rewrite_bytes = 1 << 40
        """Bytes of an object copied per request; the client continues a larger copy with further requests."""
        self._uploads: dict[str, _Upload] = {}
        self._uploaded: dict[str, Answer] = {}
        """Final answers of resumable uploads, for clients that repeat a request after losing the answer."""
        routes: list[tuple[str, str, str, Callable[..., Answer]]] = [
            ("GET", _OBJECT, "get", self._get),
            ("GET", _OBJECTS, "list", self._list),
            ("POST", _UPLOAD, "write", self._upload),
            ("PUT", _UPLOAD, "write", self._continue_upload),
            ("DELETE", _UPLOAD, "write", self._cancel_upload),
            ("DELETE", _OBJECT, "delete", self._delete),
            ("PATCH", _OBJECT, "patch", self._patch),
            ("POST", _COPY, "copy", self._copy),
            ("GET", _BUCKET, "bucket", self._get_bucket),
            ("DELETE", _BUCKET, "bucket", self._drop_bucket),
            ("GET", _BUCKETS, "bucket", self._list_buckets),
            ("POST", _BUCKETS, "bucket", self._create_bucket),
        ]
        self._routes = [(method, re.compile(path), kind, serve) for method, path, kind, serve in routes]

    def answer(self, call: HttpRequest) -> Answer:
        for method, pattern, kind, serve in self._routes:
            if method == call.method and (found := pattern.fullmatch(call.path)):
                try:
                    return serve(call, *map(unquote, found.groups()))
                except RefusedError as error:
                    return self.refusal(kind, error.status, str(error))
        return self.refusal("unknown", 404, f"{call.method} {call.path} is not served here")

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        if status == 304:
            return Answer(kind, status)
        error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global"}]}
        return json_answer(kind, {"error": error}, status)

    def _get(self, call: HttpRequest, bucket: str, name: str) -> Answer:
        found = self.buckets.get(bucket, name, call.query)
        if call.query.get("alt") == "media":
            return _content(found, call.headers.get("Range", ""))
        return json_answer("get", found.resource())

    def _list(self, call: HttpRequest, bucket: str) -> Answer:
        return json_answer("list", self.buckets.list(bucket, call.query))

    def _upload(self, call: HttpRequest, bucket: str) -> Answer:
        match call.query.get("uploadType"):
            case "media":
                fields = {"name": call.query["name"], "contentType": call.headers.get("Content-Type", "")}
                return self._put(bucket, fields, call.body, call.query)
            case "multipart":
                fields, data = _related_parts(call)
                return self._put(bucket, fields, data, call.query)
        if "upload_id" in call.query:
            return self._continue_upload(call, bucket)
        upload_id = uuid.uuid4().hex
        self.buckets.bucket(bucket)
        self._uploads[upload_id] = _Upload(bucket, _fields_of(call), call.query)
        location = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
        return Answer("bucket", headers={"Location": location})

    def _continue_upload(self, call: HttpRequest, bucket: str) -> Answer:
        upload_id = call.query.get("upload_id", "")
        if upload_id in self._uploaded:
            return self._uploaded[upload_id]
        upload = self._uploads.get(upload_id)
        piece = _PIECE.fullmatch(call.headers.get("Content-Range", f"bytes 0-0/{len(call.body)}"))
        if upload is None or piece is None:
            raise RefusedError(404, "No such upload.")
        if piece[1] is not None:
            del upload.data[int(piece[1]) :]
            upload.data += call.body
        if piece[2] == "*" or int(piece[2]) > len(upload.data):
            arrived = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
            return Answer("piece", 308, headers=arrived)
        del self._uploads[upload_id]
        self._uploaded[upload_id] = self._put(upload.bucket, upload.fields, bytes(upload.data), upload.query)
        return self._uploaded[upload_id]

    def _cancel_upload(self, call: HttpRequest, bucket: str) -> Answer:
        self._uploads.pop(call.query.get("upload_id", ""), None)
        return Answer("piece", 499)

    def _put(self, bucket: str, fields: Mapping[str, Any], data: bytes, query: Mapping[str, str]) -> Answer:
        name = str(fields.get("name") or query["name"])
        return json_answer("write", self.buckets.put(bucket, name, data, fields, query).resource())

    def _delete(self, call: HttpRequest, bucket: str, name: str) -> Answer:
        self.buckets.delete(bucket, name, call.query)
        return Answer("delete", 204)

    def _patch(self, call: HttpRequest, bucket: str, name: str) -> Answer:
        return json_answer("patch", self.buckets.patch(bucket, name, _fields_of(call), call.query).resource())

    def _copy(self, call: HttpRequest, bucket: str, name: str, how: str, to_bucket: str, to_name: str) -> Answer:
        source = self.buckets.get(bucket, name, call.query, condition="ifSource")
        copied_bytes = int(call.query.get("rewriteToken", "0")) + self.rewrite_bytes
        if how == "rewriteTo" and copied_bytes < len(source.data):
            return json_answer("copy", {"done": False, "rewriteToken": str(copied_bytes)})
        fields = {**source.fields, **_fields_of(call)}
        copied = self.buckets.put(to_bucket, to_name, source.data, fields, call.query).resource()
        if how == "copyTo":
            return json_answer("copy", copied)
        size = str(len(source.data))
        progress = {"kind": "storage#rewriteResponse", "done": True, "objectSize": size, "totalBytesRewritten": size}
        return json_answer("copy", progress | {"resource": copied})

    def _get_bucket(self, call: HttpRequest, bucket: str) -> Answer:
        return json_answer("bucket", self.buckets.bucket(bucket).resource())

    def _drop_bucket(self, call: HttpRequest, bucket: str) -> Answer:
        self.buckets.drop(bucket)
        return Answer("bucket", 204)

    def _list_buckets(self, call: HttpRequest) -> Answer:
        return json_answer("bucket", {"items": [bucket.resource() for bucket in self.buckets.buckets()]})

    def _create_bucket(self, call: HttpRequest) -> Answer:
        fields = _fields_of(call)
        return json_answer("bucket", self.buckets.create(fields["name"], fields.get("location", "US")).resource())


def _fields_of(call: HttpRequest) -> dict[str, Any]:
    return dict(json.loads(call.body)) if call.body else {}


def _content(found: CloudObject, wanted: str) -> Answer:
    """Return an object's bytes, or the requested range."""
    headers = {
        "Content-Type": found.resource()["contentType"],
        "ETag": found.etag,
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Metageneration": str(found.metageneration),
        "X-Goog-Hash": f"crc32c={found.crc32c},md5={found.md5}",
        "X-Goog-Storage-Class": "STANDARD",
    }
    requested = _RANGE.fullmatch(wanted)
    if requested is None:
        return Answer("read", 200, found.data, headers)
    size = len(found.data)
    start = int(requested[1]) if requested[1] else max(0, size - int(requested[2]))
    end = min(int(requested[2]), size - 1) if requested[1] and requested[2] else size - 1
    if start >= size:
        raise RefusedError(416, "The requested range cannot be satisfied.")
    return Answer("read", 206, found.data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{size}"})


def _related_parts(call: HttpRequest) -> tuple[dict[str, Any], bytes]:
    """Return metadata and data of a multipart upload."""
    boundary = call.headers["Content-Type"].partition("boundary=")[2].strip("\"'").encode()
    pieces = call.body.split(b"--" + boundary)
    if len(pieces) != 4:
        raise RefusedError(400, "Expected two parts.")
    (_, metadata), (headers, data) = map(_part, pieces[1:3])
    kind = re.search(rb"content-type: *([^\r\n]+)", headers, re.IGNORECASE)
    return ({"contentType": kind[1].decode()} if kind else {}) | json.loads(metadata), data


def _part(piece: bytes) -> tuple[bytes, bytes]:
    newline = b"\r\n" if piece.startswith(b"\r\n") else b"\n"
    headers, _, data = piece.removeprefix(newline).partition(newline * 2)
    return headers, data.removesuffix(newline)
