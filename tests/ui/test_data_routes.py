"""The routes of the data page: typed answers, bounds of parameters, statuses with sentences, downloads and images."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.browsing.files import LINES, WRITERS
from tests.support.outputs import make_output
from tests.support.waiting import until
from tradewind.browsing.answers import Description, EntryPage, RowPage, TextPage, WholeValue


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "root"
    folder.mkdir()
    for name, write in WRITERS.items():
        write(folder / name)
    (folder / "page.svg").write_text("<svg onload='alert(1)'/>")
    (folder / 'na"me\r\nX: y.bin').write_bytes(bytes(range(256)) * 20_000)
    (folder.parent / "secret").write_text("secret")
    (folder / "link").symlink_to(folder.parent / "secret")
    make_output(str(folder), "made")
    return folder


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[Any]:
    """Return a client of the application for a user who may read data; ``test_access`` asks as others."""
    importlib.import_module("airflow.sdk")
    from fastapi.testclient import TestClient

    from tradewind.browsing.pool import shared_pool
    from tradewind_ui.api.app import app, pages
    from tradewind_ui.api.security import may_read_data

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(root))
        patch.setitem(pages.dependency_overrides, may_read_data, lambda: None)
        with TestClient(app) as found:
            yield found
        shared_pool().end()


def get(client: Any, route: str, **query: Any) -> Any:
    return client.get(f"/api/data/{route}", params=query)


def test_roots_start_the_readers(client: Any, root: Path) -> None:
    from tradewind.browsing.pool import shared_pool

    assert get(client, "roots").json() == [{"path": str(root)}]
    until(lambda: all(reader.ready_at for reader in shared_pool()._readers))


def test_answers_have_the_types_of_the_schema(client: Any, root: Path) -> None:
    asked: list[tuple[type, str, dict[str, Any]]] = [(EntryPage, "list", {"path": root})]
    asked += [(Description, "describe", {"path": entry}) for entry in root.iterdir() if entry.name != "link"]
    asked += [(RowPage, "rows", {"path": root / name, "limit": 7, "filter": "row"}) for name in WRITERS]
    asked += [(TextPage, "text", {"path": root / "a.jsonl", "offset": -100, "bytes": 50})]
    asked += [(WholeValue, "value", {"path": root / "a.parquet", "at": "3", "column": "text"})]
    for kind, route, query in asked:
        answer = get(client, route, **query)
        assert answer.status_code == 200, (route, query, answer.text)
        assert answer.headers["content-type"] == "application/json"
        TypeAdapter(kind, config=None).validate_json(answer.content, strict=True, extra="forbid")


@pytest.mark.parametrize(
    ("status", "route", "query", "words"),
    [
        (403, "text", {"path": "/etc/passwd"}, "below no allowed root"),
        (403, "image", {"path": "{root}/link"}, "below no allowed root"),
        (403, "download", {"path": "{root}/../secret"}, "below no allowed root"),
        (404, "describe", {"path": "{root}/nothing"}, "Nothing is at"),
        (415, "rows", {"path": "{root}/page.svg"}, "has no rows"),
        (415, "image", {"path": "{root}/page.svg"}, "SVG is shown as text"),
        (415, "download", {"path": "{root}"}, "is a folder"),
        (415, "list", {"path": "{root}/a.jsonl"}, "is a file"),
        (422, "rows", {"path": "{root}/a.parquet", "columns": "nothing"}, "has no column 'nothing'"),
        (422, "rows", {"path": "{root}/a.jsonl", "cursor": "x"}, "has no place"),
        (422, "rows", {"path": "{root}/a.jsonl", "limit": 10_001}, "10000"),
        (422, "rows", {"path": "{root}/a.jsonl", "at": "nan"}, "at"),
        (422, "list", {"path": "{root}", "prefix": "../"}, "without '/'"),
        (422, "text", {"path": "{root}/a.jsonl", "bytes": 1 << 30}, "bytes"),
        (422, "describe", {"path": "x" * 5000}, "4096"),
    ],
)  # fmt: skip
def test_refusals_have_a_status_and_a_sentence(
    client: Any, root: Path, status: int, route: str, query: dict[str, Any], words: str
) -> None:
    answer = get(client, route, **{name: str(value).replace("{root}", str(root)) for name, value in query.items()})
    assert (answer.status_code, words in str(answer.json()["detail"])) == (status, True), answer.text


def test_download_is_an_attachment_of_the_whole_file(client: Any, root: Path) -> None:
    path = root / 'na"me\r\nX: y.bin'
    answer = get(client, "download", path=path)
    assert answer.content == path.read_bytes()
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''na%22me%0D%0AX%3A%20y.bin"
    assert "x" not in answer.headers and answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_answers_are_not_packed_by_airflow(client: Any, root: Path) -> None:
    """Airflow would pack them in the thread that serves all requests."""
    from fastapi import FastAPI
    from fastapi.middleware.gzip import GZipMiddleware
    from fastapi.testclient import TestClient

    outer = FastAPI()
    outer.add_middleware(GZipMiddleware, minimum_size=1024)
    outer.mount("/", client.app)
    with TestClient(outer) as packing:
        path = root / 'na"me\r\nX: y.bin'
        download = get(packing, "download", path=path)
        assert (int(download.headers["content-length"]), download.content) == (path.stat().st_size, path.read_bytes())
        rows = get(packing, "rows", path=root / "a.jsonl", limit=1000)
        plain = packing.get(rows.request.url, headers={"Accept-Encoding": "identity"})
        assert rows.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
        assert int(rows.headers["content-length"]) < len(rows.content) / 2 and rows.headers["vary"] == "Accept-Encoding"
        assert plain.content == rows.content and int(plain.headers["content-length"]) == len(rows.content) > 1 << 16


def test_image_has_its_own_type_and_runs_nothing(client: Any, root: Path) -> None:
    from PIL import Image

    Image.new("RGB", (3, 3)).save(root / "a.txt", format="png")  # a name says nothing about an image
    answer = get(client, "image", path=root / "a.txt")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert "sandbox" in answer.headers["content-security-policy"]


def test_bad_roots_are_an_error_of_the_deployment(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", "relative/path")
    answer = get(client, "list", path="/x")
    assert answer.status_code == 503 and "airflow.cfg" in answer.json()["detail"]
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", "")
    assert len(LINES) > 0 and get(client, "list", path="/etc").status_code == 403
