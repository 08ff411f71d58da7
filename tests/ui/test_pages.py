"""The pages in Airflow's own UI, in a browser: themes, keyboard, narrow windows, 1,000 steps, errors, path prefixes.

One server and one browser serve all tests. A page is loaded once for all that is looked at in it, since each load of
Airflow's UI takes two seconds of CPU. `make test` looks at two pages and the empty tabs, the long tests at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from scripts.ui_stack import UiStack, ui_stack
from tests.ui.conftest import AXE, NARROW, ROOT, OpenPage, OpenPages

pytestmark = pytest.mark.airflow

REFUSED: Final = re.compile("cannot be shown|does not answer|Failed to fetch")
SERIOUS: Final = ("serious", "critical")
PAGES: Final[dict[str, tuple[Callable[[UiStack], str], str]]] = {
    "plan": (
        lambda stack: f"dags/hello_world/runs/{stack.run_ids('hello_world')[-1]}/plugin/tradewind_plan",
        "hello_world/stats",
    ),
    "step": (lambda stack: step_path(stack, "hello_world", "hello_world_data"), "hello_world/data"),
    "data": (lambda stack: f"plugin/tradewind_data?path={stack.store}/hello_world", "hello_world/data"),
    "experiments": (lambda stack: "plugin/tradewind_experiments", "hello_world"),
    "fleet": (lambda stack: "plugin/tradewind_fleet", "research"),
    "card": (lambda stack: "", "research"),
}
"""Page → its path, and a text of it."""


def step_path(stack: UiStack, dag_id: str, task_id: str) -> str:
    """Return the path of a step's tab, in the first run."""
    return f"dags/{dag_id}/runs/{stack.run_ids(dag_id)[0]}/tasks/{task_id}/plugin/tradewind_step"


def serious_findings(page: Any) -> list[str]:
    """Return what axe finds in the plugin's part of the page."""
    assert AXE.exists(), f"There is no {AXE}: run `make check-ui`, which installs it."
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text())
    # Colors between two themes have no contrast.
    page.wait_for_function("!document.getAnimations().some((each) => each instanceof CSSTransition)")
    found = page.evaluate("(root) => axe.run({include: [[root]]}, {resultTypes: ['violations']})", ROOT)
    return [
        f"{finding['id']}: {node['html'][:200]}"
        for finding in found["violations"]
        if finding["impact"] in SERIOUS
        for node in finding["nodes"]
    ]


def visible(root: Any, text: str) -> Any:
    """Return the first element with this text that is shown, and not an option of a closed list."""
    return root.get_by_text(text).filter(visible=True).first


def overflow(page: Any) -> int:
    """Return by how many pixels the plugin's part is wider than the box of Airflow, or its own, in which it scrolls."""
    return int(
        page.evaluate(
            """(selector) => {
                let box = document.querySelector(selector).firstElementChild;
                while (box !== document.documentElement && getComputedStyle(box).overflowX === "visible") {
                    box = box.parentElement;
                }
                return box.scrollWidth - box.clientWidth;
            }""",
            ROOT,
        )
    )


def focus_walk(page: Any, presses: int) -> list[str]:
    """Press Tab so often, from just before the plugin's part; return the focused elements of it."""
    page.evaluate(
        """(selector) => {
            const before = document.createElement("span");
            before.tabIndex = -1;
            document.querySelector(selector).before(before);
            before.focus();
        }""",
        ROOT,
    )
    found = []
    for _ in range(presses):
        page.keyboard.press("Tab")
        inside = (
            "(root) => document.activeElement.closest(root) ? document.activeElement.outerHTML.slice(0, 200) : null"
        )
        if text := page.evaluate(inside, ROOT):
            found.append(text)
    return found


def check_page(page: OpenPage, path: str, text: str) -> None:
    """Look at a page in both themes, by the keyboard, and in a narrow window."""
    root = page.open(path)
    visible(root, text).wait_for()
    assert serious_findings(page.page) == [], "light"
    assert focus_walk(page.page, 5), "Tab reaches nothing of the page"
    page.page.emulate_media(color_scheme="dark")
    page.page.locator("html.dark").wait_for(state="attached")
    assert serious_findings(page.page) == [], "dark"
    page.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    assert visible(root, text).count()
    assert overflow(page.page) <= 0
    assert page.problems == []


@pytest.mark.parametrize(
    "name", [name if name in ("plan", "data") else pytest.param(name, marks=pytest.mark.long) for name in PAGES]
)
def test_page_in_both_themes_by_keyboard_and_narrow(name: str, stack: UiStack, opened: OpenPages) -> None:
    path_of, text = PAGES[name]
    with opened(stack) as page:
        check_page(page, path_of(stack), text)


@pytest.mark.long
def test_training_in_both_themes_by_keyboard_and_narrow(full_stack: UiStack, opened: OpenPages) -> None:
    with opened(full_stack) as page:
        check_page(page, step_path(full_stack, "tiny_model", "tiny_train_small"), "tiny/train_small")


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_page_says_that_its_server_does_not_answer(name: str, stack: UiStack, opened: OpenPages) -> None:
    path_of, _ = PAGES[name]
    with opened(stack) as page:
        page.page.route("**/tradewind/api/**", lambda route: route.abort())
        root = page.open(path_of(stack))
        root.get_by_text(REFUSED).first.wait_for()
        assert page.page.get_by_text("Plugins", exact=True).count(), "Airflow's own menu is gone"


@pytest.mark.long
def test_plan_of_1000_steps_is_drawn(full_stack: UiStack, opened: OpenPages) -> None:
    [run_id] = full_stack.run_ids("big_plan")
    with opened(full_stack) as page:
        root = page.open(f"dags/big_plan/runs/{run_id}/plugin/tradewind_plan")
        root.get_by_text("1,000").first.wait_for()
        root.locator(".react-flow__node").first.wait_for()
        assert page.problems == []


def test_tabs_of_other_dags_say_why_they_are_empty(stack: UiStack, opened: OpenPages) -> None:
    [run_id] = stack.run_ids("plain")
    with opened(stack) as page:
        for path in (f"dags/plain/runs/{run_id}/plugin/tradewind_plan",
                     f"dags/plain/runs/{run_id}/tasks/add/plugin/tradewind_step"):  # fmt: skip
            assert len(page.open(path).inner_text()) > 40
        assert page.problems == []


@pytest.mark.long
def test_viewer_sees_what_is_refused(stack: UiStack, opened: OpenPages) -> None:
    with opened(stack, user="viewer") as page:
        root = page.open("plugin/tradewind_fleet")
        root.get_by_text("You may not see the clusters").wait_for()
    with opened(stack, user="viewer") as page:
        with page.page.expect_response("**/tradewind/api/fleet/health"):
            page.page.goto(stack.url)
        page.page.wait_for_function(f"document.querySelector('{ROOT}').childElementCount === 0")
        assert page.problems == []


@pytest.mark.long
@pytest.mark.parametrize("base_path", ["", "/a/b"], ids=["root", "two"])
def test_every_page_loads_below_another_path(base_path: str, stack: UiStack, opened: OpenPages) -> None:
    starting = ui_stack(stack.folder, base_path=base_path, few=True)
    with ThreadPoolExecutor(1) as thread:  # the event loop of the browser runs in this one
        other = thread.submit(starting.__enter__).result()
        try:
            with opened(other) as page:
                for path_of, text in PAGES.values():
                    visible(page.open(path_of(other)), text).wait_for()
                assert page.problems == []
        finally:
            thread.submit(starting.__exit__, None, None, None).result()
