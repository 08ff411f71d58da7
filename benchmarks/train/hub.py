"""A hub with one data set of equally large files."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Final
from urllib.parse import unquote

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer

REPO: Final = "bench/data"
COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
_HEAD_BYTES: Final = 32


def make_hub(files: int, file_bytes: int, latency_s: float) -> BenchHub:
    """Return a hub for ``benchmarks.processes.served``."""
    hub = BenchHub(files, file_bytes)
    hub.latency_s = latency_s
    return hub


class BenchHub(LoopbackServer):
    """Serves the part of the hub's API that its client and Tradewind use."""

    def __init__(self, files: int, file_bytes: int) -> None:
        super().__init__()
        rest = random.Random(0).randbytes(file_bytes - _HEAD_BYTES)
        self._files = {f"data/{number:05}.bin": f"{number:0{_HEAD_BYTES}}".encode() + rest for number in range(files)}
        self._sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in self._files.items()}

    def answer(self, call: HttpRequest) -> Answer:
        path = unquote(call.path)
        name = path.rpartition(f"/resolve/{COMMIT}/")[2]
        if name in self._files:
            return self._file(call, name)
        if path.startswith(f"/api/datasets/{REPO}/tree/"):
            return Answer("list", body=json.dumps([self._entry(each) for each in self._files]).encode())
        siblings = [{"rfilename": each} for each in self._files]
        return Answer("info", body=json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode())

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return Answer(kind, status, message.encode())

    def _file(self, call: HttpRequest, name: str) -> Answer:
        headers = {
            "ETag": f'"{self._sha256[name]}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{self._sha256[name]}"',
            "X-Linked-Size": str(len(self._files[name])),
            "Accept-Ranges": "bytes",
        }
        if call.method == "HEAD":
            return Answer("head", headers=headers | {"Content-Length": str(len(self._files[name]))})
        return Answer("read", body=self._files[name], headers=headers)

    def _entry(self, name: str) -> dict[str, object]:
        size = len(self._files[name])
        lfs = {"oid": self._sha256[name], "size": size, "pointerSize": 134}
        return {"type": "file", "path": name, "size": size, "oid": "0" * 40, "lfs": lfs}
