"""The application of the pages in this process, over hostile files, and one rule by which each answer is judged.

An answer shows nothing from outside the roots and no secret. It is data that a browser can parse, within the limits of
size, or a refusal with a sentence. Nothing connects to what a request, a file or a record names.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hostile.page_files import AS_BYTES, SECRET, write_files, write_outside

ROLES: Final = {"viewer": "VIEWER", "user": "USER", "admin": "ADMIN"}
MAX_BYTES: Final = 17 << 20
"""Of an answer: an image has 16 MB at most, a plan 12, a page of rows 8 and what JSON adds."""
MAX_REFUSAL: Final = 40_000
RUN: Final = "manual__2026-11-29T19:00:00+00:00"


@dataclass
class Server:
    """The application as users of each role see it, and what was wrong with its answers.

    Attributes:
        beside: The folder beside the root, from which nothing may be shown.
        canary: Host and port of a server to which nothing may connect.
        connections: Connections that this process or a reader began.
    """

    client: Any
    session: Any
    tokens: Mapping[str, str]
    root: Path
    beside: Path
    canary: str
    connections: list[str]
    wrong: list[str] = field(default_factory=list)
    asked: int = 0

    def ask(
        self, address: str, role: str = "viewer", /, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Any:
        """Ask as a user of this role, and note what is wrong with the answer."""
        self.asked += 1
        auth = {"Authorization": f"Bearer {self.tokens[role]}"} if role in self.tokens else {}
        answer = self.client.get(address, params=query or None, headers={**auth, **(headers or {})})
        problem = problem_of(answer)
        if problem is None and role == "anonymous" and answer.status_code != 401:
            problem = f"{answer.status_code} without a login"
        if problem is not None:
            self.wrong.append(f"{role} {address[:200]} {str(query)[:200]}: {problem}")
        return answer

    def put(self, task_id: str, key: str, value: Any, run_id: str = RUN) -> None:
        """Store an XCom."""
        from airflow.models.xcom import XComModel

        number = self.session.query(XComModel).count()
        ids = {"dag_run_id": number, "dag_id": "d", "run_id": run_id, "task_id": task_id, "map_index": -1}
        self.session.add(XComModel(**ids, key=key, value=value))
        self.session.commit()

    def check(self, requests: int) -> None:
        """Check all answers since the last call, which are at least so many."""
        asked, wrong, self.asked, self.wrong = self.asked, self.wrong, 0, []
        assert asked >= requests
        assert not wrong, f"{len(wrong)} of {asked} requests:\n" + "\n".join(wrong[:60])
        assert not self.connections, self.connections


def problem_of(answer: Any) -> str | None:
    """Return what is wrong with an answer, by the rule of this module."""
    text, status = answer.text, answer.status_code
    shown = text + str(answer.headers)
    if SECRET in shown or ",".join(map(str, AS_BYTES[:9])) in shown.replace(" ", ""):
        return f"{status} shows a secret"
    if len(answer.content) > MAX_BYTES:
        return f"{len(answer.content):,} bytes"
    if not (answer.is_success or 400 <= status < 500 or status == 503):
        return f"{status} {text[:300]}"
    if "default-src 'none'" not in answer.headers.get("content-security-policy", ""):
        return "no policy"
    if answer.is_success and not answer.headers["content-type"].startswith("application/json"):
        return None
    try:
        found = json.loads(text, parse_constant=_refused)
    except ValueError as error:
        return f"{status} {error}: {text[:100]}"
    if not answer.is_success and (not found.get("detail") or len(text) > MAX_REFUSAL or "Traceback" in text):
        return f"{status} says nothing, or too much: {len(text):,} characters: {text[:200]}"
    return None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON, so no browser parses the answer")


@contextmanager
def running_pages(folder: Path) -> Iterator[Server]:
    """Run the application over hostile files in ``folder``, with Airflow's database and its simple auth manager."""
    try:
        with pytest.MonkeyPatch.context() as patch, _canary() as (canary, connections):
            root, beside = folder / "root", folder / "outside"
            root.mkdir()
            patch.chdir(root)
            write_outside(beside)
            write_files(root, beside)
            for name, value in {
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
                "AIRFLOW__API_AUTH__JWT_SECRET": SECRET * 3,
                "AIRFLOW_CONN_RAY_DEFAULT": f"ray://me:{SECRET}@127.0.0.1:9",
                "MARKER_OF_THE_ENVIRONMENT": SECRET,
                "AIRFLOW__TRADEWIND__ALLOWED_ROOTS": str(root),
                "AIRFLOW__TRADEWIND__FLEET_FILE": f"{folder}/fleet.yaml",
                "STORAGE_EMULATOR_HOST": f"http://{canary}",
                "AWS_ENDPOINT_URL_S3": f"http://{canary}",
            }.items():
                patch.setenv(name, value)
            _connect()
            with _client(patch) as (client, session, tokens):
                yield Server(client, session, tokens, root, beside, canary, connections)
    finally:
        _connect()


def _connect() -> None:
    """Connect this process to the database that the environment names."""
    import airflow

    airflow.settings.configure_vars()
    airflow.settings.reconfigure_orm()


@contextmanager
def _client(patch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, dict[str, str]]]:
    """Return a client, a session for XComs, whose tables here refer to no others, and a token for each role."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.settings import engine as database
    from fastapi.testclient import TestClient
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import StaticPool

    from tradewind.browsing.pool import shared_pool

    application = importlib.import_module("tradewind_ui.api.app")
    import_all_models()
    Base.metadata.create_all(database)
    engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)
    XComModel.metadata.create_all(engine, tables=[XComModel.__table__, TaskInstance.__table__])
    manager: Any = create_auth_manager()
    users = {name: SimpleAuthManagerUser(username=name, role=role) for name, role in ROLES.items()}
    with Session(engine) as session:
        patch.setitem(application.pages.dependency_overrides, _get_session, lambda: session)
        with TestClient(application.app, raise_server_exceptions=False) as client:
            yield client, session, {name: manager.generate_jwt(user) for name, user in users.items()}
        shared_pool().end()


_watched: list[list[str]] = []


def _watch(event: str, args: Any) -> None:
    for seen in _watched:
        if event in ("socket.connect", "socket.getaddrinfo"):
            seen.append(f"{event} {args[1:] if event == 'socket.connect' else args}")


@contextmanager
def _canary() -> Iterator[tuple[str, list[str]]]:
    """Listen on the loopback, and note each connection to it, and each that this process begins."""
    seen: list[str] = []

    def note(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, address = listening.accept()
                peer.close()
                seen.append(str(address))

    sys.addaudithook(_watch)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=note, args=(listening,), daemon=True).start()
        _watched.append(seen)
        yield f"127.0.0.1:{listening.getsockname()[1]}", seen
        _watched.clear()
        listening.shutdown(socket.SHUT_RDWR)
