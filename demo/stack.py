"""Stack of the demo: a Ray cluster with one simulated TPU slice, and an Airflow that uses it.

A running stack is reused after a health check: the state file has only the addresses to check.
"""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import requests

from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.airflow_config import Secrets
from tradewind.rehearsal.local.processes import LocalStack, write_private
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

STATE_FILE = "stack.json"
SHELL_FILE = "env.sh"
CONNECTION = "ray_default"
# Logical CPUs: steps of one CPU each run concurrently, also on a small machine.
NUM_CPUS = 4
SLICES = (LocalSlice("slice-a", "v4-16"),)


@dataclass(frozen=True)
class StackAddresses:
    """Addresses of a running stack's parts. Password and token stay in their own files."""

    ray: str
    ray_token_file: str
    airflow: str
    username: str
    dags_folder: str

    def write(self, stack: LocalStack) -> None:
        (stack.root / STATE_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, stack: LocalStack) -> StackAddresses | None:
        try:
            return cls(**json.loads((stack.root / STATE_FILE).read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # no file, or that of another version
            return None

    def answer(self) -> bool:
        """Return whether both parts answer, and Airflow reports that all of it is healthy."""
        return _is_airflow_healthy(self.airflow) and self._does_ray_answer()

    def _does_ray_answer(self) -> bool:
        try:
            token = Path(self.ray_token_file).read_text()
        except OSError:
            return False
        return _get(f"{self.ray}/api/version", Authorization=f"Bearer {token}") is not None


def password(stack: LocalStack) -> str:
    return Secrets.of_stack(stack.root / "airflow" / "secrets.json").password


def running_stack(stack: LocalStack, dags_folder: Path) -> StackAddresses | None:
    """Return the addresses of a running stack that reads this DAGs folder, if any."""
    addresses = StackAddresses.read(stack)
    if addresses is None or addresses.dags_folder != str(dags_folder.resolve()) or not addresses.answer():
        return None
    return addresses


def start_stack(stack: LocalStack, dags_folder: Path) -> StackAddresses:
    """Start Ray and Airflow; first stop processes left by an earlier stack in this folder."""
    stack.stop()
    stack.root.mkdir(parents=True, exist_ok=True)
    try:
        return _start(stack, dags_folder)
    except BaseException:
        stack.stop()
        raise


def stop_stack(stack: LocalStack) -> int:
    """Stop every process of the stack; return their number."""
    for name in (STATE_FILE, SHELL_FILE):
        (stack.root / name).unlink(missing_ok=True)
    return stack.stop(grace_seconds=5.0)


def _start(stack: LocalStack, dags_folder: Path) -> StackAddresses:
    ray = LocalRay(stack, num_cpus=NUM_CPUS, slices=SLICES)
    airflow = LocalAirflow(
        stack,
        dags_folder=dags_folder,
        connections={CONNECTION: json.dumps(ray.connection)},
        settings=_settings(stack),
    )
    with ThreadPoolExecutor() as pool:
        started = pool.submit(ray.start)
        airflow.start()
        started.result()
    addresses = StackAddresses(
        ray.address, str(ray.token_file), airflow.url, airflow.username, str(dags_folder.resolve())
    )
    addresses.write(stack)
    _write_shell_file(stack, airflow, ray)
    return addresses


def _write_shell_file(stack: LocalStack, airflow: LocalAirflow, ray: LocalRay) -> None:
    """Write the shell file that points ``airflow`` and ``tradewind`` at this stack."""
    of_airflow = {name: value for name, value in airflow.env().items() if name.startswith("AIRFLOW_")}
    variables = {**of_airflow, "RAY_ADDRESS": ray.address, **ray.access}
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    write_private(stack.root / SHELL_FILE, "".join(lines))


def _settings(stack: LocalStack) -> dict[str, str]:
    return {
        "AIRFLOW__TRADEWIND__PREFIX": str(stack.root / "store"),
        "AIRFLOW__TRADEWIND__DEFAULT_CLUSTER": CONNECTION,
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        # Run only what the user asks for: unpausing a nightly pipeline also starts last night's run.
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    }


def _is_airflow_healthy(url: str) -> bool:
    health = _get(f"{url}/api/v2/monitor/health")
    return health is not None and all(part["status"] == "healthy" for part in health.values())


def _get(url: str, **headers: str) -> dict[str, dict[str, str]] | None:
    try:
        answer = requests.get(url, headers=headers, timeout=10)
        return answer.json() if answer.ok else None
    except (requests.RequestException, ValueError):
        return None
