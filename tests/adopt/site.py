"""An Airflow and a Ray that exist without Tradewind: environments made by pip alone, and one of each started from them.

The environments are kept in ``.adopt``, named after what they hold, so that only the first run installs them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, Final

import requests

from tests.support.waiting import until
from tradewind.rehearsal.local.processes import LocalStack, free_port

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / ".adopt"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
[_RAY] = [each for each in PROJECT["dependencies"] if each.startswith("ray[")]
RAYS: Final = {
    "oldest": re.sub(r">=([\d.]+),.*", r"==\1.*", _RAY),
    "newest": f"ray[default]=={version('ray')}",
}
"""The oldest that pyproject.toml allows, and the one of the lock."""
ENDED: Final = {"success", "failed", "skipped", "upstream_failed", "removed"}


def clean_env(**more: str) -> dict[str, str]:
    """Return the environment without what this test run's own Python, Airflow and Ray set in it."""
    own = re.compile(r"(AIRFLOW|TRADEWIND|RAY|PYTHON|VIRTUAL_ENV|MARIN|JAX|XLA)")
    return {name: value for name, value in os.environ.items() if not own.match(name)} | more


def output_of(*command: str | Path, **options: Any) -> str:
    """Run a command and return its output; fail with the output if it fails."""
    done = subprocess.run(
        [str(word) for word in command], text=True, stdout=-1, stderr=-2, check=False, **{"env": clean_env()} | options
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def environment(*requirements: str | Path) -> Path:
    """Return the ``bin`` folder of an environment into which pip has installed exactly these, and their dependencies.

    A path is a distribution of this checkout: installed anew each time, its dependencies once.
    """
    own = [path for path in requirements if isinstance(path, Path)]
    others = [text for text in requirements if isinstance(text, str)]
    needed = [*others, *(str(PROJECT["dependencies"]) for _ in own)]
    name = re.sub(r"[^\w.]+", "-", others[0]).strip("-.")
    folder = KEPT / f"{name}-{sha256(json.dumps([sys.version, needed]).encode()).hexdigest()[:8]}"
    install = (folder / "bin" / "python", "-m", "pip", "--quiet", "--quiet", "install")
    KEPT.mkdir(exist_ok=True)
    with (KEPT / f"{folder.name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)  # another run may make it as well
        if not (folder / "complete").exists():
            output_of(sys.executable, "-m", "venv", "--clear", folder)
            output_of(*install, *others, *own)
            (folder / "complete").touch()
        elif own:
            output_of(*install, "--no-deps", "--force-reinstall", *own)
    return folder / "bin"


def distributions(folder: Path) -> tuple[Path, Path]:
    """Build the checkout's sdist and wheel, as a release does, and return their paths."""
    output_of(environment("build") / "python", "-m", "build", "--outdir", folder, ROOT)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@dataclass(frozen=True)
class Run:
    """One DAG run, as its user sees it in Airflow."""

    site: Site
    dag: str
    id: str

    @property
    def path(self) -> str:
        return f"dags/{self.dag}/dagRuns/{self.id}"

    def states(self) -> dict[str, str | None]:
        """Return the state of each task; a mapped one's index follows its id."""
        found = self.site.api("GET", f"{self.path}/taskInstances")["task_instances"]
        return {f"{each['task_id']}{_index(each['map_index'])}": each["state"] for each in found}

    def ended(self) -> Run:
        """Wait until the run has ended, and print what its user sees."""
        until(
            lambda: self._state() in ENDED,
            f"the end of {self.path}",
            lambda: f"{self.states()}\n{self.told()}",
            pause_s=1,
        )
        print(f"\n{self.dag} {self.id}: {self._state()} {self.states()}")
        for task in self.states():
            lines = [line for line in self.log(task).splitlines() if not line.startswith(("::", "Pushing", "Worker s"))]
            print(f"  {task}:", *lines[-6:], sep="\n    ")
        return self

    def _state(self) -> str:
        return str(self.site.api("GET", self.path)["state"])

    def log(self, task: str, number: int = 0) -> str:
        """Return the log of a task's try, by default the newest, as the UI shows it."""
        name, _, index = task.partition("[")
        at = {"map_index": index.rstrip("]") or -1}
        of = f"{self.path}/taskInstances/{name}"
        newest = self.site.api("GET", f"{of}/{at['map_index']}" if index else of)["try_number"]
        if not newest:
            return ""  # it has not begun
        lines = self.site.api("GET", f"{of}/logs/{number or newest}", params=at | {"full_content": True})
        return "\n".join(_text_of(line) for line in lines["content"])

    def told(self) -> str:
        """Return the logs of all tasks."""
        return "\n".join(f"--- {task}: {state}\n{self.log(task)}" for task, state in self.states().items())

    def xcom(self, task: str, key: str = "return_value") -> Any:
        return self.site.api("GET", f"{self.path}/taskInstances/{task}/xcomEntries/{key}")["value"]

    def clear(self, *tasks: str, newest_code: bool = False) -> Run:
        """Clear tasks, as the UI's button does."""
        body = {"dry_run": False, "dag_run_id": self.id, "task_ids": list(tasks), "only_failed": False}
        body |= {"run_on_latest_version": newest_code, "include_downstream": True}
        self.site.api("POST", f"dags/{self.dag}/clearTaskInstances", json=body)
        return self


def _index(number: int) -> str:
    return "" if number < 0 else f"[{number}]"


def _text_of(line: Any) -> str:
    if not isinstance(line, dict):
        return str(line)
    errors = [f"{each['exc_type']}: {each['exc_value']}" for each in line.get("error_detail") or ()]
    return " ".join([str(line.get("event", "")), *errors])


class Site:
    """A user's Airflow, as ``airflow standalone`` starts it, and the plain Ray that its connection names."""

    def __init__(self, stack: LocalStack, airflow: Path, ray: Path, settings: Mapping[str, str]) -> None:
        self.stack, self.airflow, self.ray = stack, airflow, ray
        self.dags, self.home = stack.root / "dags", stack.root / "airflow"
        self.outputs, self.other = stack.root / "outputs", stack.root / "other" / "bin"
        for folder in (self.dags, self.home, self.other):
            folder.mkdir(parents=True)
        # The python of the PATH is another one than Ray's.
        (self.other / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
        (self.other / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
        self._ports = [free_port() for _ in range(3)]
        self.url, self.dashboard = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._settings, self._numbers = settings, count()

    def env(self) -> dict[str, str]:
        """Return the environment of the user's Airflow and of the user's shell; the connection is in neither."""
        api, logs = self.url, self._ports[0]
        values = {
            "HOME": str(self.stack.root),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__BASE_URL": api,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": api.rpartition(":")[2],
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "2",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "5",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{api}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(self.home / "bundles"),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._ports[1]),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(logs),
            "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
            "AIRFLOW__TRADEWIND__PREFIX": str(self.outputs),
        }
        return clean_env(**values, **self._settings, PATH=f"{self.airflow}:{os.environ['PATH']}")

    def start(self) -> None:
        """Start both; return when Airflow is healthy and knows its connection."""
        port, temp = str(self._ports[2]), self.stack.scratch()
        head = ["--head", "--block", "--num-cpus=4", f"--port={port}", "--node-ip-address=127.0.0.1"]
        head += [f"--dashboard-port={self.dashboard.rpartition(':')[2]}", f"--temp-dir={temp}"]
        head += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
        head += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
        other = clean_env(PATH=f"{self.other}:/usr/bin:/bin", HOME=str(self.stack.root), RAY_AUTH_MODE="disabled")
        other["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = "300"  # a busy machine is slow
        ray = self.stack.start("ray", [str(self.ray / "ray"), "start", *head], other)
        self.command("db", "migrate")
        self.connect("ray_default")
        airflow = self.stack.start("standalone", [str(self.airflow / "airflow"), "standalone"], self.env())
        until(lambda: self._is_ready() or ray.poll() or airflow.poll(), "Airflow and Ray", self.logs)
        assert (ray.poll(), airflow.poll()) == (None, None), self.logs()

    def connect(self, name: str, **extra: str) -> None:
        """Add a connection to the cluster to Airflow's database."""
        given = ["--conn-type=ray", f"--conn-host={self.dashboard}", f"--conn-extra={json.dumps(extra)}"]
        self.command("connections", "add", name, *given)

    def shell(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command of Airflow in the user's shell; return it and the file with its output."""
        name = f"shell-{next(self._numbers)}"
        return self.stack.start(
            name, [str(self.airflow / "airflow"), *words], self.env()
        ), self.stack.logs / f"{name}.log"

    def command(self, *words: str) -> str:
        """Run a command of Airflow in the user's shell, and return its output."""
        process, printed = self.shell(*words)
        until(lambda: process.poll() is not None, f"the end of airflow {words}", printed.read_text)
        assert process.returncode == 0, printed.read_text()
        return printed.read_text()

    def logs(self) -> str:
        ends = {path.name: path.read_text(errors="replace")[-3000:] for path in self.stack.logs.glob("*.log")}
        return "\n".join(f"--- {name}\n{text}" for name, text in ends.items())

    def _is_ready(self) -> bool:
        try:
            health = requests.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
            ready = all(each["status"] == "healthy" for each in health.values())
            return ready and requests.get(f"{self.dashboard}/api/version", timeout=10).ok
        except (requests.RequestException, TypeError):
            return False

    def api(self, method: str, path: str, **options: Any) -> Any:
        """Call Airflow's REST API; wait while it does not know the object, as after a file was added."""
        token = requests.get(f"{self.url}/auth/token", timeout=60).json()["access_token"]
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        answer = requests.request(method, f"{self.url}/api/v2/{path}", headers=headers, timeout=60, **options)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def trigger(self, dag: str, **conf: Any) -> Run:
        """Start a run, once Airflow has read the DAG."""
        until(lambda: self._is_read(dag), f"DAG {dag}", lambda: self.api("GET", "importErrors"), pause_s=1)
        body = {"logical_date": None, "conf": conf, "dag_run_id": f"run-{time.time_ns()}"}
        return Run(self, dag, self.api("POST", f"dags/{dag}/dagRuns", json=body)["dag_run_id"])

    def _is_read(self, dag: str) -> bool:
        errors = self.api("GET", "importErrors")["import_errors"]
        assert not errors, errors
        return any(each["dag_id"] == dag for each in self.api("GET", "dags", params={"limit": 100})["dags"])

    def read(self, commit: str) -> None:
        """Wait until Airflow has read the DAGs of this commit."""
        asked = partial(self.api, "GET", "dags/shop")
        until(lambda: self._is_read("shop") and asked()["bundle_version"] == commit, commit, asked, pause_s=1)

    def jobs(self) -> Any:
        """Return the cluster's jobs, as its dashboard lists them."""
        return requests.get(f"{self.dashboard}/api/jobs/", timeout=60).json()
