"""The plugin's pages: how they show hostile data of a task, and the headers of every response."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.test_page_access import CLASS, GOOD, HARMLESS, MALFORMED
from tests.hostile.harness import expect_success, named


class Session:
    """Replacement for a page's database session that returns one value."""

    def __init__(self, value: Any, size: int = 0) -> None:
        self.value, self.size = value, size

    def scalar(self, _: object) -> int:
        return self.size

    def scalars(self, _: object) -> Session:
        return self

    def all(self) -> list[str]:
        return ["plan"]

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
    return str(pages.plan_page("one", "run", REQUEST, Session(value)))


def page_contains(text: str, value: Any) -> bool:
    return text in plan_page(value)


def test_page_names_what_is_wrong_with_a_plan(sandbox: Path) -> None:
    malformed = {**MALFORMED, **{f"{name} as text": json.dumps(plan) for name, plan in MALFORMED.items()}}
    cases = {name: partial(page_contains, "cannot be shown: ", plan) for name, plan in malformed.items()}
    expect_success(cases, sandbox, "True")
    cases = {name: partial(page_contains, "no plan yet", value) for name, value in HARMLESS.items()}
    expect_success(cases, sandbox, "True")
    unreadable = ["[" * 100_000, "{"]
    values = ["{not JSON", *unreadable, '{"steps": ' * 50_000, *(partial(json.loads, text) for text in unreadable)]
    expect_success(named(values, partial(page_contains, "is no readable JSON")), sandbox, "True")


def test_class_named_by_an_xcom_is_not_loaded(sandbox: Path) -> None:
    def show(value: Any) -> bool:
        import airflow.sdk.serde as serde

        def loaded(*_: object, **__: object) -> object:
            raise AssertionError("a class was loaded")

        serde.deserialize = loaded  # type: ignore[assignment]
        return bool(plan_page(value))

    values = [CLASS, json.dumps(CLASS), {**GOOD, "estimate": CLASS}, json.dumps({**GOOD, "x": CLASS})]
    expect_success(named(values, show), sandbox)


@pytest.mark.parametrize("text", ["\ud800", "<script>alert(1)</script>", "\x1b[2J", "\0", "' onclick='x", '"><b>'])
def test_texts_of_a_plan_are_escaped(text: str) -> None:
    plan = {**GOOD, "prefix": text, "warnings": [text], "steps": [{**GOOD["steps"][0], "name": text, "reason": text}]}
    page = plan_page(plan)
    assert page.encode() and "<script>" not in page and "<b>" not in page


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": [GOOD["steps"][0]] * 100_000},
        {"steps": [{**GOOD["steps"][0], "name": "<" * 10_000_000, "reason": "&" * 10_000_000}]},
        {"steps": [{**GOOD["steps"][0], "name": "<" * 4_000, "reason": "&" * 4_000}] * 2_000},
        {"warnings": ["<" * 4_000] * 500_000},
        {"estimate": "<" * 10_000_000},
    ],
    ids=["steps", "texts", "long rows", "warnings", "estimate"],
)
def test_page_of_plan_has_limited_size(changes: dict[str, Any]) -> None:
    page = plan_page({**GOOD, **changes})
    assert len(page) < 5_000_000
    count = len(changes.get("steps", ()))
    assert (f"of {count} steps are shown; all are in the log of the task" in page) == (count > 1)


def test_plan_too_large_for_page_is_not_read() -> None:
    pages = importlib.import_module("tradewind_ui.pages")
    page = pages.plan_page("one", "run", REQUEST, Session({}, pages.MAX_XCOM_CHARS + 1))
    assert "has 16777217 characters, and a page shows at most 16777216" in page
