"""Start Airflow's API server with sample runs, to look at the UI's pages: ``python -m scripts.ui_stack --port 8080``.

There is no scheduler: the runs are made by ``dag.test()`` while the server starts, once per folder. The plugin is that
of this checkout. The users ``admin``, ``viewer`` and ``runner`` have their names as passwords. SIGTERM stops all.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests

from scripts.ui_samples.clusters import sample_clusters
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack, free_port, write_private

ROOT: Final = Path(__file__).resolve().parents[1]
SAMPLES: Final = ROOT / "scripts" / "ui_samples"
USERS: Final = {"admin": "admin", "viewer": "viewer", "runner": "user"}
"""User → role of the simple auth manager; a user's password is its name."""
MADE: Final = "made"
"""File of a folder whose runs are complete."""
START_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True)
class UiStack:
    """A running server.

    Attributes:
        url: Its address, without a slash at the end.
        folder: Contains ``store``, the only allowed root, and the logs.
        pid: Process id of the API server.
    """

    url: str
    folder: Path
    pid: int

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def token(self, username: str = "admin") -> str:
        """Log in and return a bearer token, which is also the value of the cookie ``_token``."""
        login = {"username": username, "password": username}
        answer = requests.post(f"{self.url}/auth/token", json=login, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def run_ids(self, dag_id: str) -> list[str]:
        """Return the runs of a DAG, oldest first."""
        headers = {"Authorization": f"Bearer {self.token()}"}
        answer = requests.get(f"{self.url}/api/v2/dags/{dag_id}/dagRuns?order_by=id", headers=headers, timeout=30)
        answer.raise_for_status()
        return [run["dag_run_id"] for run in answer.json()["dag_runs"]]


@contextmanager
def ui_stack(folder: Path, port: int | None = None, base_path: str = "", *, few: bool = False) -> Iterator[UiStack]:
    """Run the server for the length of a block.

    Args:
        folder: Gets all files; the runs of an earlier start are kept, and servers of other ports may run on it.
        port: Of the server; default: a free one.
        base_path: Path of ``[api] base_url``, such as ``/airflow``.
        few: Make the runs of hello_world and a plain DAG only, in a tenth of the time.
    """
    folder = folder.resolve()
    port = port or free_port()
    stack = LocalStack(folder / f"server-{port}")
    home = stack.root / "airflow"
    (folder / "airflow").mkdir(parents=True, exist_ok=True)
    home.parent.mkdir(exist_ok=True)
    if not home.is_symlink():
        home.symlink_to(folder / "airflow")
    copy_dags(folder)
    with sample_clusters(stack.root) as clusters:
        airflow = LocalAirflow(
            stack,
            dags_folder=folder / "dags",
            connections=connections(folder),
            settings=settings(folder, port, base_path) | clusters.env,
            port=port,
        )
        with served(airflow, folder, few) as pid:
            found = UiStack(f"{airflow.url}{base_path}", folder, pid)
            if not few:
                outputs = sorted(found.store.glob("tiny/train_small-??????"))
                clusters.belongs_to(found.run_ids("tiny_model")[-1], str(outputs[-1]))
            yield found


@contextmanager
def served(airflow: LocalAirflow, folder: Path, few: bool) -> Iterator[int]:
    """Make the runs while the server starts; return the server's process id, and stop it at the end."""
    stack = airflow.stack
    try:
        with alone(folder):
            if not have_runs(folder, few):
                for name in ("airflow", "store"):
                    shutil.rmtree(folder / name, ignore_errors=True)
                (folder / "airflow").mkdir()
            airflow.prepare()
            airflow.start_component("api-server")
            if not have_runs(folder, few):
                make_runs(stack, airflow, folder, few)
        wait_until_answering(airflow)
        yield airflow.processes["api-server"].pid
    finally:
        stack.stop(grace_seconds=5.0)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time prepare the folder; servers of other ports may run on it."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def copy_dags(folder: Path) -> None:
    """Copy the sample DAGs and the smallest example, whose steps then run in the worker."""
    for name in ("dags", "big"):
        shutil.copytree(SAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    text = (ROOT / "dags" / "hello_world.py").read_text()
    for old, new in {
        "from tradewind import ": "from tradewind import on_airflow_worker, run_param, ",
        "fn=make_data,": "fn=make_data, resources=on_airflow_worker(),",
        "fn=make_stats,": "fn=make_stats, resources=on_airflow_worker(),",
        "n=versioned(100)": 'n=versioned(run_param("n"))',
        "steps=[stats]": 'steps=[stats], params={"n": 100}',
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "dags" / "hello_world.py").write_text(text)


def connections(folder: Path) -> dict[str, str]:
    """Return the connection of the default cluster, whose bucket is the store; no step uses the cluster."""
    extra = {"bucket": str(folder / "store")}
    return {"ray_default": json.dumps({"conn_type": "ray", "host": "http://127.0.0.1:1", "extra": extra})}


def settings(folder: Path, port: int, base_path: str) -> dict[str, str]:
    """Return Airflow's settings: the users, the address and the allowed roots."""
    passwords = folder / "passwords.json"
    write_private(passwords, json.dumps({name: name for name in USERS}))
    kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": name, "classpath": kind, "kwargs": {"path": str(folder / path)}}
        for name, path in (("samples", "dags"), ("big_plan", "big"))
    ]
    return {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}{base_path}",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__TRADEWIND__ALLOWED_ROOTS": str(folder / "store"),
        "PYTHONPATH": f"{ROOT}:{folder / 'dags'}",
    }


def have_runs(folder: Path, few: bool) -> bool:
    """Return whether an earlier start has made the runs."""
    made = folder / MADE
    return made.exists() and made.read_text() in ("all", *(["few"] if few else []))


def make_runs(stack: LocalStack, airflow: LocalAirflow, folder: Path, few: bool) -> None:
    """Run the sample DAGs."""
    argv = [sys.executable, "-m", "scripts.ui_samples.runs", *(["--few"] if few else [])]
    child = stack.start("runs", argv, airflow.env())
    if child.wait(timeout=START_TIMEOUT_S) != 0:
        log = stack.logs / "runs.log"
        raise RuntimeError(f"The sample runs failed; the end of {log}:\n{log.read_text()[-4000:]}")
    write_private(folder / MADE, "few" if few else "all")


def wait_until_answering(airflow: LocalAirflow) -> None:
    """Wait until the server answers, also for a page of the plugin, which loads its application then."""
    url = airflow.env()["AIRFLOW__API__BASE_URL"]
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        airflow.raise_if_a_component_died()
        try:
            if requests.get(f"{url}/api/v2/monitor/health", timeout=10).ok:
                requests.get(f"{url}/tradewind/static/main.js", timeout=60)
                return
        except requests.RequestException:
            time.sleep(0.1)
    raise TimeoutError(f"The API server at {url} does not answer; its log is {airflow.stack.logs}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--folder", type=Path, default=ROOT / ".ui-stack")
    parser.add_argument("--base-path", default="", help="path of [api] base_url, such as /airflow")
    parser.add_argument("--login", action="store_true", help="print a bearer token of each user")
    options = parser.parse_args()
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # also while it starts
    try:
        with ui_stack(options.folder, options.port, options.base_path) as stack:
            print(f"{stack.url} (users and passwords: {', '.join(USERS)}); store: {stack.store}", flush=True)
            for name in USERS if options.login else ():
                print(f"{name}: {stack.token(name)}", flush=True)
            end.wait()
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
