"""The built bundle: that it is the one of these sources, and how it is served."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from scripts.ui_digest import DIGEST_FILE, digest
from tradewind.tasks.context import DAG_TAG
from tradewind_ui import headers

REPOSITORY = Path(__file__).parents[2]
STATIC = REPOSITORY / "plugins" / "tradewind_ui" / "static"
MAX_ENTRY_BYTES = 30_000
"""Gzipped."""
IMPORTS = """
import sys, types
plugins = types.ModuleType("airflow.plugins_manager")
plugins.AirflowPlugin = object
sys.modules |= {"airflow": types.ModuleType("airflow"), "airflow.plugins_manager": plugins}
import tradewind_ui
print(*[name for name in ("fastapi", "pyarrow", "ray", "tradewind.plans", "tradewind_ui.api") if name in sys.modules])
"""
"""The plugin's import, without Airflow's own, which imports FastAPI only in its API server."""


def test_build_is_that_of_the_sources() -> None:
    stale = "plugins/tradewind_ui/static is not the build of web/: run `make ui`, and commit what it writes."
    assert DIGEST_FILE.read_text().strip() == digest(), stale


def test_schema_is_that_of_the_application() -> None:
    from tradewind_ui.api.app import pages

    written = json.loads((REPOSITORY / "plugins/tradewind_ui/web/openapi.json").read_text())
    assert written == json.loads(json.dumps(pages.openapi())), (
        "The API has changed: run `make ui`, and commit the rest."
    )


def test_entry_is_one_small_file_and_pages_are_apart() -> None:
    """An import would be found only when the browser has time between Airflow's own work, and then requested."""
    entry = (STATIC / "main.js").read_bytes()
    assert re.findall(r"""(?:from|import)\s*["']\./([\w.-]+)["']""", entry.decode()) == []
    assert len(gzip.compress(entry)) <= MAX_ENTRY_BYTES
    assert len({*re.findall(r"""import\(["'`]\./([\w.-]+)["'`]\)""", entry.decode())}) >= 5


def test_every_import_of_a_chunk_is_a_file() -> None:
    """A chunk that another names is in the same build."""
    for file in STATIC.glob("*.js"):
        for name in re.findall(r"""(?:from|import)\s*\(?["'`]\./([\w.-]+\.js)["'`]""", file.read_text()):
            assert (STATIC / name).is_file(), f"{file.name} imports {name}"


@pytest.mark.slow
def test_plugin_import_is_light() -> None:
    """Every Airflow process imports the plugin."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_tabs_name_the_tag_that_our_dags_have() -> None:
    from tradewind_ui import TradewindPlugin

    tabs = {app["name"]: app["applies_to"] for app in TradewindPlugin.react_apps if "applies_to" in app}
    assert tabs == dict.fromkeys(("Plan", "Step"), {"dag_tags": [DAG_TAG]})


def test_wheel_has_the_build_and_no_sources() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "plugins/tradewind_ui" in wheel["packages"]
    assert wheel["exclude"] == ["plugins/tradewind_ui/web"]
    ignored = subprocess.run(
        ["git", "check-ignore", "plugins/tradewind_ui/static/main.js"], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert ignored.returncode == 1, "hatch leaves out what .gitignore names"


@pytest.fixture(scope="module", params=["", "/airflow", "/a/b"], ids=["root", "one", "two"])
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """The application below the path of ``[api] base_url``, as Airflow mounts it."""
    from tradewind_ui.api.app import app

    airflow = FastAPI(root_path=request.param)
    airflow.mount("/tradewind", app)
    with TestClient(airflow, base_url=f"http://testserver{request.param}", root_path=request.param) as client:
        yield client


def get(client: TestClient, path: str, **given: str) -> Any:
    return client.get(f"{client.base_url}/tradewind/static/{path}".replace("//trade", "/trade"), headers=given)


def test_entry_is_revalidated(client: TestClient) -> None:
    first = get(client, "main.js")
    assert first.status_code == 200 and first.text == (STATIC / "main.js").read_text()
    assert first.headers["cache-control"] == "no-cache"
    again = get(client, "main.js", **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.text, again.headers["cache-control"]) == (304, "", "no-cache")


def test_chunks_may_be_kept_for_a_year(client: TestClient) -> None:
    chunks = [file.name for file in STATIC.iterdir() if file.suffix in (".js", ".css") and file.name != "main.js"]
    assert chunks
    for name in chunks:
        answer = get(client, name)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable", name
        kind = {".js": "text/javascript", ".css": "text/css"}[Path(name).suffix]
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"] == headers.BUILT_POLICY


@pytest.mark.parametrize(
    "path",
    ["none.js", "sources.sha256", "", "..%2Fheaders.py", "%2e%2e/headers.py", "..%2F..%2F..%2Fetc%2Fpasswd",
     "main.js%00.js", "x" * 5_000 + ".js", "%ED%A0%80.js", "main-00000000.js", "../web/package.json"],
)  # fmt: skip
def test_unknown_static_path_is_404(client: TestClient, path: str) -> None:
    answer = get(client, path)
    assert answer.status_code == 404
    assert {name: answer.headers.get(name) for name in headers.HEADERS} == headers.HEADERS


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_static_files_are_only_read(client: TestClient, method: str) -> None:
    answer = client.request(method, f"{client.base_url}/tradewind/static/main.js".replace("//trade", "/trade"))
    assert answer.status_code == 405


def sent_headers(*given: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response that an application gave these."""
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": list(given)})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(headers.with_headers(app)({}, None, send))
    return list(sent[0]["headers"])


def test_every_response_has_each_header_once() -> None:
    found = sent_headers((b"Cache-Control", b"public"), (b"content-security-policy", b"none"), (b"a", b"b"))
    ours = [(name.lower(), value) for name, value in headers.HEADERS.items()]
    assert sorted((name.decode(), value.decode()) for name, value in found) == sorted([("a", "b"), *ours])


def test_no_policy_allows_inline_scripts_or_frames() -> None:
    for policy in (headers.DATA_POLICY, headers.BUILT_POLICY):
        assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "script-src" not in headers.DATA_POLICY and headers.DATA_POLICY.endswith("; sandbox")
