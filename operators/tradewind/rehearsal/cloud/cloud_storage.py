"""Cloud Storage on this machine: the part of its JSON API that google-cloud-storage and gcsfs use, with every
precondition kept. Both find it when ``STORAGE_EMULATOR_HOST`` is its ``url``.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tradewind.rehearsal.cloud.buckets import Buckets, CloudObject, RefusedError
from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer

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
    """A resumable upload under way."""

    bucket: str
    fields: Mapping[str, Any]
    query: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)


class LocalCloudStorage(LoopbackServer):
    """The server; the kinds of its requests are get, read, list, write, delete, patch, copy and bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = Buckets(self.clock)
        self.rewrite_bytes = 1 << 40
        """So much of an object is copied at a time; whoever copies a larger one asks on."""
        self._uploads: dict[str, _Upload] = {}
        self._uploaded: dict[str, Answer] = {}
        """What was said at the end of each resumable upload: whoever has not heard it asks again."""
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
        return _told(kind, {"error": error}, status)

    def _get(self, call: HttpRequest, bucket: str, name: str) -> Answer:
        found = self.buckets.get(bucket, name, call.query)
        if call.query.get("alt") == "media":
            return _content(found, call.headers.get("Range", ""))
        return _told("get", found.resource())

    def _list(self, call: HttpRequest, bucket: str) -> Answer:
        return _told("list", self.buckets.list(bucket, call.query))

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
        return _told("write", self.buckets.put(bucket, name, data, fields, query).resource())

    def _delete(self, call: HttpRequest, bucket: str, name: str) -> Answer:
        self.buckets.delete(bucket, name, call.query)
        return Answer("delete", 204)

    def _patch(self, call: HttpRequest, bucket: str, name: str) -> Answer:
        return _told("patch", self.buckets.patch(bucket, name, _fields_of(call), call.query).resource())

    def _copy(self, call: HttpRequest, bucket: str, name: str, how: str, to_bucket: str, to_name: str) -> Answer:
        source = self.buckets.get(bucket, name, call.query, about="ifSource")
        copied_bytes = int(call.query.get("rewriteToken", "0")) + self.rewrite_bytes
        if how == "rewriteTo" and copied_bytes < len(source.data):
            return _told("copy", {"done": False, "rewriteToken": str(copied_bytes)})
        fields = {**source.fields, **_fields_of(call)}
        copied = self.buckets.put(to_bucket, to_name, source.data, fields, call.query).resource()
        if how == "copyTo":
            return _told("copy", copied)
        size = str(len(source.data))
        told = {"kind": "storage#rewriteResponse", "done": True, "objectSize": size, "totalBytesRewritten": size}
        return _told("copy", told | {"resource": copied})

    def _get_bucket(self, call: HttpRequest, bucket: str) -> Answer:
        return _told("bucket", self.buckets.bucket(bucket).resource())

    def _drop_bucket(self, call: HttpRequest, bucket: str) -> Answer:
        self.buckets.drop(bucket)
        return Answer("bucket", 204)

    def _list_buckets(self, call: HttpRequest) -> Answer:
        return _told("bucket", {"items": [bucket.resource() for bucket in self.buckets.buckets()]})

    def _create_bucket(self, call: HttpRequest) -> Answer:
        fields = _fields_of(call)
        return _told("bucket", self.buckets.create(fields["name"], fields.get("location", "US")).resource())


def _fields_of(call: HttpRequest) -> dict[str, Any]:
    return dict(json.loads(call.body)) if call.body else {}


def _told(kind: str, resource: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(kind, status, json.dumps(resource).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _content(found: CloudObject, wanted: str) -> Answer:
    """An object's bytes, or the range of them that is wanted."""
    headers = {
        "Content-Type": found.resource()["contentType"],
        "ETag": found.etag,
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Metageneration": str(found.metageneration),
        "X-Goog-Hash": f"crc32c={found.crc32c},md5={found.md5}",
        "X-Goog-Storage-Class": "STANDARD",
    }
    asked = _RANGE.fullmatch(wanted)
    if asked is None:
        return Answer("read", 200, found.data, headers)
    size = len(found.data)
    start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
    end = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
    if start >= size:
        raise RefusedError(416, "The requested range cannot be satisfied.")
    return Answer("read", 206, found.data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{size}"})


def _related_parts(call: HttpRequest) -> tuple[dict[str, Any], bytes]:
    """The metadata and the data of a multipart upload."""
    boundary = call.headers["Content-Type"].partition("boundary=")[2].strip("\"'").encode()
    pieces = call.body.split(b"--" + boundary)
    if len(pieces) != 4:
        raise RefusedError(400, "Expected two parts.")
    (_, about), (headers, data) = map(_part, pieces[1:3])
    kind = re.search(rb"content-type: *([^\r\n]+)", headers, re.IGNORECASE)
    return ({"contentType": kind[1].decode()} if kind else {}) | json.loads(about), data


def _part(piece: bytes) -> tuple[bytes, bytes]:
    newline = b"\r\n" if piece.startswith(b"\r\n") else b"\n"
    headers, _, data = piece.removeprefix(newline).partition(newline * 2)
    return headers, data.removesuffix(newline)
