"""Configuration of a local Airflow: everything on loopback, no secret outside files of mode 0600.

The settings are in ``airflow.cfg`` of the stack's own AIRFLOW_HOME, so that every component and every ``airflow``
command reads the same ones, and no secret is in a process's environment or arguments. The secrets are created once per
stack and kept: a new Fernet key could not decrypt an old database.
"""

from __future__ import annotations

import base64
import configparser
import io
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from tradewind.rehearsal.local.processes import free_port, write_private

USERNAME = "admin"
# LocalExecutor forks all its workers at start; eight suffice for one machine and cost little.
WORKER_PROCESSES = 8

DATABASE_TIMEOUT_S = 60
"""How long a component waits for the database; SQLite has one writer at a time.

A scheduler that cannot write ends. The default of 5 s is too short on a busy machine. Tasks wait longer still: the API
server would execute a request that they gave up, and then refuse the retry.
"""

OBJECTS_PER_COLLECTION = 50_000
_TASK_IMPORTS = ("tradewind.operators.experiment", "tradewind.ray_jobs.client", "tradewind.ray_jobs.ray_client", "ray")
_FILE_IMPORTS = _TASK_IMPORTS[:1]
_LOCAL_SETTINGS = f"""import gc

gc.set_threshold({OBJECTS_PER_COLLECTION}, 20, 50)
"""
"""Every Airflow process reads it at start: rarer garbage collection saves a fifth of a start's CPU."""
_EARLY_IMPORTS = f"""import importlib
import sys

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

NAMES = {_TASK_IMPORTS!r} if "scheduler" in sys.argv else {_FILE_IMPORTS!r} if "dag-processor" in sys.argv else ()


@hookimpl
def on_starting(component):
    for name in NAMES:
        importlib.import_module(name)


class EarlyImports(AirflowPlugin):
    name = "early_imports"
    listeners = [sys.modules[__name__]]
"""
"""A plugin that lets the scheduler and the DAG processor import, before they fork, what forks need.

Each task and each parse of a DAG file is a fork of theirs, which spent nine tenths of its CPU on imports. The DAG
processor's forks have no Ray, as no DAG file may need it. The import precedes their signal handlers: an exception in a
fork hook is ignored, and with it a SIGTERM.
"""

NEW_DATABASES = "TRADEWIND_NEW_DATABASES"
"""Names a folder for processes that start many Airflows: the first stores its empty database there,
and the others copy it. Creating one takes a sixth of the CPU of a start.
"""

Sections = dict[str, dict[str, object]]


@dataclass(frozen=True)
class Secrets:
    """The secrets of one stack."""

    password: str
    fernet_key: str
    jwt_secret: str
    api_secret: str

    @classmethod
    def new(cls) -> Secrets:
        fernet_key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        return cls(secrets.token_urlsafe(12), fernet_key, secrets.token_urlsafe(48), secrets.token_urlsafe(48))

    @classmethod
    def of_stack(cls, path: Path) -> Secrets:
        """Read the secrets in ``path``; create them on first use."""
        if path.exists():
            return cls(**json.loads(path.read_text()))
        new = cls.new()
        write_private(path, json.dumps(asdict(new)))
        return new


@dataclass(frozen=True)
class Ports:
    """The two ports of a local Airflow: the API server's, and the server's for logs of running tasks."""

    api: int
    logs: int

    @classmethod
    def free(cls, api: int | None = None) -> Ports:
        return cls(api or free_port(), free_port())


def loopback_host() -> str:
    """The host name of this Airflow (``[core] hostname_callable``), where its logs are fetched."""
    return "127.0.0.1"


def write_config(home: Path, dags_folder: Path, ports: Ports, known: Secrets) -> None:
    """Write ``airflow.cfg``, ``airflow_local_settings.py`` and the password file of the simple auth manager."""
    write_private(home / "config" / "airflow_local_settings.py", _LOCAL_SETTINGS)
    write_private(home / "plugins" / "early_imports.py", _EARLY_IMPORTS)
    write_private(home / "passwords.json", json.dumps({USERNAME: known.password}))
    parser = configparser.ConfigParser(interpolation=None)
    for section, values in _sections(home, dags_folder, ports, known).items():
        # Airflow reads this file with interpolation, which needs percent signs doubled.
        parser[section] = {key: str(value).replace("%", "%%") for key, value in values.items()}
    text = io.StringIO()
    parser.write(text)
    write_private(home / "airflow.cfg", text.getvalue())


def _sections(home: Path, dags_folder: Path, ports: Ports, known: Secrets) -> Sections:
    return {
        **_core_sections(home, dags_folder, known),
        **_server_sections(home, ports, known),
        **_pace_sections(home),
    }


def _core_sections(home: Path, dags_folder: Path, known: Secrets) -> Sections:
    return {
        "core": {
            "dags_folder": dags_folder,
            "executor": "LocalExecutor",
            "parallelism": WORKER_PROCESSES,
            "load_examples": False,
            "fernet_key": known.fernet_key,
            "hostname_callable": f"{__name__}.loopback_host",
            "simple_auth_manager_users": f"{USERNAME}:admin",
            "simple_auth_manager_passwords_file": home / "passwords.json",
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{home}/airflow.db?timeout={DATABASE_TIMEOUT_S}"},
        "operators": {"default_deferrable": True},
    }


def _server_sections(home: Path, ports: Ports, known: Secrets) -> Sections:
    return {
        "api": {
            "base_url": f"http://127.0.0.1:{ports.api}",
            "host": "127.0.0.1",
            "port": ports.api,
            "workers": 1,
            "secret_key": known.api_secret,
        },
        "api_auth": {"jwt_secret": known.jwt_secret},
        "logging": {
            "base_log_folder": home / "logs",
            "dag_processor_child_process_log_directory": home / "logs" / "dag_processor",
            "colored_console_log": False,
            # One server serves both, because tasks and triggers log to the same folder here.
            "worker_log_server_port": ports.logs,
            "trigger_log_server_port": ports.logs,
        },
    }


def _pace_sections(home: Path) -> Sections:
    """Polling intervals of the components, short because users wait for each of them."""
    return {
        "scheduler": {"scheduler_idle_sleep_time": 0.1},
        "workers": {"min_heartbeat_interval": 1, "execution_api_timeout": 2 * DATABASE_TIMEOUT_S},
        "dag_processor": {
            "dag_bundle_storage_path": home / "bundles",
            "refresh_interval": 2,
            "bundle_refresh_check_interval": 1,
            "parsing_processes": 1,
            "print_stats_interval": 0,
        },
    }
