"""Local Airflow in one folder: LocalExecutor, all components as processes of the stack, on loopback.

It counts as started when the API server reports a live scheduler, DAG processor and triggerer of this start. If a
component dies before that, the wait ends at once, with the end of its log.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import requests

from tradewind.rehearsal.local.airflow_config import (
    NEW_DATABASES,
    USERNAME,
    WORKER_PROCESSES,
    Ports,
    Secrets,
    write_config,
)
from tradewind.rehearsal.local.processes import LocalStack

# Arguments of the Python process that runs this Airflow.
AIRFLOW = ("-m", "airflow")
COMPONENTS = {
    "api-server": ("-m", "tradewind.rehearsal.local.airflow_server", "api-server"),
    "scheduler": (*AIRFLOW, "scheduler", "--skip-serve-logs"),
    "dag-processor": (*AIRFLOW, "dag-processor"),
    "triggerer": (*AIRFLOW, "triggerer", "--skip-serve-logs"),
}
# The log servers of scheduler and triggerer listen on every interface; this one only on loopback.
LOG_SERVER = ("-m", "uvicorn", "--factory", "airflow.utils.serve_logs.log_server:get_app")
# Variables inherited from the parent's environment. Settings of another Airflow must not leak in.
INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_WORKER_TITLE = "airflow worker -- LocalExecutor:"
_SIGNAL_TIMEOUT_S = 5.0
"""After this time, a scheduler that has not started to shut down gets a second SIGTERM.

Its SIGTERM handler raises SystemExit at an arbitrary place. In a hook of a fork, a destructor or the callback of a weak
reference, Python prints such an exception and continues.
"""
HEARTBEATS = {
    "scheduler": "latest_scheduler_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
}


class LocalAirflowError(RuntimeError):
    """The local Airflow did not start."""


class LocalAirflow:
    """Airflow in ``{stack.root}/airflow``, with ``connections`` and ``settings`` in its environment.

    Args:
        stack: Its processes.
        dags_folder: Its DAG files.
        port: Port of the API server; default: a free one.
        python: The interpreter that has Airflow; default: this one.
        database: SQLAlchemy URL of its database; default: its own SQLite.
        spares: Additional components: ``scheduler-2`` is a second scheduler. SQLite does not support them.
    """

    def __init__(
        self,
        stack: LocalStack,
        *,
        dags_folder: Path,
        connections: Mapping[str, str],
        settings: Mapping[str, str],
        port: int | None = None,
        python: Path = Path(sys.executable),
        database: str | None = None,
        spares: Sequence[str] = (),
    ) -> None:
        self.stack = stack
        self.home = stack.root / "airflow"
        self.dags_folder = dags_folder.resolve()
        self._connections = dict(connections)
        self._settings = dict(settings)
        self._ports = Ports.free(port)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._python = str(python)
        self._database = database
        self._spares = tuple(spares)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports.api}"

    @property
    def processes(self) -> Mapping[str, subprocess.Popen[bytes]]:
        """The components that this object started, by name, for tests that kill one."""
        return self._children

    @property
    def username(self) -> str:
        return USERNAME

    @property
    def password(self) -> str:
        return self._secrets().password

    def env(self) -> dict[str, str]:
        """The environment of every process of this Airflow, and of an ``airflow`` command for it."""
        return {
            **{name: os.environ[name] for name in INHERITED if name in os.environ},
            "AIRFLOW_HOME": str(self.home),
            "HOME": str(self.stack.root / "home"),
            "NO_PROXY": "127.0.0.1,localhost",
            "RAY_AUTH_MODE": "disabled",
            **{f"AIRFLOW_CONN_{conn_id.upper()}": value for conn_id, value in self._connections.items()},
            **({} if self._database is None else {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database}),
            **self._settings,
        }

    def start(self, timeout: float = 300.0) -> None:
        """Start every component; return when all of them are healthy."""
        self.prepare()
        started_at = datetime.now(UTC)
        for name in (*COMPONENTS, *self._spares):
            self.start_component(name)
        try:
            self._wait_until_healthy(started_at, time.monotonic() + timeout)
        except BaseException:
            self.stop_components()
            raise
        # Last, because only tasks need it, and the other components need both cores until then.
        self.start_component("log-server")

    def start_component(self, name: str) -> None:
        """Start or restart one component; the others are unaffected."""
        log_server = (*LOG_SERVER, "--host", "127.0.0.1", "--port", str(self._ports.logs))
        argv = {**COMPONENTS, "log-server": log_server}[name.removesuffix("-2")]
        self._children[name] = self.stack.start(f"airflow-{name}", (self._python, *argv), self.env())

    def prepare(self) -> None:
        """Write the configuration and migrate the database's schema if needed."""
        for folder in (self.home, self.stack.root / "home"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        write_config(self.home, self.dags_folder, self._ports, self._secrets())
        if self._database is not None or not self._schema_is_current():
            self._migrate()

    def is_answering(self) -> bool:
        """Whether the API server answers."""
        try:
            return requests.get(f"{self.url}/api/v2/monitor/health", timeout=10).ok
        except requests.RequestException:
            return False

    def stop_component(self, name: str, grace_seconds: float = 300.0) -> None:
        """Stop one component gracefully, as a redeploy does; a scheduler waits for its workers' tasks.

        Raises ``LocalAirflowError`` if it had to be killed after ``grace_seconds``.
        """
        child = self._children[name]
        is_stopping = partial(self._log_contains, name, "Shutting down LocalExecutor", self._log(name).stat().st_size)
        child.terminate()
        signalled_at = time.monotonic()
        deadline = signalled_at + grace_seconds
        idle: set[psutil.Process] = set()
        while not _ends_within(child, 1.0):
            if time.monotonic() > deadline:
                left = _command_lines(_with_descendants(child))
                self.kill_component(name)
                raise LocalAirflowError(
                    f"The Airflow {name} had not ended {grace_seconds:g} s after SIGTERM; these processes were left: "
                    f"{left}; the end of its log:\n{self._log_end(name)}"
                )
            idle = _end_forgotten_workers(child, idle)
            is_late = time.monotonic() > signalled_at + _SIGNAL_TIMEOUT_S
            if name.startswith("scheduler") and is_late and not is_stopping():
                child.terminate()
                signalled_at = time.monotonic()
        del self._children[name]

    def kill_component(self, name: str) -> None:
        """Kill one component and all processes that it started, as the loss of its machine does."""
        child = self._children.pop(name)
        for process in _with_descendants(child):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()

    def stop_components(self, grace_seconds: float = 10.0) -> None:
        """Stop the components that this object started; other processes of the stack continue."""
        started = {child.pid: _with_descendants(child) for child in self._children.values()}
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + grace_seconds
        for child in self._children.values():
            if not _ends_within(child, max(0.0, deadline - time.monotonic())):
                started[child.pid] |= _with_descendants(child)
                child.kill()
                child.wait()
            # A component that is stopped during its start, or by force, leaves its own child processes.
            for process in started[child.pid]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(started[child.pid], timeout=grace_seconds)
        self._children.clear()

    def dead_components(self) -> dict[str, str]:
        """Return the components that have ended by themselves, each with its exit code and its log."""
        return {
            name: f"ended with exit code {code}; its log is {self._log(name)}"
            for name, child in self._children.items()
            if (code := child.poll()) is not None
        }

    def start_dead_components(self) -> list[str]:
        """Start the components again that have ended by themselves, and return their names."""
        dead = list(self.dead_components())
        for name in dead:
            self.start_component(name)
        return dead

    def raise_if_a_component_died(self) -> None:
        """Raise ``LocalAirflowError``, with the end of its log, if a component ended unexpectedly."""
        for name, child in self._children.items():
            if (code := child.poll()) is not None:
                raise LocalAirflowError(
                    f"The Airflow {name} ended with exit code {code}; the end of {self._log(name)}:\n"
                    f"{self._log_end(name)}"
                )

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run ``airflow ARGS`` for this Airflow and return its output; the caller checks the exit code."""
        return subprocess.run(
            [self._python, *AIRFLOW, *args], env=self.env(), capture_output=True, text=True, check=False
        )

    def _log(self, name: str) -> Path:
        return self.stack.logs / f"airflow-{name}.log"

    def _log_end(self, name: str) -> str:
        return _last_lines(self._log(name).read_text(errors="replace"))

    def _log_contains(self, name: str, words: str, since: int) -> bool:
        """Whether the component's log contains the words after its first ``since`` bytes."""
        return words.encode() in self._log(name).read_bytes()[since:]

    def _secrets(self) -> Secrets:
        self.home.mkdir(parents=True, exist_ok=True)
        return Secrets.of_stack(self.home / "secrets.json")

    def _migrate(self) -> None:
        own, cached = self.home / "airflow.db", self._cached_database()
        if cached is not None and cached.exists():
            _copy_database(cached, own)
        else:
            result = self.cli("db", "migrate")
            if result.returncode != 0:
                raise LocalAirflowError(f"`airflow db migrate` failed:\n{_last_lines(result.stdout + result.stderr)}")
            if cached is not None:
                _copy_database(own, cached)
        if self._database is None:
            (self.home / "migrated").write_text(self._schema())

    def _cached_database(self) -> Path | None:
        """Return the path of this version's stored empty database, if enabled; never for an existing database."""
        folder = os.environ.get(NEW_DATABASES)
        is_new = self._database is None and not (self.home / "airflow.db").exists()
        if not folder or not is_new or self._python != sys.executable:
            return None
        return Path(folder) / f"airflow-{version('apache-airflow-core')}.db"

    def _schema_is_current(self) -> bool:
        """Check with the database and the package list; asking Airflow would cost as much as migrating."""
        note = self.home / "migrated"
        return (self.home / "airflow.db").exists() and note.exists() and note.read_text() == self._schema()

    def _schema(self) -> str:
        with closing(sqlite3.connect(self.home / "airflow.db")) as database:
            revisions = database.execute("SELECT version_num FROM alembic_version").fetchall()
        return f"{version('apache-airflow-core')} {sorted(revisions)}"

    def _wait_until_healthy(self, started_at: datetime, deadline: float) -> None:
        while not self._is_healthy(started_at):
            self.raise_if_a_component_died()
            if time.monotonic() > deadline:
                raise LocalAirflowError(f"Airflow at {self.url} is not healthy in time; its logs: {self.stack.logs}")
            time.sleep(0.2)

    def _is_healthy(self, started_at: datetime) -> bool:
        try:
            # The task API is built at its first request, which takes seconds, but a task's start times out after
            # five and retries. This is that first request.
            requests.get(f"{self.url}/execution/health", timeout=60)
            answer = requests.get(f"{self.url}/api/v2/monitor/health", timeout=10)
            return answer.ok and all_healthy(answer.json(), started_at)
        except requests.RequestException:  # not listening yet, or not answering JSON
            return False


def _with_descendants(child: subprocess.Popen[bytes]) -> set[psutil.Process]:
    """Return the process and its descendants; empty once it has ended."""
    try:
        process = psutil.Process(child.pid)
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _command_lines(processes: set[psutil.Process]) -> list[str]:
    """Return the command lines of the processes that still exist."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return sorted(found)


def _ends_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_forgotten_workers(scheduler: subprocess.Popen[bytes], seen_before: set[psutil.Process]) -> set[psutil.Process]:
    """Kill idle workers that a scheduler waits for but never told to stop, once they were seen twice.

    LocalExecutor.end sends one stop message for each live worker, and any worker may take it. A worker that ended
    before the check gets none, so one message is missing. Then one worker waits forever, and its scheduler, too. The
    first ended worker distinguishes them from workers without a stop message yet.
    """
    workers: dict[psutil.Process, str] = {}
    for process in psutil.Process(scheduler.pid).children():
        with suppress(psutil.NoSuchProcess):
            if (title := process.cmdline()[0]).startswith(_WORKER_TITLE):
                workers[process] = title
    if len(workers) == WORKER_PROCESSES or not all(title.endswith("<idle>") for title in workers.values()):
        return set()
    for worker in seen_before.intersection(workers):
        worker.kill()
    return set(workers)


def all_healthy(health: Mapping[str, Any], started_at: datetime) -> bool:
    """Whether every component has a heartbeat of this start: earlier ones stay valid 30 s too long."""
    return health["metadatabase"]["status"] == "healthy" and all(
        health[component]["status"] == "healthy"
        and (heartbeat := health[component].get(field)) is not None
        and datetime.fromisoformat(heartbeat) >= started_at
        for component, field in HEARTBEATS.items()
    )


def _copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database atomically."""
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(unfinished)) as written:
        read.backup(written)
    unfinished.replace(target)


def _last_lines(text: str, count: int = 30) -> str:
    return "\n".join(text.splitlines()[-count:])
