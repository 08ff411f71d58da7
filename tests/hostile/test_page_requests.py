"""Hostile requests, XComs, records and files at every route of the pages; ``page_server`` judges each answer.

The application answers in this process, with the simple auth manager. No connection may begin in the whole process, so
these tests are long ones: a client that another test left behind begins some. ``ui/test_access`` sends a part of the
requests to Airflow's API server in each run of the tests, and to one with FAB in the long ones.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hostile import page_requests as odd
from tests.hostile.page_files import SECRET, plan_of
from tests.hostile.page_server import RUN, Server, running_pages
from tests.hostile.plan_xcoms import GOOD, HARMLESS, MALFORMED

pytestmark = [pytest.mark.airflow, pytest.mark.long]

STEP_ROUTES: Final = ("about", "config", "attempts", "metrics", "progress", "evaluation", "versions")
CLUSTERS: Final = ("/api/fleet", "/api/fleet/history")
IMAGES: Final = (".png", ".jpg", ".gif", ".webp")
ROWS: Final = (".parquet", "jsonl", ".csv", ".gz", ".zst")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_pages(tmp_path_factory.mktemp("pages")) as running:
        yield running


def names_in(folder: Path) -> list[str]:
    """Return the names that an address can contain."""
    return sorted(name for name in os.listdir(folder) if name == name.encode(errors="replace").decode())


def test_hostile_files_are_shown_or_refused(server: Server) -> None:
    for name in names_in(server.root):
        path = f"{server.root}/{name}"
        if os.path.islink(path):
            routes: tuple[str, ...] = ("list", "describe", "rows", "text", "image", "download")
        elif name.startswith("cache "):
            routes = ("rows",)
        elif name.endswith(ROWS):
            routes = ("describe", "rows")
        else:
            routes = ("image",) if name.endswith(IMAGES) else () if name.endswith("-aaaaaa") else ("describe",)
        for route in routes:
            server.ask(f"/api/data/{route}", path=path)
    for name in ("texts.jsonl", "numbers.jsonl", "bomb.parquet", "twice.csv", "cache names", "lines.jsonl.gz"):
        server.ask("/api/data/value", path=f"{server.root}/{name}", at="0", column="a")
    server.check(180)


def test_paths_outside_are_refused(server: Server) -> None:
    for number, path in enumerate(odd.paths_outside(str(server.root), str(server.beside), server.canary)[::2]):
        server.ask(f"/api/data/{('list', 'text', 'download')[number % 3]}", path=path)
        if number % 3 == 0:
            server.ask("/api/experiments/outputs", prefix=path)
    server.check(60)


def test_odd_parameters_are_refused(server: Server) -> None:
    root, metrics = str(server.root), f"/api/steps/metrics/d/t/{RUN}"
    for number in odd.NUMBERS:
        for names in (("start",), ("at", "chars"), ("limit",)):
            server.ask("/api/data/rows", path=f"{root}/texts.parquet", **dict.fromkeys(names, number))
        server.ask("/api/experiments/outputs", offset=number, limit=number, pinned=number)
        server.ask(metrics, offset=number, map_index=number)
    files = ("lines.jsonl.gz", "scalars.jsonl", "quote.csv", "texts.parquet", "cache names")
    for number, cursor in enumerate(odd.CURSORS):
        server.ask("/api/data/rows", path=f"{root}/{files[number % 5]}", cursor=cursor, limit=1)
        server.ask("/api/data/value", path=f"{root}/{files[(number + 1) % 5]}", at=cursor, column="a")
    for text in odd.TEXTS:
        server.ask("/api/data/list", path=root, prefix=text, after=text, limit=1)
        server.ask("/api/data/rows", path=f"{root}/texts.parquet", filter=text, columns=text)
        server.ask("/api/experiments/outputs", **dict.fromkeys(("text", "producer", "experiment", "file"), text))
        server.ask("/api/experiments/outputs", **dict.fromkeys(("state", "sort", "prefix"), text))
        server.ask(metrics, version=text, name=text)
    for query in odd.QUERIES:
        server.ask(f"/api/data/rows?{query}")
    server.check(200)


def test_ids_of_routes_lead_nowhere_else(server: Server) -> None:
    for each in odd.IDS:
        for path in (f"{each}/t/{RUN}", f"d/{each}/{RUN}", f"d/t/{each}"):
            server.ask(f"/api/steps/metrics/{path}")
        server.ask(f"/api/plans/{each}/{RUN}")
        server.ask(f"/static/{each}.js")
    for path in odd.STATIC:
        server.ask(f"/static/{path}", "nobody")
    server.check(110)


XCOMS: Final[dict[str, Any]] = {
    **dict([*MALFORMED.items()][::3]),
    **HARMLESS,
    "malformed as text": json.dumps(MALFORMED["a step is empty"]),
    "surrogates": plan_of("{root}/\ud800", reason="\ud800\x1b[2J", name="\ud800", place="\ud800"),
    **{path: plan_of(path) for path in (
        "/\ud800", "{beside}/secret", "{root}/../outside/x-aaaaaa", "{root}/folder", "http://{canary}/x-aaaaaa",
        "simplecache::http://{canary}/x-aaaaaa", "gs://bucket/x-aaaaaa", "s3://bucket/x-aaaaaa", "memory://x-aaaaaa",
        "{root}/a\0b", "{root}/" + "a" * 5000, "{root}/" + "a" * 300, "{root}", "{root}/pipe.jsonl", "{root}/loop",
        "{root}/x.md", "{root}/records",
    )},
    "digits": '{"steps": [' + "9" * 5000 + "]}",
    "not a number": '{"steps": [], "prefix": NaN}',
    "deep": '{"steps": ' * 9000,
    "deep in a step": '{"prefix": "x", "steps": [' + "[" * 9000 + "]" * 9000 + "]}",
    "many": {**GOOD, "steps": [GOOD["steps"][0]] * 11_000},
    "long reason": plan_of("{root}/good", reason="x" * (3 << 20)),
}  # fmt: skip
"""Name → the plan that a task of a run left; with the places of the test in their texts."""


def test_hostile_plans_are_reported(server: Server) -> None:
    places = {"root": server.root, "beside": server.beside, "canary": server.canary}
    version = {"name": "\ud800", "config": {"\ud800": float("nan")}, "dependencies": []}
    for number, value in enumerate(XCOMS.values()):
        text = json.dumps(value)
        for name, place in places.items():
            text = text.replace(f"{{{name}}}", str(place))
        run = f"run{number}"
        server.put("plan", "return_value", json.loads(text), run)
        server.put("t", "_link_RayJobLink", json.loads(text), run)
        server.put("plan", "versions_0", {"t/train-abc123": version}, run)
        for route in ("plans/d", "step_history/d/t", "steps/about/d/t"):
            server.ask(f"/api/{route}/{run}")
    server.check(110)


def test_hostile_records_are_reported(server: Server) -> None:
    for number, name in enumerate(each for each in names_in(server.root) if each.endswith("-aaaaaa")):
        run = f"records{number}"
        plan = plan_of(f"{server.root}/{name}", hash="aaaaaa", name=name[:-7])
        server.put("plan", "return_value", plan, run)
        for route in ("about", "config") if name.startswith(("lease_", "info_")) else STEP_ROUTES:
            server.ask(f"/api/steps/{route}/d/t/{run}")
        if name.startswith("info_"):
            server.ask(f"/api/step_history/d/t/{run}", against="bbbbbb")
            server.ask(f"/api/steps/difference/d/t/{run}", old="bbbbbb", new="aaaaaa")
    for prefix in ("", f"{server.root}/below", f"{server.root}/experiments"):
        for route in ("outputs", "files", "leaderboards"):
            server.ask(f"/api/experiments/{route}", prefix=prefix)
    server.check(140)


def test_headers_and_users_change_nothing(server: Server) -> None:
    from fastapi.routing import APIRoute

    pages = importlib.import_module("tradewind_ui.api.app").pages
    routes = [re.sub(r"\{(\w+)(:\w+)?\}", "0", each.path) for each in pages.routes if isinstance(each, APIRoute)]
    assert len(routes) > 20
    query = dict.fromkeys(("path", "prefix"), f"{server.beside}/secret") | {"url": f"http://{server.canary}/"}
    for number, route in enumerate(routes):
        server.ask(route, "anonymous", **query)
        for headers in odd.LOGINS if route == "/api/data/text" else odd.LOGINS[number % len(odd.LOGINS) :][:1]:
            answer = server.ask(route, "nobody", headers=headers, **query)
            if answer.status_code not in (401, 403):
                server.wrong.append(f"{route} with {str(headers)[:80]}: {answer.status_code}")
        for role in server.tokens:
            answer = server.ask(route, role, **query)
            if route in CLUSTERS and (answer.status_code == 403) != (role != "admin"):
                server.wrong.append(f"{route} as {role}: {answer.status_code}")
    for headers in odd.odd_headers(server.canary):
        server.ask("/api/data/text", headers=headers, path=f"{server.root}/x.svg")
        server.ask("/static/main.js", "nobody", headers=headers)
    server.check(140)


def test_unusable_fleet_files_are_reported(server: Server) -> None:
    file = Path(os.environ["AIRFLOW__TRADEWIND__FLEET_FILE"])
    for content in (*odd.fleets(SECRET), None):
        if content is None:
            file.unlink()
            file.symlink_to("/proc/self/environ")
        else:
            file.write_text(content)
        for route in ("fleet", "fleet/health", "fleet/history"):
            server.ask(f"/api/{route}", "admin")
    server.check(45)
