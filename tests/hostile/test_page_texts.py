"""The plugin's pages: how they show hostile data of a task, and the headers of every response."""

from __future__ import annotations

import asyncio
import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.test_page_access import CLASS, GOOD, HARMLESS, MALFORMED
from tests.hostile.harness import expect_success, named
from tradewind.runtime.pods.timeline import TimelineEvent


class Left:
    """Replacement for a page's database session that returns one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def scalars(self, _: object) -> Left:
        return self

    def first(self) -> Any:
        return self.value() if callable(self.value) else self.value


REQUEST = SimpleNamespace(scope={"root_path": "/tradewind"})


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Import Airflow first, since its import runs programs and the pages do not."""
    for module in ("tradewind_ui.pages", "airflow.sdk.serde"):
        importlib.import_module(module)


def plan_page(value: Any) -> str:
    pages = importlib.import_module("tradewind_ui.pages")
    return str(pages.plan_page("one", "run", REQUEST, Left(value)))


def _says(text: str, value: Any) -> bool:
    return text in plan_page(value)


def too_deep() -> Any:
    return json.loads("[" * 100_000)


def test_a_malformed_plan_is_said_to_be_one(sandbox: Path) -> None:
    plans: dict[str, Any] = {**MALFORMED, **{f"{name} as text": json.dumps(plan) for name, plan in MALFORMED.items()}}
    expect_success({name: partial(_says, "cannot be shown: ", plan) for name, plan in plans.items()}, sandbox, "True")


def test_what_is_no_json_is_said_to_be_none(sandbox: Path) -> None:
    values = ["{not JSON", "[" * 100_000, '{"steps": ' * 50_000, too_deep, lambda: json.loads("{")]
    expect_success(named(values, partial(_says, "is no readable JSON")), sandbox, "True")


def test_what_is_no_plan_is_none_yet(sandbox: Path) -> None:
    expect_success({name: partial(_says, "no plan yet", value) for name, value in HARMLESS.items()}, sandbox, "True")


def test_no_class_that_an_xcom_names_is_loaded(sandbox: Path) -> None:
    def show(value: Any) -> bool:
        import airflow.sdk.serde as serde

        def loaded(*_: object, **__: object) -> object:
            raise AssertionError("a class was asked for")

        serde.deserialize = loaded  # type: ignore[assignment]
        return bool(plan_page(value))

    values = [CLASS, json.dumps(CLASS), {**GOOD, "estimate": CLASS}, json.dumps({**GOOD, "x": CLASS})]
    expect_success(named(values, show), sandbox)


@pytest.mark.parametrize("text", ["\ud800", "<script>alert(1)</script>", "\x1b[2J", "\0", "' onclick='x", '"><b>'])
def test_texts_of_a_plan_are_shown_as_texts(text: str) -> None:
    plan = {**GOOD, "prefix": text, "warnings": [text], "steps": [{**GOOD["steps"][0], "name": text, "reason": text}]}
    page = plan_page(plan)
    assert page.encode() and "<script>" not in page and "<b>" not in page


@pytest.mark.parametrize(
    "left",
    [
        {"steps": [GOOD["steps"][0]] * 100_000},
        {"steps": [{**GOOD["steps"][0], "name": "<" * 10_000_000, "reason": "&" * 10_000_000}]},
        {"warnings": ["<"] * 500_000},
        {"estimate": "<" * 10_000_000},
    ],
    ids=["steps", "texts", "warnings", "estimate"],
)
def test_a_page_is_no_larger_than_a_browser_can_show(left: dict[str, Any]) -> None:
    page = plan_page({**GOOD, **left})
    assert len(page) < 5_000_000
    assert ("Only the first 10000 steps" in page) == (len(left.get("steps", ())) > 10_000)


def test_a_timeline_is_no_larger_than_a_browser_can_show() -> None:
    timelines = importlib.import_module("tradewind_ui.timelines")
    quotes = '"<' * 4_000
    events = [TimelineEvent(quotes, float(at), sentence=quotes, slices=(quotes,)) for at in range(600)]
    page = timelines.table(1, events, quotes)
    assert len(page) < 10_000_000
    assert '"<' not in page and "The first 100 events are left out." in page


def test_every_answer_has_the_headers_once() -> None:
    headers = importlib.import_module("tradewind_ui.headers")
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 500, "headers": [(b"Cache-Control", b"public"), (b"a", b"b")]}
        )
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(headers.with_headers(app)({}, None, send))
    given = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
    assert sorted(given) == sorted([("a", "b"), *((name.lower(), value) for name, value in headers.HEADERS.items())])
    policy = headers.HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "frame-ancestors 'self'" in policy and "default-src 'none'" in policy
