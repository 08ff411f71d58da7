"""Hostile requests, XComs, records and files at every route of the pages: each answer is judged by one rule.

It shows nothing from outside the roots and no secret, is data that a browser can parse, within the limits of size, or a
refusal with a sentence. Nothing connects anywhere that a request, a file or a record names. The application answers in
this process, with Airflow's database, its simple auth manager, and the plugin's own readers.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.hostile.page_files import AS_BYTES, SECRET, plan_of, write_files, write_outside
from tests.hostile.plan_xcoms import GOOD, HARMLESS, MALFORMED

# Long until the answers that it found wrong are mended and its CPU seconds are measured: then it is for every run.
pytestmark = [pytest.mark.airflow, pytest.mark.long]

ROLES: Final = {"viewer": "VIEWER", "user": "USER", "admin": "ADMIN"}
MAX_BYTES: Final = 17 << 20
"""Of an answer: an image has 16 MB at most, a plan 12, a page of rows 8 and what JSON adds."""
MAX_REFUSAL: Final = 40_000
RUN: Final = "manual__2026-11-29T19:00:00+00:00"
STEP_ROUTES: Final = ("about", "config", "attempts", "metrics", "progress", "evaluation", "versions")
DATA_ROUTES: Final = ("list", "describe", "rows", "text", "image", "download")
BROWSER_PARSES: Final = re.compile(r"application/json")


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON, so no browser parses the answer")


@dataclass
class Server:
    """The application, as users of each role, and what became of their requests."""

    client: Any
    session: Any
    tokens: Mapping[str, str]
    root: Path
    outside: Path
    canary: str
    """Host and port of a server that nothing may connect to."""
    connections: list[str]
    wrong: list[str] = field(default_factory=list)
    asked: int = 0

    def ask(
        self, address: str, role: str = "viewer", /, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Any:
        """Ask as a user of this role, and note what is wrong with the answer."""
        self.asked += 1
        auth = {"Authorization": f"Bearer {self.tokens[role]}"} if role in self.tokens else {}
        answer = self.client.get(address, params=query or None, headers={**auth, **(headers or {})})
        problem = self._problem(answer)
        if problem is None and role == "anonymous" and answer.status_code != 401:
            problem = f"{answer.status_code} without a login"
        if problem is not None:
            self.wrong.append(f"{role} {address[:200]} {str(query)[:200]}: {problem}")
        return answer

    def _problem(self, answer: Any) -> str | None:
        text = answer.text
        shown = text + str(answer.headers)
        numbers = ",".join(map(str, AS_BYTES[:9]))
        if SECRET in shown or numbers in shown.replace(" ", ""):
            return f"{answer.status_code} shows a secret"
        if len(answer.content) > MAX_BYTES:
            return f"{len(answer.content):,} bytes"
        if not (answer.is_success or 400 <= answer.status_code < 500 or answer.status_code == 503):
            return f"{answer.status_code} {text[:300]}"
        if "default-src 'none'" not in answer.headers.get("content-security-policy", ""):
            return "no policy"
        if answer.is_success and not BROWSER_PARSES.match(answer.headers["content-type"]):
            return None
        try:
            found = json.loads(text, parse_constant=_no_constant)
        except (ValueError, AssertionError) as error:
            return f"{answer.status_code} {error}: {text[:100]}"
        if answer.is_success:
            return None
        if not found.get("detail") or len(text) > MAX_REFUSAL or "Traceback" in text:
            return f"{answer.status_code} says nothing, or too much: {len(text):,} characters: {text[:200]}"
        return None

    def put(self, task_id: str, key: str, value: Any, run_id: str = RUN) -> None:
        """Store an XCom."""
        from airflow.models.xcom import XComModel

        number = self.session.query(XComModel).count()
        ids = {"dag_run_id": number, "dag_id": "d", "run_id": run_id, "task_id": task_id, "map_index": -1}
        self.session.add(XComModel(**ids, key=key, value=value))
        self.session.commit()

    def is_harmless(self) -> None:
        """Check all answers since the last call."""
        wrong, self.wrong = self.wrong, []
        assert self.asked
        assert not wrong, f"{len(wrong)} of {self.asked} requests:\n" + "\n".join(wrong[:60])
        assert not self.connections, self.connections


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Connect this process to an empty Airflow database."""
    import airflow
    from airflow.models import import_all_models
    from airflow.models.base import Base

    with pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("database") / "airflow.db"
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{file}")
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", SECRET * 3)
        patch.setenv("AIRFLOW_CONN_RAY_DEFAULT", f"ray://me:{SECRET}@127.0.0.1:9")
        patch.setenv("MARKER_OF_THE_ENVIRONMENT", SECRET)
        airflow.settings.configure_vars()
        airflow.settings.reconfigure_orm()
        import_all_models()
        Base.metadata.create_all(airflow.settings.engine)
        yield
    airflow.settings.configure_vars()
    airflow.settings.reconfigure_orm()


@pytest.fixture(scope="module")
def canary() -> Iterator[tuple[str, list[str]]]:
    """A server on the loopback that notes each connection, from this process or a reader's."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def note() -> None:
            with suppress(OSError):
                while True:
                    peer, address = listening.accept()
                    peer.close()
                    seen.append(str(address))

        threading.Thread(target=note, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", seen
        listening.shutdown(socket.SHUT_RDWR)


_watched: list[str] | None = None


def _watch(event: str, args: Any) -> None:
    if _watched is not None and event in ("socket.connect", "socket.getaddrinfo"):
        _watched.append(f"{event} {args[1:] if event == 'socket.connect' else args}")


@pytest.fixture(scope="module")
def server(database: None, canary: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    global _watched
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from fastapi.testclient import TestClient
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import StaticPool

    from tradewind.browsing.pool import shared_pool

    application = importlib.import_module("tradewind_ui.api.app")
    folder = tmp_path_factory.mktemp("pages")
    root, outside = folder / "root", folder / "outside"
    root.mkdir()
    write_outside(outside)
    manager: Any = create_auth_manager()
    engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)
    XComModel.metadata.create_all(engine, tables=[XComModel.__table__, TaskInstance.__table__])
    fleet_file = folder / "fleet.yaml"
    with pytest.MonkeyPatch.context() as patch, Session(engine) as session:
        patch.chdir(root)
        write_files(root, outside)
        patch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(root))
        patch.setenv("AIRFLOW__TRADEWIND__FLEET_FILE", str(fleet_file))
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://{canary[0]}")
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{canary[0]}")
        patch.setitem(application.pages.dependency_overrides, _get_session, lambda: session)
        tokens = {
            name: manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role)) for name, role in ROLES.items()
        }
        sys.addaudithook(_watch)
        with TestClient(application.app, raise_server_exceptions=False) as client:
            _watched = canary[1]
            yield Server(client, session, tokens, root, outside, *canary)
            _watched = None
        shared_pool().end()


def test_hostile_files_are_shown_or_refused(server: Server) -> None:
    paths = sorted(str(path) for path in server.root.iterdir() if _has_address(str(path)))
    assert len(paths) > 150
    for path in paths:
        is_link = Path(path).is_symlink()
        is_image = path.endswith((".png", ".jpg", ".gif", ".webp"))
        for route in DATA_ROUTES if is_link else ("describe", "image" if is_image else "rows", "text"):
            server.ask(f"/api/data/{route}", path=path)
        if path.endswith((".parquet", "jsonl", ".csv", ".gz", ".zst")):
            server.ask("/api/data/value", path=path, at="0", column="a")
            server.ask("/api/data/rows", path=path, at=0.5, filter="x", chars=20_000, limit=10_000)
    for name in os.listdir(server.root):
        if name.startswith("cache"):
            server.ask("/api/data/rows", path=f"{server.root}/{name}", columns="input_ids", limit=1, chars=20_000)
            server.ask("/api/data/value", path=f"{server.root}/{name}", at="0", column="input_ids")
    server.is_harmless()


def _has_address(path: str) -> bool:
    return path == path.encode(errors="replace").decode()


def test_paths_outside_are_refused(server: Server) -> None:
    root, outside, canary = str(server.root), str(server.outside), server.canary
    paths = [
        "",
        ".",
        "..",
        "/",
        "//",
        "~",
        "etc/passwd",
        "/etc/passwd",
        "/proc/self/environ",
        f"{outside}/secret",
        f"{root}/../outside/secret",
        f"{root}/./../outside/secret",
        f"{root}//..//outside/secret",
        f"{root}x/secret",
        f"{root}/up/outside/secret",
        f"{root}/folder/secret",
        f"{root}/folder/secret.jsonl",
        f"{root}/folder/secret.csv",
        f"{root}/folder/secret.png",
        f"{root}/folder",
        f"{root}/up",
        f"{root}/..",
        f"{root}/%2e%2e/outside/secret",
        quote(f"{outside}/secret", safe=""),
        quote(quote(f"{root}/../outside/secret", safe=""), safe=""),
        f"{root}/..%2foutside%2fsecret",
        f"{root}/..%252foutside",
        f"{root}/..%c0%afoutside",
        f"{root}/..\\outside\\secret",
        f"{root}/\uff0e\uff0e/outside/secret",
        f"{root}/\u2024\u2024/outside",
        f"{root}/.\u200b./outside/secret",
        f"{root}/..\0/outside",
        f"{root}/a.jsonl\0.png",
        f"{outside}/secret\0{root}",
        f"{root}\n/../outside/secret",
        f"file://{outside}/secret",
        f"file://{root}/../outside/secret",
        f"file:{outside}/secret",
        f"local://{outside}/secret",
        f"FILE://{outside}/secret",
        f"file://localhost{outside}/secret",
        f"file:////{outside}/secret",
        f"http://{canary}/x",
        f"https://{canary}/x.parquet",
        f"ftp://{canary}/x",
        f"sftp://{canary}/x",
        f"smb://{canary}/x",
        f"hdfs://{canary}/x",
        f"webhdfs://{canary}/x",
        f"ws://{canary}/x",
        f"ssh://me@{canary}/x",
        f"github://o:r@{canary}/x",
        f"git://{canary}/x",
        f"gs://me:{SECRET[:7]}@bucket/x",
        "gs://bucket/x",
        "gs://",
        "gs:///x",
        "gs:bucket",
        "gcs://b/../x",
        "s3://bucket/x",
        "s3a://bucket/x.parquet",
        "s3://169.254.169.254/latest",
        "memory://x",
        "memory:///",
        "data:,x",
        f"reference://::http://{canary}/x",
        f"simplecache::http://{canary}/x",
        f"zip://x::{root}/link",
        f"tar://x::{root}",
        f"{root}::http://{canary}/x",
        "blockcache::gs://bucket/x",
        "dask://x",
        "cached://x",
        "dir://x",
        "az://c/x",
        "abfs://c/x",
        "hf://datasets/x",
        "jlab://x",
        "libarchive://x",
        "javascript:alert(1)",
        f"//{canary}/x",
        f"\\\\{canary}\\x",
        "CON",
        "C:\\",
        f"{root}/" + "a/" * 2000,
        f"{root}/" + "../" * 1300,
        "x" * 4096,
        f"{root}/" + "\u00e9" * 255,
        f"{root}/loop",
        f"{root}/loop/x",
        f"{root}/pipe.jsonl",
        f"{root}/environ.txt",
        f"{root}/zero.txt",
        f"{root}/socket.txt",
        f"/proc/self/root{outside}/secret",
        "/proc/self/cwd/../outside/secret",
        "/dev/fd/0",
        "/dev/stdin",
        "/dev/tcp/x",
        f"{root}/link/",
        f"{root}/link/.",
        f"{root}/e\u0301.txt/",
        f"{root}/good",
        f" {outside}/secret",
        f"{root} /../outside",
        f"{root}/${{HOME}}",
        "$AIRFLOW_HOME/airflow.cfg",
        "{{ var.value.x }}",
        f"{root}/*",
        f"{root}/[a-z]*",
        f"{root}/**/secret",
    ]
    for path in paths:
        for route in ("list", "text", "download"):
            server.ask(f"/api/data/{route}", path=path)
        server.ask("/api/experiments/outputs", prefix=path)
    server.is_harmless()


def test_odd_parameters_are_refused(server: Server) -> None:
    root = str(server.root)
    numbers = [
        "-1",
        "0",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "0x10",
        "9" * 400,
        "1_0",
        "\u0663",
        "",
        " 1",
        "1;2",
        "1.5",
        "\0",
        "[]",
        "null",
        "-9223372036854775809",
        "9007199254740993",
    ]
    for number in numbers:
        for name in ("start", "at", "limit", "chars"):
            server.ask("/api/data/rows", path=f"{root}/wide.parquet", **{name: number})
        for name in ("offset", "bytes"):
            server.ask("/api/data/text", path=f"{root}/x.md", **{name: number})
        server.ask("/api/data/list", path=root, limit=number)
        server.ask("/api/experiments/outputs", offset=number)
        server.ask("/api/experiments/outputs", limit=number, pinned=number)
        server.ask(f"/api/steps/metrics/d/t/{RUN}", offset=number)
        server.ask(f"/api/steps/about/d/t/{RUN}", map_index=number)
    cursors = [
        "~",
        ":",
        "~1",
        "1:1",
        "9" * 16,
        "9" * 17,
        "~" + "9" * 16,
        "-1",
        "1:0",
        "0:" + "9" * 15,
        "\u0663",
        "1\n",
        "\0",
        "../..",
        SECRET[:3],
        "1000",
        "1" * 1000,
        "~0:0",
        "1:1:1",
        "%00",
        "AAAA",
    ]
    files = [
        "lines.jsonl.gz",
        "scalars.jsonl",
        "bomb.txt.zst",
        "quote.csv",
        "texts.parquet",
        "cache names",
        "blank.jsonl",
    ]
    for cursor in cursors:
        for file in files:
            server.ask("/api/data/rows", path=f"{root}/{file}", cursor=cursor, limit=1)
            server.ask("/api/data/value", path=f"{root}/{file}", at=cursor, column="a")
        server.ask("/api/data/list", path=root, after=cursor)
    texts = [
        "\0",
        "\ud7ff",
        "\u202e",
        "../",
        "a/b",
        "*",
        "%",
        "'",
        '"',
        "x" * 1000,
        "x" * 100_000,
        "a:b",
        ":",
        "value:",
        "\x1b[2J",
        "__proto__",
        "(a+)+$",
        "{{7*7}}",
        "' OR 1=1 --",
        "; DROP TABLE xcom",
    ]
    for text in texts:
        server.ask("/api/data/list", path=root, prefix=text)
        server.ask("/api/data/list", path=root, after=text)
        for file in ("scalars.jsonl", "texts.parquet", "more.csv", "cache names"):
            server.ask("/api/data/rows", path=f"{root}/{file}", filter=text, columns=text)
            server.ask("/api/data/value", path=f"{root}/{file}", at="0", column=text)
        for name in ("text", "producer", "experiment", "file", "state", "prefix"):
            server.ask("/api/experiments/outputs", **{name: text})
        for name in ("version", "name"):
            server.ask(f"/api/steps/metrics/d/t/{RUN}", **{name: text})
        server.ask(f"/api/steps/difference/d/t/{RUN}", old=text, new="aaaaaa")
        server.ask(f"/api/step_history/d/t/{RUN}", against=text)
    for raw in (
        "path",
        "path=",
        "path=a&path=b",
        "path[]=x",
        "path=%ff",
        "path=%ed%a0%80",
        "path=%",
        "%00=x",
        "a" * 60_000,
        "&" * 10_000,
        "path=" + "%2e%2e%2f" * 500,
        "columns=a&" * 201 + f"path={root}/wide.parquet",
        "path=+/etc",
    ):
        for route in ("rows", "text", "list"):
            server.ask(f"/api/data/{route}?{raw}")
    server.is_harmless()


def test_ids_of_routes_lead_nowhere_else(server: Server) -> None:
    ids = [
        "..",
        "%2e%2e",
        "%2e%2e%2f%2e%2e",
        "%252e%252e",
        "~",
        "*",
        "%00",
        "%0a",
        "%1b[2J",
        "%e2%80%ae",
        "%ff",
        "%ed%a0%80",
        "x" * 3000,
        "'%20OR%201=1",
        "%22",
        "d%2ft",
        "e%cc%81",
        "%f0%9f%92%a9",
        "-1",
        "null",
        "%5c",
        "a%3fb",
        "a%23b",
        ";x",
    ]
    routes = [*(f"steps/{route}" for route in STEP_ROUTES), "step_history", "plans"]
    for each in ids:
        for route in routes:
            for path in (f"{each}/t/{RUN}", f"d/{each}/{RUN}", f"d/t/{each}"):
                server.ask(f"/api/{route}/{path}")
        server.ask(f"/static/{each}.js")
        server.ask(f"/static/{each}/../main.js")
        server.ask(f"/{each}/api/data/roots")
    for path in (
        "sources.sha256",
        "..%2fapi%2fapp.py",
        "%2e%2e/web/package.json",
        ".",
        "%00.js",
        "/etc/passwd",
        "x" * 300 + ".js",
    ):
        server.ask(f"/static/{path}", "anonymous-file")
    server.is_harmless()


XCOMS: Final[dict[str, Any]] = {
    **MALFORMED,
    **HARMLESS,
    **{f"{kind} as text": json.dumps(value) for kind, value in MALFORMED.items()},
    "surrogate": plan_of("/\ud800"),
    "surrogate below": plan_of("{root}/\ud800"),
    "texts": plan_of("{root}/x-aaaaaa", reason="\ud800\x1b[2J", name="\ud800", place="\ud800"),
    "not below": plan_of("{outside}/secret"),
    "up": plan_of("{root}/../outside/x-aaaaaa"),
    "link": plan_of("{root}/folder"),
    "canary": plan_of("http://{canary}/x-aaaaaa"),
    "chain": plan_of("simplecache::http://{canary}/x-aaaaaa"),
    "bucket": plan_of("gs://bucket/x-aaaaaa"),
    "s3": plan_of("s3://bucket/x-aaaaaa"),
    "memory": plan_of("memory://x-aaaaaa"),
    "nul": plan_of("{root}/a\0b"),
    "long": plan_of("{root}/" + "a" * 5000),
    "parts": plan_of("{root}/" + "a" * 300),
    "root": plan_of("{root}"),
    "pipe": plan_of("{root}/pipe.jsonl"),
    "loop": plan_of("{root}/loop"),
    "file": plan_of("{root}/x.md"),
    "no version": plan_of("{root}/records"),
    "digits": '{"steps": [' + "9" * 5000 + "]}",
    "not a number": '{"steps": [], "prefix": NaN}',
    "deep": '{"steps": ' * 9000,
    "deep in a step": '{"prefix": "x", "steps": [' + "[" * 9000 + "]" * 9000 + "]}",
    "many": {**GOOD, "steps": [GOOD["steps"][0]] * 20_000},
    "long reason": plan_of("{root}/good", reason="x" * (3 << 20)),
    "estimate": {**GOOD, "estimate": "\ud800"},
}
"""Name → the plan that a task of a run left; with the places of the test in their texts."""


def test_hostile_plans_are_told(server: Server) -> None:
    places = {"root": str(server.root), "outside": str(server.outside), "canary": server.canary}
    for number, value in enumerate(XCOMS.values()):
        text = json.dumps(value)
        for name, place in places.items():
            text = text.replace(f"{{{name}}}", place)
        run = f"run{number}"
        server.put("plan", "return_value", json.loads(text), run)
        for key in ("_link_RayJobLink", "versions_0"):
            server.put("t", key, json.loads(text), run)
        server.put(
            "plan",
            "versions_0",
            {"t/train-abc123": {"name": "\ud800", "config": {"\ud800": float("nan")}, "dependencies": []}},
            run,
        )
        server.ask(f"/api/plans/d/{run}")
        server.ask(f"/api/step_history/d/t/{run}")
        for route in STEP_ROUTES:
            server.ask(f"/api/steps/{route}/d/t/{run}")
        server.ask(f"/api/steps/difference/d/t/{run}", old="aaaaaa", new="bbbbbb")
    server.is_harmless()


def test_hostile_records_are_told(server: Server) -> None:
    outputs = sorted(str(path) for path in server.root.iterdir() if path.name.endswith("-aaaaaa"))
    outputs = [path for path in outputs if _has_address(path)]
    assert len(outputs) > 30
    for number, path in enumerate(outputs):
        run = f"records{number}"
        server.put("plan", "return_value", plan_of(path, hash="aaaaaa", name=Path(path).name[:-7]), run)
        for route in STEP_ROUTES:
            server.ask(f"/api/steps/{route}/d/t/{run}")
        server.ask(f"/api/step_history/d/t/{run}", against="bbbbbb")
        for version in ("bbbbbb", "aaaaaa"):
            server.ask(f"/api/steps/difference/d/t/{run}", old=version, new="aaaaaa")
            server.ask(f"/api/steps/metrics/d/t/{run}", version=version)
        server.ask("/api/data/describe", path=f"{path}/{'x'}")
    for prefix in ("", f"{server.root}/below", f"{server.root}/experiments", f"{server.root}/good"):
        for route in ("outputs", "files", "leaderboards"):
            server.ask(f"/api/experiments/{route}", prefix=prefix)
    for offset in range(0, 60, 10):
        server.ask("/api/experiments/outputs", offset=offset, limit=10)
    server.is_harmless()


def test_headers_and_users_change_nothing(server: Server) -> None:
    from fastapi.routing import APIRoute

    pages = importlib.import_module("tradewind_ui.api.app").pages
    routes = [re.sub(r"\{(\w+)(:\w+)?\}", "0", each.path) for each in pages.routes if isinstance(each, APIRoute)]
    assert len(routes) > 20
    target = f"{server.outside}/secret"
    tricks = [
        {"X-Forwarded-User": "admin"},
        {"X-Remote-User": "admin"},
        {"REMOTE_USER": "admin"},
        {"X-Original-URL": "/api/data/roots"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer null"},
        {"Authorization": "Basic YWRtaW46YWRtaW4="},
        {"Authorization": "Bearer " + "a" * 60_000},
        {"Authorization": "Bearer a.b.c"},
        {"Cookie": "_token=admin"},
        {"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJBRE1JTiJ9."},
        {"X-HTTP-Method-Override": "DELETE"},
    ]
    for route in routes:
        server.ask(route, "anonymous", path=target, prefix=target)
        for trick in tricks:
            answer = server.ask(route, "nobody", headers=trick, path=target)
            if answer.status_code not in (401, 403):
                server.wrong.append(f"{route} with {str(trick)[:80]}: {answer.status_code}")
        for role in server.tokens:
            answer = server.ask(
                route, role, path=target, prefix=target, host=server.canary, url=f"http://{server.canary}/"
            )
            if route.startswith("/api/fleet") and (answer.status_code == 403) != (role != "admin"):
                server.wrong.append(f"{route} as {role}: {answer.status_code}")
    for extra in (
        {"Range": "bytes=0-"},
        {"Range": "bytes=-1,-1,-1"},
        {"Host": server.canary},
        {"X-Forwarded-Host": server.canary},
        {"Accept": "text/html"},
        {"Accept-Encoding": "x" * 5000},
        {"If-Modified-Since": "x"},
        {"Origin": "null"},
        {"Forwarded": f"for={server.canary}"},
        {"Content-Length": "5"},
        {"X-Forwarded-Prefix": "/\r\n x"[:1]},
    ):
        for path in ("/api/data/download", "/api/data/image", "/api/data/text"):
            server.ask(path, headers=extra, path=f"{server.root}/x.svg")
        server.ask("/static/main.js", "anonymous-file", headers=extra)
    server.is_harmless()


FLEETS: Final = (
    f"password: {SECRET}\n  - bad",
    f"{SECRET}",
    f"clusters: {{a: {SECRET}}}",
    f"clusters:\n  a: {{token: {SECRET}}}\n",
    "&a [*a]",
    "a: &a [x]\nb: [*a, *a]\n",
    "!!python/object/apply:os.system [id]",
    "[" * 100_000,
    "\0",
    "clusters: {'../x': {}}",
    "clusters: [1]",
    "x" * (2 << 20),
    'clusters:\n  "\\ud800": {}\n',
    "clusters: {a: {zone: [1]}}",
    "",
)


def test_fleet_files_that_cannot_be_used_are_told(server: Server) -> None:
    file = Path(os.environ["AIRFLOW__TRADEWIND__FLEET_FILE"])
    for content in FLEETS:
        file.write_text(content)
        for route in ("fleet", "fleet/health", "fleet/history"):
            server.ask(f"/api/{route}", "admin")
    file.unlink()
    file.symlink_to("/proc/self/environ")
    for route in ("fleet", "fleet/health", "fleet/history"):
        server.ask(f"/api/{route}", "admin")
    server.is_harmless()
