"""Take the pictures of docs/images: the UI's pages from sample runs, and the graph of a run of the demo.

They show what a user sees in a browser; nothing on the page is made up or hidden. The runs are those of
``scripts.ui_stack``, and the demo's, if one runs. The browser is Debian's Chromium with an empty profile, restricted to
this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, ViewportSize, sync_playwright

from demo.stack import StackAddresses, password
from scripts.ui_stack import UiStack, ui_stack
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
MAX_PICTURE_BYTES = 200_000
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


def pages_of(stack: UiStack) -> dict[str, str]:
    """Return the name of each picture and the page that it shows."""
    trained = stack.run_ids("tiny_model")[-1]
    [files] = stack.store.glob("formats/files-??????")
    return {
        "plan": f"dags/tiny_model/runs/{trained}/plugin/tradewind_plan",
        "step": f"dags/tiny_model/runs/{trained}/tasks/tiny_train_small/plugin/tradewind_step",
        "data": f"plugin/tradewind_data?{urlencode({'path': f'{files}/rows.jsonl.gz'})}",
        "experiments": f"plugin/tradewind_experiments?{urlencode({'prefix': f'{stack.store}/tiny'})}",
        "fleet": "plugin/tradewind_fleet",
    }


def picture_pages(stack: UiStack, out: Path) -> None:
    """Take the five pages; on a run's and a task's, Airflow's own list beside them is folded away."""
    for name, path in pages_of(stack).items():
        with browser_page() as page:
            page.context.add_cookies([{"name": "_token", "value": stack.token(), "url": stack.url}])
            page.goto(f"{stack.url}/{path}")
            root = page.locator("[data-tradewind]").first
            root.wait_for(state="attached")
            page.locator("[data-tradewind] > *").first.wait_for()
            page.wait_for_function("!document.querySelector('[data-tradewind] .chakra-spinner')")
            page.wait_for_timeout(SETTLE_MILLISECONDS)
            file = out / f"{name}.png"
            page.screenshot(path=file)
            if file.stat().st_size > MAX_PICTURE_BYTES:
                print(f"{file} has {file.stat().st_size:,} bytes, more than {MAX_PICTURE_BYTES:,}.")


def newest_run(api: AirflowApi, dag_id: str) -> str:
    runs = api.dag_runs(dag_id)
    if not runs:
        raise SystemExit(f"{dag_id} has no run yet: `make demo` makes one.")
    return str(runs[0]["dag_run_id"])


def picture_demo(root: Path, dag: str, path: Path) -> None:
    """Take the graph of the demo's last run, if a demo runs."""
    stack = LocalStack(root)
    addresses = StackAddresses.read(stack)
    if addresses is None or not addresses.answer():
        print(f"No demo runs in {root}, so {path.name} stays as it is: `make demo` starts one.")
        return
    run_id = newest_run(AirflowApi(addresses.airflow, addresses.username, password(stack)), dag)
    with browser_page() as page:
        log_in(page, addresses.airflow, addresses.username, password(stack))
        picture_graph(page, addresses.airflow, dag, run_id, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT / ".demo")
    parser.add_argument("--dag", default="nightly_code_lm")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir(), "tradewind"), help="the pictures show its name"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ui_stack(options.folder) as stack:
        picture_pages(stack, options.out)
    picture_demo(options.root, options.dag, options.out / "dag.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
