"""The route of plans: how it answers for hostile XComs of a task, and the headers of every response."""

from __future__ import annotations

import asyncio
import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import expect_success, named
from tests.hostile.plan_xcoms import CLASS, GOOD, HARMLESS, MALFORMED
from tradewind.plans.plan import Plan


class Session:
    """Replacement for a route's database session that returns one value as its JSON, or what a callable returns."""

    def __init__(self, value: Any, size: int = 0) -> None:
        self.value, self.size = value, size

    def scalar(self, _: object) -> int:
        return self.size

    def scalars(self, _: object) -> Session:
        return self

    def execute(self, _: object) -> list[tuple[str, int]]:
        return [("plan", self.size)]

    def first(self) -> Any:
        return self.value() if callable(self.value) else json.dumps(self.value)


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Import Airflow first, since its import runs programs and the routes do not."""
    for module in ("tradewind_ui.api.plans", "airflow.sdk.serde"):
        importlib.import_module(module)


def answer(value: Any, size: int = 0) -> bytes:
    plans = importlib.import_module("tradewind_ui.api.plans")
    return bytes(plans.plans_of_run("one", "run", Session(value, size)).body)


def problem(value: Any) -> str | None:
    """Return what the answer says is wrong with the only plan; None if it has no plan at all."""
    found = json.loads(answer(value))["plans"]
    assert all(each["plan"] is None for each in found)
    return found[0]["problem"] if found else None


def has_problem(text: str, value: Any) -> bool:
    return text in (problem(value) or "")


def test_answer_names_what_is_wrong_with_a_plan(sandbox: Path) -> None:
    malformed = {**MALFORMED, **{f"{name} as text": json.dumps(plan) for name, plan in MALFORMED.items()}}
    cases = {name: partial(has_problem, "cannot be read, because", plan) for name, plan in malformed.items()}
    expect_success(cases, sandbox, "True")
    expect_success({name: partial(problem, value) for name, value in HARMLESS.items()}, sandbox, "None")
    unreadable = ["[" * 100_000, "{"]
    values = ["{not JSON", *unreadable, '{"steps": ' * 50_000, *(partial(str, text) for text in unreadable)]
    expect_success(named(values, partial(has_problem, "is no readable JSON")), sandbox, "True")


def test_class_named_by_an_xcom_is_not_loaded(sandbox: Path) -> None:
    def show(value: Any) -> bool:
        import airflow.sdk.serde as serde

        def loaded(*_: object, **__: object) -> object:
            raise AssertionError("a class was loaded")

        serde.deserialize = loaded  # type: ignore[assignment]
        return bool(answer(value))

    values = [CLASS, json.dumps(CLASS), {**GOOD, "estimate": CLASS}, json.dumps({**GOOD, "x": CLASS})]
    expect_success(named(values, show), sandbox)


def test_answer_is_valid_by_the_schema_of_the_route() -> None:
    from pydantic import TypeAdapter

    plans = importlib.import_module("tradewind_ui.api.plans")
    [found] = TypeAdapter(plans.RunPlans).validate_json(answer(GOOD)).plans
    assert found.plan == Plan.from_json(GOOD)


@pytest.mark.parametrize("text", ["\ud800", "<script>alert(1)</script>", "\x1b[2J", "\0", "' onclick='x", '"><b>'])
def test_texts_of_a_plan_arrive_unchanged(text: str) -> None:
    plan = {
        **GOOD,
        "estimate": text,
        "warnings": [text],
        "steps": [{**GOOD["steps"][0], "place": text, "reason": text}],
    }
    [found] = json.loads(answer(plan))["plans"]
    [step] = found["plan"]["steps"]
    assert [found["plan"]["estimate"], *found["plan"]["warnings"], step["place"], step["reason"]] == [text] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": [GOOD["steps"][0]] * 15_000},
        {"steps": [{**GOOD["steps"][0], "name": "<" * 10_000_000, "reason": "&" * 10_000_000}]},
        {"steps": [{**GOOD["steps"][0], "name": "<" * 4_000, "reason": "&" * 4_000}] * 2_000},
        {"steps": [{**GOOD["steps"][0], "inputs": ["t"] * 15_000}] * 20},
        {"steps": [{**GOOD["steps"][0], "inputs": ["t" * 10_000_000]}]},
        {"warnings": ["<" * 4_000] * 5_000},
        {"estimate": "<" * 10_000_000},
    ],
    ids=["steps", "texts", "long rows", "edges", "long input", "warnings", "estimate"],
)
def test_answer_has_limited_size(changes: dict[str, Any]) -> None:
    body = answer({**GOOD, **changes})
    assert len(body) < 12_000_000
    [found] = json.loads(body)["plans"]
    steps = found["plan"]["steps"]
    assert found["left_out"] == len(changes.get("steps", [1])) - len(steps)
    assert found["inputs_left_out"] == (len(changes.get("steps", [])) == 20)


def test_plan_too_large_for_page_is_not_read() -> None:
    xcoms = importlib.import_module("tradewind_ui.api.xcoms")
    [found] = json.loads(answer({}, xcoms.MAX_XCOM_CHARS + 1))["plans"]
    assert "has 12582913 characters, and a page shows at most 12582912" in found["problem"]


@pytest.mark.parametrize("text", ["[" + "[]," * 5_000_000 + "[]]", json.dumps("[" + "1," * 1_000_000 + "1]")])
def test_plan_of_too_many_values_is_not_parsed(text: str) -> None:
    [found] = json.loads(answer(lambda: text))["plans"]
    assert "has more than 400,000 values" in found["problem"]


def test_every_response_has_each_header_once() -> None:
    headers = importlib.import_module("tradewind_ui.headers")
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 500}
        await send({**start, "headers": [(b"Cache-Control", b"public"), (b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(headers.with_headers(app)({}, None, send))
    given = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
    assert sorted(given) == sorted([("a", "b"), *((name.lower(), value) for name, value in headers.HEADERS.items())])
    policy = headers.HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
