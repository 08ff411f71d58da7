"""S3 server on the loopback for s3fs; it enforces each ``If-Match`` and ``If-None-Match``.

With ``keeps_conditions`` off it ignores them, as some real stores do.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import unquote
from xml.sax.saxutils import escape, unescape

from tradewind.rehearsal.cloud.cloud_storage import timestamp
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer

RANGE = re.compile(r"bytes=(\d+)-(\d*)")
CODES = {404: "NoSuchKey", 412: "PreconditionFailed", 409: "ConditionalRequestConflict", 503: "SlowDown"}


@dataclass(frozen=True)
class S3Object:
    data: bytes
    written: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


class LocalS3(LoopbackServer):
    """The server; the kinds of its requests are read, head, list, write, copy, delete and bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_conditions = True
        self.ignores: frozenset[str] = frozenset()
        """Conditional headers that the server ignores if the object exists."""
        self.buckets: dict[str, dict[str, S3Object]] = {}

    def answer(self, call: HttpRequest) -> Answer:
        bucket, _, key = unquote(call.path).lstrip("/").partition("/")
        objects = self.buckets.get(bucket)
        if objects is None:
            return self.refusal("bucket", 404, "The specified bucket does not exist", "NoSuchBucket")
        match call.method, bool(key):
            case "GET", True:
                return self._part(self._get("read", objects.get(key)), call.headers.get("Range", ""))
            case "HEAD", True:
                return self._get("head", objects.get(key))
            case "PUT", True:
                return self._put(call, objects, key)
            case "DELETE", True:
                objects.pop(key, None)
                return Answer("delete", 204)
            case "GET", False:
                return self._list(call, bucket, objects)
            case "POST", False if "delete" in call.query:
                return self._delete_many(call, objects)
        return Answer("bucket") if call.method == "HEAD" else self.refusal("unknown", 400, "not served here")

    def refusal(self, kind: str, status: int, message: str, code: str = "", condition: str = "") -> Answer:
        code = code or CODES.get(status, "InvalidRequest")
        about = f"<Code>{code}</Code><Message>{message}</Message><Condition>{condition}</Condition>"
        return _xml(kind, f"<Error>{about}</Error>", status)

    def _get(self, kind: str, found: S3Object | None) -> Answer:
        if found is None:
            return self.refusal(kind, 404, "The specified key does not exist.")
        modified = formatdate(found.written, usegmt=True)
        length = {"Content-Length": str(len(found.data))}  # aiohttp omits this header for an empty body
        return Answer(kind, 200, found.data, {"ETag": found.etag, "Last-Modified": modified, **length})

    def _part(self, whole: Answer, wanted: str) -> Answer:
        requested = RANGE.fullmatch(wanted)
        if whole.status != 200 or not requested:
            return whole
        data = whole.body[int(requested[1]) : int(requested[2] or len(whole.body)) + 1]
        if not data:
            return self.refusal("read", 416, "The requested range is not satisfiable", "InvalidRange")
        return Answer("read", 206, data, {**whole.headers, "Content-Length": str(len(data))})

    def _put(self, call: HttpRequest, objects: dict[str, S3Object], key: str) -> Answer:
        found = objects.get(key)
        wanted = call.headers.get("If-Match")
        if self.keeps_conditions and wanted is not None and found is None:
            return self.refusal("write", 404, "The specified key does not exist.")
        is_another = found is not None and (found.etag != wanted if wanted else "If-None-Match" in call.headers)
        about = "If-Match" if wanted else "If-None-Match"
        if self.keeps_conditions and is_another and about not in self.ignores:
            return self.refusal("write", 412, "A pre-condition did not hold", condition=about)
        if source := unquote(call.headers.get("x-amz-copy-source", "")):
            bucket, _, name = source.lstrip("/").partition("/")
            objects[key] = S3Object(self.buckets[bucket][name].data, self.clock())
            return _xml("copy", f"<CopyObjectResult><ETag>{escape(objects[key].etag)}</ETag></CopyObjectResult>")
        objects[key] = S3Object(call.body, self.clock())
        return Answer("write", headers={"ETag": objects[key].etag})

    def _delete_many(self, call: HttpRequest, objects: dict[str, S3Object]) -> Answer:
        result = ""
        for wanted in re.findall(r"<Object>(.*?)</Object>", call.body.decode(), re.DOTALL):
            key, etag = (_element(wanted, name) for name in ("Key", "ETag"))
            found = objects.get(key)
            if self.keeps_conditions and etag and found is not None and found.etag != etag:
                result += f"<Error><Key>{escape(key)}</Key><Code>PreconditionFailed</Code></Error>"
            else:
                objects.pop(key, None)
                result += f"<Deleted><Key>{escape(key)}</Key></Deleted>"
        return _xml("delete", f"<DeleteResult>{result}</DeleteResult>")

    def _list(self, call: HttpRequest, bucket: str, objects: dict[str, S3Object]) -> Answer:
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        after, limit = call.query.get("continuation-token", ""), int(call.query.get("max-keys", 1000))
        entries: dict[str, str] = {}
        for key in sorted(name for name in objects if name.startswith(prefix)):
            rest, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            folder = prefix + rest + delimiter
            entries[folder if found else key] = _folder(folder) if found else _entry(key, objects[key])
        page = [name for name in entries if name > after][:limit]
        more = bool(page) and page[-1] != list(entries)[-1]
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        about = f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        return _xml("list", f"<ListBucketResult>{about}{token}{''.join(entries[n] for n in page)}</ListBucketResult>")


def _element(text: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return unescape(found[1], {"&quot;": '"', "&#34;": '"', "&#13;": "\r"}) if found else ""


def _folder(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _entry(key: str, found: S3Object) -> str:
    about = f"<Key>{escape(key)}</Key><LastModified>{timestamp(found.written)}</LastModified>"
    return f"<Contents>{about}<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>"


def _xml(kind: str, text: str, status: int = 200) -> Answer:
    return Answer(kind, status, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), {"Content-Type": "text/xml"})
