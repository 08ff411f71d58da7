"""Take the pictures of docs/images from the running demo: its last run's graph and plan.

They show what a user sees in a browser; nothing on the page is made up or hidden. The browser is Debian's Chromium with
an empty profile, restricted to this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

from demo.stack import StackAddresses, password
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
SIZE: ViewportSize = {"width": 1440, "height": 900}
FLAT_SIZE: ViewportSize = {"width": 1440, "height": 600}
"""Size for the graph of a pipeline, which is wide and flat."""
# For a machine that is busy training.
PATIENCE_MILLISECONDS = 240_000
# Time for the graph's layout, which starts after the data has arrived.
SETTLE_MILLISECONDS = 2500


@contextmanager
def browser_page() -> Iterator[Page]:
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport=SIZE,
            color_scheme="light",
        )
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        try:
            yield context.new_page()
        finally:
            context.close()


def log_in(page: Page, url: str, username: str, secret: str) -> None:
    page.goto(f"{url}/auth/login")
    page.locator("input[name=username]").fill(username)
    page.locator("input[name=password]").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda address: "/auth/" not in address)


def picture_graph(page: Page, url: str, dag_id: str, run_id: str, path: Path) -> None:
    """Take the graph view of one run on the whole page; a new browser shows a grid beside the run's details.

    The browser remembers the page's state, so this picture is the last.
    """
    page.set_viewport_size(FLAT_SIZE)
    page.goto(f"{url}/dags/{dag_id}/runs/{run_id}")
    page.locator("button[value=graph]").click()
    page.get_by_role("button", name="Collapse Details Panel").click()
    page.locator(".react-flow__node").first.wait_for()
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.get_by_role("button", name="Fit View").click()
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.screenshot(path=path)


def picture_plan(page: Page, url: str, dag_id: str, run_id: str, path: Path) -> None:
    """Take the tab of a run with the decisions of its plan and their reasons."""
    page.goto(f"{url}/dags/{dag_id}/runs/{run_id}/plugin/tradewind_plan")
    page.frame_locator("iframe").locator("table").wait_for()
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.screenshot(path=path)


def newest_run(api: AirflowApi, dag_id: str) -> str:
    runs = api.dag_runs(dag_id)
    if not runs:
        raise SystemExit(f"{dag_id} has no run yet: `make demo` makes one.")
    return str(runs[0]["dag_run_id"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT / ".demo")
    parser.add_argument("--dag", default="nightly_code_lm")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    stack = LocalStack(options.root)
    addresses = StackAddresses.read(stack)
    if addresses is None or not addresses.answer():
        raise SystemExit(f"No demo runs in {options.root}: start it with `make demo`.")
    run_id = newest_run(AirflowApi(addresses.airflow, addresses.username, password(stack)), options.dag)
    options.out.mkdir(parents=True, exist_ok=True)
    with browser_page() as page:
        log_in(page, addresses.airflow, addresses.username, password(stack))
        picture_plan(page, addresses.airflow, options.dag, run_id, options.out / "plan.png")
        picture_graph(page, addresses.airflow, options.dag, run_id, options.out / "dag.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
