"""An Airflow and a Ray that exist without Tradewind: environments made by pip alone, and one of each started from them.

The environments are kept in ``.adopt``, named after what they hold, so that only the first run installs them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
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

from tests.support.waiting import limit_s, until
from tradewind.rehearsal.local.airflow_api import AirflowApi
from tradewind.rehearsal.local.processes import LocalStack, free_port

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = (ROOT / ".adopt").resolve()
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
[_RAY] = [each for each in PROJECT["dependencies"] if each.startswith("ray[")]
RAYS: Final = {"oldest": re.sub(r">=([\d.]+),.*", r"==\1.*", _RAY), "newest": f"ray[default]=={version('ray')}"}
"""The oldest that pyproject.toml allows, and the one of the lock."""
DULL: Final = re.compile(r"::(end)?group::|^  File |Pushing xcom|DagBag|DAG bundles loaded|parse complete|[Tt]rigger")
_LOCAL_BUNDLE: Final = "airflow.dag_processing.bundles.local.LocalDagBundle"
_GIT_BUNDLE: Final = "airflow.providers.git.bundles.git.GitDagBundle"


def clean_env(**more: str) -> dict[str, str]:
    """Return the environment without what this test run's own Python, Airflow and Ray set in it."""
    own = re.compile(r"(AIRFLOW|TRADEWIND|RAY|PYTHON|VIRTUAL_ENV|MARIN|JAX|XLA)")
    return {name: value for name, value in os.environ.items() if not own.match(name)} | more


def output_of(*command: str | Path, **options: Any) -> str:
    """Run a command and return its output; fail with the output if it fails."""
    options = {"env": clean_env(), "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
    done = subprocess.run([str(word) for word in command], check=False, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return str(done.stdout)


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


@dataclass(frozen=True)
class Run:
    """One DAG run, as its user sees it in Airflow."""

    api: AirflowApi
    dag: str
    id: str

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return the task instances by task; a mapped one's index follows its id."""
        found = self.api.task_instances(self.dag, self.id)
        return {re.sub(r"\[-1\]", "", f"{each['task_id']}[{each['map_index']}]"): each for each in found}

    def states(self) -> dict[str, str | None]:
        return {name: task["state"] for name, task in self.tasks().items()}

    def ended(self) -> Run:
        """Wait until the run has ended, and print what its user sees."""
        try:
            self.api.wait_for_run(self.dag, self.id, timeout=800)
        finally:
            print(f"\n{self.dag} {self.id}: {self.states()}")
            for name in self.tasks():
                lines = [line for line in self.log(name).splitlines() if not DULL.search(line)]
                print(f"  {name}:", *lines[-5:], sep="\n    ")
        return self

    def log(self, name: str) -> str:
        """Return the log of a task's newest try, as the UI shows it; empty before the first."""
        id_, number, index = (self.tasks()[name][field] for field in ("task_id", "try_number", "map_index"))
        return self.api.task_log(self.dag, self.id, id_, number, index) if number else ""

    def told(self) -> str:
        """Return the logs of all tasks."""
        return "\n".join(f"--- {name}\n{self.log(name)}" for name in self.tasks())

    def result(self, task: str) -> Any:
        return self.api.xcom(self.dag, self.id, task)

    def clear(self, task: str, *, newest_code: bool = False) -> Run:
        """Clear a task and what is downstream, and wait for the run's end."""
        self.api.clear_task(self.dag, self.id, task, downstream=True, with_latest=newest_code)
        return self.ended()


class Repository:
    """A Git repository of DAGs with a package beside them, as a team has it; its steps wait until ``gate`` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gate = folder, folder.with_name("gate")
        shutil.copytree(Path(__file__).with_name("git"), folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.gate.touch()
        self._git("init", "--quiet", "--initial-branch=main")
        self.commit(0, price=0)

    def commit(self, number: int, *, price: int, is_broken: bool = False) -> str:
        """Commit other settings, and return the commit's hash, which is the bundle's version."""
        settings = {"COMMIT": number, "PRICE": price, "IS_BROKEN": is_broken, "GATE": str(self.gate)}
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        (self.folder / "shop" / "settings.py").write_text("\n".join(lines))
        self._git("add", ".")
        self._git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", f"--message={number}")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        return output_of("git", *words, cwd=self.folder, env=clean_env(HOME=str(self.folder)))


class Site:
    """A user's Airflow, as ``airflow standalone`` starts it, and the plain Ray that its connection names."""

    def __init__(self, stack: LocalStack, airflow: Path, ray: Path, settings: Mapping[str, str]) -> None:
        self.stack, self.airflow, self.ray, self.dags = stack, airflow, ray, stack.root / "dags"
        self.home, self.outputs, self.other = (stack.root / name for name in ("airflow", "outputs", "other"))
        for folder in (self.dags, self.home, self.other):
            folder.mkdir()
        for name in ("python", "python3"):  # the PATH of the cluster has another Python than Ray's
            (self.other / name).symlink_to(Path(sys.base_prefix) / "bin" / "python3")
        self.url, self.dashboard = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        (self.home / "simple_auth_manager_passwords.json.generated").write_text('{"admin": "admin"}')
        self.api = AirflowApi(self.url, "admin", "admin")
        self.shop = Repository(stack.root / "shop")
        self._settings, self._numbers = settings, count()

    def env(self) -> dict[str, str]:
        """Return the environment of the user's Airflow and of the user's shell; the connection is in neither."""
        git = {"repo_url": str(self.shop.folder), "tracking_ref": "main", "refresh_interval": 5}
        bundles = [{"name": "dags-folder", "classpath": _LOCAL_BUNDLE, "kwargs": {"path": str(self.dags)}}]
        bundles += [{"name": "shop", "classpath": _GIT_BUNDLE, "kwargs": git}]
        values = {
            "API__BASE_URL": self.url,
            "API__HOST": "127.0.0.1",
            "API__PORT": self.url.rpartition(":")[2],
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__DEFAULT_TASK_RETRIES": "5",  # on a busy machine, Airflow fails tasks that resume early
            "CORE__DEFAULT_TASK_RETRY_DELAY": "5",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": "8",
            "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(self.home / "bundles"),
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "OPERATORS__DEFAULT_DEFERRABLE": "True",
            "TRADEWIND__PREFIX": str(self.outputs),
            "WORKERS__EXECUTION_API_TIMEOUT": "120",
            **self._settings,
        }
        settings = {f"AIRFLOW__{name}": value for name, value in values.items()}
        settings |= {"AIRFLOW_HOME": str(self.home), "PATH": f"{self.airflow}:{os.environ['PATH']}"}
        return clean_env(**settings, HOME=str(self.stack.root))

    def start(self) -> None:
        """Start both; return when they are healthy, and Airflow knows its connection."""
        head = ["--head", "--block", "--num-cpus=4", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
        ports = ("port", "dashboard-agent-listen-port", "ray-client-server-port")
        head += [f"--dashboard-port={self.dashboard.rpartition(':')[2]}", f"--temp-dir={self.stack.scratch()}"]
        head += ["--min-worker-port=0", "--max-worker-port=0", *(f"--{name}={free_port()}" for name in ports)]
        other = clean_env(PATH=f"{self.other}:/usr/bin:/bin", HOME=str(self.stack.root), RAY_AUTH_MODE="disabled")
        other["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = "300"  # a busy machine is slow
        started = [self.stack.start("ray", [str(self.ray / "ray"), "start", *head], other)]
        self.command("db", "migrate")
        started += [self.stack.start("standalone", [str(self.airflow / "airflow"), "standalone"], self.env())]
        until(lambda: self._is_ready() or any(each.poll() for each in started), "Airflow and Ray", self.logs)
        assert [each.poll() for each in started] == [None, None], self.logs()
        self.connect("ray_default")

    def connect(self, name: str, **extra: str) -> None:
        """Add a connection to the cluster to Airflow's database, as the UI's form does."""
        self.api.put_connection(name, {"conn_type": "ray", "host": self.dashboard, "extra": json.dumps(extra)})

    def shell(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command of Airflow in the user's shell; return it and the file with its output."""
        name = f"shell-{next(self._numbers)}"
        process = self.stack.start(name, [str(self.airflow / "airflow"), *words], self.env())
        return process, self.stack.logs / f"{name}.log"

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
            requests.get(f"{self.url}/execution/health", timeout=10)  # tasks then need not wait for its first answer
            health = requests.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
            return all(each["status"] == "healthy" for each in health.values()) and self.jobs() == []
        except (requests.RequestException, TypeError):
            return False

    def trigger(self, dag: str, commit: str | None = None) -> Run:
        """Start a run once Airflow has read the DAG, and the Git bundle's ``commit`` if it is given."""
        read = partial(self.api.wait_for_dag, dag, limit_s(), self._check_files)
        until(lambda: read()["bundle_version"] == commit or commit is None, f"{dag} of {commit}", read, pause_s=1)
        return Run(self.api, dag, self.api.trigger(dag))

    def _check_files(self) -> None:
        assert not (broken := self.api.broken_files()), broken

    def jobs(self) -> list[dict[str, Any]]:
        """Return the cluster's jobs, as its dashboard lists them."""
        return list(requests.get(f"{self.dashboard}/api/jobs/", timeout=60).json())

    def running(self, name: str) -> list[str]:
        """Return the running jobs whose IDs contain ``name``."""
        ids = {each["submission_id"] or "": each["status"] for each in self.jobs()}
        return [job for job, status in ids.items() if name in job and status == "RUNNING"]
