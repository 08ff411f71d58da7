"""``python -m benchmarks.ui [--quick] [PART...]``: the pages of Airflow's UI beside Airflow's own, on one server.

The runs are those of ``scripts.ui_stack``, which take a minute to make once. Figures are comparable within one run.
"""

from __future__ import annotations

import gzip
import random
import sqlite3
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import psutil
import requests

from benchmarks.harness import ROOT, Goal, at_most, bench
from benchmarks.report import Table, seconds
from scripts.ui_stack import UiStack, ui_stack

FOLDER: Final = ROOT / ".bench" / "ui"
VIEWERS: Final = 10
ENDS: Final = ExitStack()
MARKS: Final = {
    "airflow": "document.querySelector('[role=tablist], [data-testid=dag-run-header], h2')",
    "content": "document.querySelector('[data-tradewind]')?.textContent.includes('1,000')",
    "graph": "document.querySelector('[data-tradewind] .react-flow__node')",
}
"""Mark → expression that is true as soon as the page shows it."""
OBSERVER: Final = """
window.marks = {};
const look = () => {
%s
};
new MutationObserver(look).observe(document, {childList: true, subtree: true, characterData: true});
"""


@cache
def stack() -> UiStack:
    """Return the server, which runs until the benchmark ends."""
    return ENDS.enter_context(ui_stack(FOLDER))


@cache
def browser() -> Any:
    """Return Chromium, likewise."""
    from playwright.sync_api import sync_playwright

    from scripts.screenshot import CHROMIUM, FLAGS

    playwright = ENDS.enter_context(sync_playwright())
    chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
    ENDS.callback(chromium.close)
    return chromium


def logged_in() -> Any:
    """Return a browser context with an empty cache."""
    context = browser().new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(300_000)
    context.add_cookies([{"name": "_token", "value": stack().token(), "url": stack().url}])
    return context


def bench_plan(quick: bool) -> Iterator[Table | Goal]:
    """Open the plan of 1,000 steps, and a bare page of the same run."""
    [run_id] = stack().run_ids("big_plan")
    table = Table("A run of 1,000 steps, from the first byte", ("page", "Airflow's page", "first content", "graph"))
    looks = "".join(f"  if (!window.marks.{name} && {test}) window.marks.{name} = performance.now();\n"
                    for name, test in MARKS.items())  # fmt: skip
    found: dict[str, list[Mapping[str, float]]] = {"bare": [], "plan": []}
    for _ in range(2 if quick else 6):
        for name, path in (("bare", ""), ("plan", "/plugin/tradewind_plan")):
            context = logged_in()
            context.add_init_script(OBSERVER % looks)
            page = context.new_page()
            page.goto(f"{stack().url}/dags/big_plan/runs/{run_id}{path}")
            last = "airflow" if name == "bare" else "graph"
            page.wait_for_function(f"window.marks.{last} !== undefined")
            found[name].append(page.evaluate("window.marks"))
            context.close()
    medians = {name: {mark: statistics.median(one.get(mark, 0.0) for one in marks[1:]) / 1000 for mark in MARKS}
               for name, marks in found.items()}  # fmt: skip
    for name, marks in medians.items():
        table.add(name, *(seconds(marks[mark]) if marks[mark] else "" for mark in MARKS))
    plan, bare = medians["plan"], medians["bare"]
    own = seconds(plan["content"] - plan["airflow"])
    table.notes = (f"On its own page, the plan's content is there {own} after Airflow's tabs, beside Airflow's grid.",)
    yield table
    yield at_most("first content after a bare page stands", plan["content"] - bare["airflow"], 1.0)
    yield at_most("graph laid out after its content", plan["graph"] - plan["content"], 2.0)


def bench_data(quick: bool) -> Iterator[Table | Goal]:
    """Ask for pages of large files as the page Data does."""
    [files] = stack().store.glob("formats/files-??????")
    big = large_jsonl(files.parent, 50 if quick else 1000)
    parquet = {"path": f"{files}/rows.parquet", "limit": "10000"}
    table = Table("Pages of data", ("request", "first", "median of 5"))
    middle = {"path": str(big), "at": "0.5"}
    cases = {
        "10,000 rows of parquet": (parquet, 0.3),
        f"middle of {big.stat().st_size / 1e6:.0f} MB of jsonl.gz": (middle, 2.0),
    }
    for what, (given, limit) in cases.items():
        took = [timed(f"tradewind/api/data/rows?{urlencode(given)}") for _ in range(6)]
        table.add(what, seconds(took[0]), seconds(statistics.median(took[1:])))
        yield at_most(what, statistics.median(took[1:]), limit)
    table.notes = (f"Resident memory of the API server afterwards: {memory_mb():.0f} MB.",)
    yield table


def large_jsonl(folder: Path, megabytes: int) -> Path:
    """Return a file of about so many bytes packed, as one member."""
    file = folder / f"large-{megabytes}.jsonl.gz"
    if not file.exists():
        made = random.Random(5)
        with gzip.open(file.with_suffix(".part"), "wt", compresslevel=1) as lines:
            for number in range(megabytes * 1000):
                lines.write(f'{{"id": {number}, "text": "{made.randbytes(820).hex()}"}}\n')
        file.with_suffix(".part").rename(file)
    return file


def timed(path: str) -> float:
    began = time.monotonic()
    answer = requests.get(f"{stack().url}/{path}", headers=authorization(), timeout=300)
    answer.raise_for_status()
    return time.monotonic() - began


@cache
def authorization() -> dict[str, str]:
    return {"Authorization": f"Bearer {stack().token()}"}


def memory_mb() -> float:
    return float(psutil.Process(stack().pid).memory_info().rss / 1e6)


def bench_viewers(quick: bool) -> Iterator[Table | Goal]:
    """Record what a page of a running step requests, and repeat it as ten viewers: ours, and Airflow's grid."""
    length_s = 20.0 if quick else 60.0
    recorded = recorded_requests(length_s)
    table = Table(
        f"{VIEWERS} viewers of a running step",
        ("whose requests", "requests per viewer and minute", "CPU of the server"),
    )
    shares = {}
    for whose, paths in recorded.items():
        shares[whose] = cpu_share(paths, length_s)
        table.add(whose, f"{60 * sum(paths.values()) / length_s:.0f}", f"{shares[whose]:.1%}")
    table.add("nobody's", "0", f"{cpu_share(Counter(), length_s):.1%}")
    yield table
    is_less = shares["the plugin"] <= shares["Airflow"]
    yield Goal("CPU of ten live pages", "<= Airflow's own requests", f"{shares['the plugin']:.1%}", is_less)


def recorded_requests(length_s: float) -> dict[str, Counter[str]]:
    """Return path → count of the requests of one page, while its run is made to look as if it ran."""
    run_id = stack().run_ids("tiny_model")[-1]
    task = "tiny_train_small"
    set_state(run_id, task, "running")
    try:
        context = logged_in()
        page = context.new_page()
        page.goto(f"{stack().url}/dags/tiny_model/runs/{run_id}/tasks/{task}/plugin/tradewind_step")
        page.locator("[data-tradewind] > *").first.wait_for()
        page.wait_for_timeout(10_000)
        found: dict[str, Counter[str]] = {"the plugin": Counter(), "Airflow": Counter()}

        def note(request: Any) -> None:
            parts = urlsplit(request.url)
            whose = "the plugin" if "/tradewind/api/" in parts.path else "Airflow"
            found[whose][f"{parts.path}?{parts.query}".lstrip("/")] += 1

        page.on("request", note)
        page.wait_for_timeout(length_s * 1000)
        context.close()
        return found
    finally:
        set_state(run_id, task, "success")


def set_state(run_id: str, task: str, state: str) -> None:
    """Change the state of a run and its task in the database of this benchmark."""
    with closing(sqlite3.connect(stack().folder / "airflow" / "airflow.db", timeout=60)) as database:
        database.execute("UPDATE dag_run SET state = ? WHERE run_id = ?", (state, run_id))
        database.execute("UPDATE task_instance SET state = ? WHERE run_id = ? AND task_id = ?", (state, run_id, task))
        database.commit()


def cpu_share(paths: Counter[str], length_s: float) -> float:
    """Return the share of one CPU that the server takes while all viewers send these requests, evenly in time."""
    server = psutil.Process(stack().pid)
    end = time.monotonic() + length_s

    def view(delay: float) -> None:
        session = requests.Session()
        session.headers.update(authorization())
        sent = [path for path, count in paths.items() for _ in range(count)]
        for number, path in enumerate(sent):
            time.sleep(max(0.0, end - length_s + delay + number * length_s / len(sent) - time.monotonic()))
            session.get(f"{stack().url}/{path}", timeout=60)

    threads = [threading.Thread(target=view, args=(number / VIEWERS,)) for number in range(VIEWERS)]
    before = sum(server.cpu_times()[:2])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(max(0.0, end - time.monotonic()))
    return float(sum(server.cpu_times()[:2]) - before) / length_s


if __name__ == "__main__":
    with ENDS:
        bench("ui", __doc__, {"plan": bench_plan, "data": bench_data, "viewers": bench_viewers})
