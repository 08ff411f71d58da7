"""Airflow's public REST API for rehearsals; every failure is one sentence with status and detail.

Waits poll with growing intervals up to a deadline on the monotonic clock, so a change of the wall clock neither ends
nor prolongs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import requests

from tradewind.rehearsal.local.airflow_config import DATABASE_TIMEOUT_S

REQUEST_TIMEOUT = 2.0 * DATABASE_TIMEOUT_S
"""Seconds. A request may wait for the database's full timeout, and Airflow executes it all the same."""
FINISHED_RUN_STATES = frozenset({"success", "failed"})

Json = dict[str, Any]


class AirflowApiError(RuntimeError):
    """A request that Airflow refused, or a wait that timed out."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AirflowApi:
    """A client for one Airflow, logged in as one user."""

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._credentials = {"username": username, "password": password}
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of this machine knows nothing of its loopback

    def unpause(self, dag_id: str) -> None:
        self._request("PATCH", f"dags/{quote(dag_id)}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        self._request("PATCH", f"dags/{quote(dag_id)}", json={"is_paused": True})

    def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        logical_date: datetime | None = None,
        partition_key: str | None = None,
        run_id: str | None = None,
    ) -> str:
        """Create a DAG run and return its id; by default Airflow chooses it."""
        body: Json = {"conf": dict(conf or {}), "logical_date": logical_date.isoformat() if logical_date else None}
        if partition_key is not None:
            body["partition_key"] = partition_key
        if run_id is not None:
            body["dag_run_id"] = run_id
        created: str = self._request("POST", f"dags/{quote(dag_id)}/dagRuns", json=body)["dag_run_id"]
        return created

    def dag_run(self, dag_id: str, run_id: str) -> Json:
        return self._request("GET", _run_path(dag_id, run_id))

    def dag_runs(self, dag_id: str) -> list[Json]:
        """The DAG's runs, newest first."""
        params = {"order_by": "-run_after", "limit": 100}
        runs: list[Json] = self._request("GET", f"dags/{quote(dag_id, safe='')}/dagRuns", params=params)["dag_runs"]
        return runs

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        """Return every task instance of the run, mapped ones included, in Airflow's order."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances"
        found: list[Json] = []
        while True:
            page = self._request("GET", path, params={"limit": 100, "offset": len(found)})
            found += page["task_instances"]
            if not page["task_instances"] or len(found) >= page["total_entries"]:
                return found

    def xcoms(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """Return the keys of all values that the task pushed."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries"
        return [entry["key"] for entry in self._request("GET", path, params={"limit": 100})["xcom_entries"]]

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return the value that the task pushed under ``key``, as JSON."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key, safe='')}"
        return self._request("GET", path, params={"stringify": "false"})["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        """Return the log of one try, a line per message."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        content = self._request("GET", path, params={"map_index": map_index, "full_content": "true"})["content"]
        return "\n".join(log_line(entry) for entry in content)

    def task_retries(self, dag_id: str, task_id: str) -> int:
        """Return the task's number of retries in the current DAG version."""
        return int(self._request("GET", f"dags/{quote(dag_id)}/tasks/{quote(task_id)}")["retries"])

    def clear_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        *more: str,
        downstream: bool = False,
        with_latest: bool = False,
    ) -> None:
        """Clear the tasks of a run, as "Clear" in the UI does, optionally with the current DAG version."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id, *more],
            "include_downstream": downstream,
            "only_failed": False,
            "reset_dag_runs": True,
            "run_on_latest_version": with_latest,
        }
        self._request("POST", f"dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark the task as ``success`` or ``failed``, as a user does in the UI."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}"
        self._request("PATCH", path, json={"new_state": state})

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Answer a task that waits for a user with one of its options, as the form in the UI does."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/-1/hitlDetails"
        self._request("PATCH", path, json={"chosen_options": [option]})

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Return the task's extra links: name → address."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/links"
        found: dict[str, str | None] = self._request("GET", path)["extra_links"]
        return found

    def asset_events(self, name: str) -> list[Json]:
        """Return the events of the asset of this name, oldest first."""
        found = self._request("GET", "assets", params={"name_pattern": name})["assets"]
        ids = [asset["id"] for asset in found if asset["name"] == name]
        events = [self._request("GET", "assets/events", params={"asset_id": id_})["asset_events"] for id_ in ids]
        return sorted((event for some in events for event in some), key=lambda event: event["timestamp"])

    def queued_assets(self, dag_id: str) -> list[str]:
        """Return the names of the assets whose events wait to start a run of the DAG."""
        found = self._request("GET", f"dags/{quote(dag_id)}/assets/queuedEvents")["queued_events"]
        names = {asset["id"]: asset["name"] for asset in self._request("GET", "assets")["assets"]}
        return [names[event["asset_id"]] for event in found]

    def put_connection(self, connection_id: str, fields: Mapping[str, Any]) -> None:
        """Add a connection, as the form in the UI does; ``fields`` with ``conn_type``, ``host``, ``password``..."""
        self._request("POST", "connections", json={"connection_id": connection_id, **fields})

    def import_errors(self) -> list[Json]:
        """Return the DAG files that failed to parse: ``filename`` and ``stack_trace`` of each."""
        errors: list[Json] = self._request("GET", "importErrors", params={"limit": 100})["import_errors"]
        return errors

    def wait_for_dag(self, dag_id: str, timeout: float, on_poll: Callable[[], None] | None = None) -> Json:
        """Wait until the DAG processor has read the DAG's file; return Airflow's entry of the DAG.

        ``on_poll`` is called whenever the DAG is missing.
        """
        for _ in _polls(timeout):
            try:
                return self._request("GET", f"dags/{quote(dag_id)}")
            except AirflowApiError as error:
                if error.status != 404:
                    raise
                if on_poll:
                    on_poll()
        broken = self.broken_files()
        why = f": {'; '.join(broken)}" if broken else ": no DAG file that was read defines it."
        raise AirflowApiError(f"DAG {dag_id!r} was not found within {timeout:g} s{why}")

    def wait_for_run(
        self, dag_id: str, run_id: str, timeout: float, on_poll: Callable[[Json], None] | None = None
    ) -> Json:
        """Wait until the run has ended in any state; ``on_poll`` receives every state, including the last."""
        for _ in _polls(timeout):
            run = self.dag_run(dag_id, run_id)
            if on_poll:
                on_poll(run)
            if run["state"] in FINISHED_RUN_STATES:
                return run
        raise AirflowApiError(f"Run {run_id!r} of {dag_id!r} has not ended after {timeout:g} s.")

    def broken_files(self) -> list[str]:
        """Return name and error of each unreadable DAG file."""
        return [
            f"{error['filename']} cannot be read: {error['stack_trace'].strip().splitlines()[-1]}"
            for error in self.import_errors()
        ]

    def _request(self, method: str, path: str, **kwargs: Any) -> Json:
        """Send one request with the token; fetch the token first if it is missing or expired."""
        if "Authorization" not in self._session.headers:
            self._log_in()
        response = self._send(method, f"/api/v2/{path}", **kwargs)
        if response.status_code == 401:
            self._log_in()
            response = self._send(method, f"/api/v2/{path}", **kwargs)
        return _json_or_raise(response)

    def _log_in(self) -> None:
        self._session.headers.pop("Authorization", None)
        token = _json_or_raise(self._send("POST", "/auth/token", json=self._credentials))["access_token"]
        self._session.headers["Authorization"] = f"Bearer {token}"

    def _send(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        headers = {"Accept": "application/json"}
        try:
            return self._session.request(method, self.url + path, headers=headers, timeout=REQUEST_TIMEOUT, **kwargs)
        except requests.RequestException as error:
            raise AirflowApiError(f"{method} {path}: no answer from Airflow at {self.url} ({error}).") from error


def log_line(entry: Any) -> str:
    """Format one message of a task log as a line of text, exceptions with their frames."""
    if isinstance(entry, str):
        return entry
    prefix = " ".join(str(entry[key]) for key in ("timestamp", "level") if entry.get(key))
    lines = [f"{prefix} {entry['event']}".strip(), *_exception_lines(entry.get("error_detail") or [])]
    return "\n".join(lines)


def _exception_lines(details: list[Json]) -> Iterator[str]:
    for detail in details:
        for frame in detail.get("frames") or []:
            yield f"  File {frame['filename']!r}, line {frame['lineno']}, in {frame['name']}"
        yield f"{detail.get('exc_type')}: {detail.get('exc_value')}"


def _run_path(dag_id: str, run_id: str) -> str:
    return f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"


def _polls(timeout: float, first: float = 0.2, longest: float = 2.0) -> Iterator[None]:
    """Yield at growing intervals; the last time at the deadline."""
    deadline = time.monotonic() + timeout
    pause = first
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.3, longest)


def _json_or_raise(response: requests.Response) -> Json:
    if not response.ok:
        raise AirflowApiError(_refusal(response), response.status_code)
    answer: Json = response.json()
    return answer


def _refusal(response: requests.Response) -> str:
    request = f"{response.request.method} {response.request.path_url}"
    try:
        detail = response.json().get("detail")
    except (ValueError, AttributeError):
        detail = response.text[:300]
    return f"{request}: Airflow answered {response.status_code}: {detail}"
