"""Loopback Weights & Biases server: the protocol that its client needs to send and resume a run."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.recipes.lm.model_hub import LoopbackServer, QuietHandler

PROJECT = {"id": "UHJv", "name": "p", "entity": {"id": "RW50", "name": "people"}}


class WandbServer(LoopbackServer):
    """Server that records runs.

    Attributes:
        runs: Run ID → variables of the last request that made or changed the run.
        made: Number of requests to resume a run that did not exist.
        history: Run ID → its rows.
        files: Name of an uploaded file → content.
        keys: ``Authorization`` header of each API request.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.files: dict[str, bytes] = {}
        self.keys: set[str | None] = set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: the client has ended."""

    def answer_query(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket(" in query:
            was_there = given["name"] in self.runs
            self.runs[given["name"]] = self.runs.get(given["name"], {}) | {k: v for k, v in given.items() if v}
            return {"upsertBucket": {"bucket": self.bucket(given["name"]), "inserted": not was_there}}
        if "RunResumeStatus" in query:
            found = self.bucket(given["name"]) if given["name"] in self.runs else None
            self.made += found is None
            return {"model": PROJECT | {"bucket": found}}
        if "createRunFiles(" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "UnVu", "uploadHeaders": [], "files": files}}
        if "createArtifact(" in query:
            made = {"id": "QXJ0", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "QXJ0"}}}
            return {"createArtifact": {"artifact": made}}
        if "ArtifactType" in query:
            return {"project": {"artifact": None}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        if "viewer" in query:
            return {"viewer": {"id": "VXNl", "entity": "people", "flags": "{}", "teams": {"edges": []}}}
        return {}

    def bucket(self, name: str) -> dict[str, Any]:
        rows = self.history.get(name, [])
        tail = json.dumps([json.dumps(row) for row in rows[-1:]])
        counts = {"logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(rows)}
        texts = {"config": "{}", "summaryMetrics": "{}", "historyTail": tail, "eventsTail": "[]", "wandbConfig": "{}"}
        return {"id": "UnVu", "name": name, "displayName": name, "tags": [], "project": PROJECT} | counts | texts

    def take_rows(self, path: str, body: dict[str, Any]) -> None:
        part = body.get("files", {}).get("wandb-history.jsonl")
        if part is not None:
            rows = self.history.setdefault(path.split("/")[-2], [])
            rows[part["offset"] :] = map(json.loads, part["content"])


class Handler(QuietHandler):
    server: WandbServer

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/graphql":
            self.server.keys.add(self.headers.get("Authorization"))
            asked = json.loads(body)
            found = self.server.answer_query(asked["query"], asked.get("variables") or {})
            return self.answer({"data": found})
        if self.path.endswith("/file_stream"):
            self.server.take_rows(self.path, json.loads(body))
        self.answer({})

    def do_PUT(self) -> None:
        self.server.files[self.path.removeprefix("/upload/")] = self.body()
        self.answer({})

    def do_GET(self) -> None:
        self.answer({})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            found = b"".join(parts)
        else:
            found = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(found) if self.headers.get("Content-Encoding") == "gzip" else found

    def answer(self, told: dict[str, Any]) -> None:
        self.send(json.dumps(told).encode(), headers={"Content-Type": "application/json"})
