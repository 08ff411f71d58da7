"""Take the pictures of docs/images from the demo that is running: its last run's graph and plan, and the trigger form.

They show what a person sees who logs in with a browser; nothing on the page is made up or hidden. The browser is
Debian's Chromium with an empty profile, told to talk to nobody but this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from demo.stack import StackAddresses, password
from tradewind.rehearsal.airflow_api import AirflowApi
from tradewind.rehearsal.processes import LocalStack

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
SIZE = {"width": 1440, "height": 900}
# Until the graph's layout, which starts after the data has come, stands still.
SETTLE_MILLISECONDS = 2500


@contextmanager
def browser_page() -> Iterator[Page]:
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, headless=True, args=FLAGS, viewport=SIZE, color_scheme="light"
        )
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
    """The graph view of one run; a new browser opens a run as a grid."""
    page.goto(f"{url}/dags/{dag_id}/runs/{run_id}")
    page.get_by_role("button", name="Graph").click()
    page.locator(".react-flow__node").first.wait_for()
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.screenshot(path=path)


def picture_trigger_form(page: Page, url: str, dag_id: str, path: Path) -> None:
    page.goto(f"{url}/dags/{dag_id}")
    page.get_by_role("button", name="Trigger").first.click()
    page.get_by_role("dialog").wait_for()
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.screenshot(path=path)


def picture_plan(page: Page, url: str, dag_id: str, run_id: str, path: Path) -> None:
    """The tab of a run that shows what its plan decided, and why."""
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
        picture_graph(page, addresses.airflow, options.dag, run_id, options.out / "dag.png")
        picture_plan(page, addresses.airflow, options.dag, run_id, options.out / "plan.png")
        picture_trigger_form(page, addresses.airflow, options.dag, options.out / "trigger_form.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
