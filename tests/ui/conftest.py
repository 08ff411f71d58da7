"""One API server with sample runs, and a browser that is logged in, for the tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.ui_stack import UiStack, ui_stack

CHROMIUM: Final = shutil.which("chromium")
AXE: Final = Path(__file__).parents[2] / "plugins/tradewind_ui/web/node_modules/axe-core/axe.min.js"
STACK: Final = "TRADEWIND_UI_STACK"
BASE_PATH: Final = "/airflow"
"""Path of ``[api] base_url``: all tests but those of other paths have a prefix to get wrong."""
WIDE: Final = (1440, 900)
NARROW: Final = (600, 900)
TIMEOUT_MS: Final = 120_000
ROOT: Final = "[data-tradewind]"
"""Selector of the plugin's part of a page."""


@dataclass
class OpenPage:
    """A page in the browser, and what went wrong in it.

    Attributes:
        page: Playwright's page.
        stack: The server.
        problems: Errors in the console, exceptions, and answers of 500 and more.
    """

    page: Any
    stack: UiStack
    problems: list[str] = field(default_factory=list)

    def note(self, is_problem: bool, text: str) -> None:
        if is_problem:
            self.problems.append(text)

    def open(self, path: str) -> Any:
        """Open an address below the server's, and return the plugin's part of the page when it has loaded."""
        self.page.goto(f"{self.stack.url}/{path}")
        root = self.page.locator(ROOT).first
        root.wait_for(state="attached")
        self.page.wait_for_function(
            f"""() => {{
                const roots = [...document.querySelectorAll("{ROOT}")];
                return roots.length > 0 && roots.every((each) => each.childElementCount > 0)
                    && !document.querySelector('{ROOT} [role="status"][aria-label="Loading"]');
            }}"""
        )
        return root


OpenPages = Callable[..., Any]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiStack]:
    """A server with few sample runs, or those of the folder ``TRADEWIND_UI_STACK``, which has all."""
    named = os.environ.get(STACK)
    folder = Path(named) if named else tmp_path_factory.mktemp("ui")
    with ui_stack(folder, base_path=BASE_PATH, few=not named) as running:
        yield running


@pytest.fixture(scope="session")
def full_stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiStack]:
    """A server with all sample runs, which take minutes to make: for long tests only."""
    if os.environ.get(STACK):
        yield request.getfixturevalue("stack")
        return
    with ui_stack(tmp_path_factory.mktemp("full"), base_path=BASE_PATH) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Playwright's event loop runs until the end of the module: no other test may start one until then."""
    from playwright.sync_api import sync_playwright

    from scripts.screenshot import FLAGS

    assert CHROMIUM, "There is no Chromium: run scripts/install_chromium.sh."
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def opened(browser: Any) -> OpenPages:
    """Return a context manager for a page of a logged-in user.

    Its arguments are the server, and optionally ``user``. Pages of one user share the browser's cache, since compiling
    Airflow's scripts takes longer than all else.
    """
    contexts: dict[tuple[str, str], Any] = {}

    def context_of(stack: UiStack, user: str) -> Any:
        if (stack.url, user) not in contexts:
            width, height = WIDE
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
            context.set_default_timeout(TIMEOUT_MS)
            context.add_cookies([{"name": "_token", "value": stack.token(user), "url": stack.url}])
            contexts[stack.url, user] = context
        return contexts[stack.url, user]

    @contextmanager
    def open_page(stack: UiStack, user: str = "admin") -> Iterator[OpenPage]:
        page = context_of(stack, user).new_page()
        found = OpenPage(page, stack)
        page.on("console", lambda line: found.note(line.type == "error", f"{line.text} {line.location['url']}"))
        page.on("pageerror", lambda error: found.note(True, str(error)))
        page.on("response", lambda answer: found.note(answer.status >= 500, f"{answer.status} {answer.url}"))
        try:
            yield found
        finally:
            page.close()

    return open_page
