"""``tradewind cluster connections``: the fleet file beside connections in a real Airflow database."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow import settings
from airflow.models.connection import Connection
from airflow.models.team import Team
from airflow.utils.session import create_session
from sqlalchemy import select

from tests.cli.conftest import Run
from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import many_clusters, write_fleet
from tests.support.google import LocalCompute

COMMAND = ("cluster", "connections")
pytestmark = pytest.mark.slow

ADDRESS = "http://10.0.0.7:8265"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create an Airflow database without connections."""
    file = tmp_path_factory.mktemp("airflow") / "airflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{file}")
        settings.configure_vars()
        settings.dispose_orm()
        settings.configure_orm()
        Connection.metadata.create_all(settings.engine, tables=[Team.__table__, Connection.__table__])
        yield file
    settings.dispose_orm()
    settings.configure_vars()
    settings.configure_orm()


@pytest.fixture
def compute(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCompute]:
    """Set up a fleet of two clusters, one with a head, and no connections."""
    with create_session() as session:
        session.query(Connection).delete()
    file = write_fleet(tmp_path, many_clusters(1), inside=False)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    with served(LocalCompute(), "compute") as server:
        put_head(server)
        yield server


def put(**fields: Any) -> None:
    with create_session() as session:
        session.add(Connection(**{"conn_id": "here", "conn_type": "ray", **fields}))


def stored(conn_id: str = "here") -> Connection:
    with create_session() as session:
        found = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
        assert found is not None
        session.expunge(found)
        return found


def test_missing_connections_are_written_as_in_the_file(compute: LocalCompute, run: Run) -> None:
    code, out, err = run()
    assert code == 1 and out.splitlines() == ["here     here     missing", "extra-0  extra-0  missing"]
    assert "The address of extra-0 is unchanged: Cluster extra-0 has no head that runs in us-east5-a" in err
    assert run("--apply")[0] == 0
    assert run()[:2] == (0, "here     here     as in the file\nextra-0  extra-0  as in the file\n")
    written = stored()
    assert (written.conn_type, written.host) == ("ray", ADDRESS)
    extra = written.extra_dejson
    assert (extra["region"], extra["bucket"]) == ("us-central2", "my-bucket")
    assert extra["token_secret"] == "projects/my-project/secrets/RAY_AUTH_TOKEN"
    assert extra["slice_types"][:2] == ["v4-8", "v4-16"]
    assert not stored("extra-0").host, "its head is asked for when it is needed"


def test_message_about_connection_follows_its_line(
    compute: LocalCompute, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    starts = [line[:30] for line in run("extra-0", "here")[1].splitlines()]
    assert starts == ["extra-0  extra-0  missing", "tradewind: The address of extr", "here     here     missing"]


def edit(extra: dict[str, Any], **fields: Any) -> None:
    """Change the only connection."""
    with create_session() as session:
        row = session.scalar(select(Connection))
        assert row is not None
        for name, value in fields.items():
            setattr(row, name, value)
        row.set_extra(json.dumps({**row.extra_dejson, **extra}))


def test_new_head_is_written_and_extra_fields_stay(compute: LocalCompute, run: Run) -> None:
    run("here", "--apply")
    edit({"verify": False}, host="http://10.0.0.1:8265")
    code, out, _ = run("here")
    assert code == 1 and out.splitlines()[1] == f"    address: http://10.0.0.1:8265 -> {ADDRESS}"
    code, _, err = run("here", "--apply")
    assert code == 0 and "Wrote connection here; address differed." in err
    assert stored().host == ADDRESS and stored().extra_dejson["verify"] is False
    types = ",".join(reversed(stored().extra_dejson["slice_types"]))
    edit({"slice_types": types}, host="10.0.0.7", port=8265, schema="http")
    assert run("here")[0] == 0, "the same in another spelling"


def test_manual_connection_needs_replace_and_hides_secrets(compute: LocalCompute, run: Run) -> None:
    put(host="ray.example.com", port=8265, password="s3cret", extra=json.dumps({"region": "us-central2"}))
    code, out, err = run("here", "--apply", "--json")
    (compared,) = json.loads(out)
    assert code == 1 and compared["state"] == "by_hand" and stored().host == "ray.example.com"
    assert "differs in address, bucket, slice_types, token_secret, password and is unchanged" in err
    assert {"field": "password", "found": "(set)", "wanted": ""} in compared["differences"]
    code, out, more = run("here", "--apply", "--replace")
    assert code == 0 and "s3cret" not in out + err + more
    assert (stored().host, stored().password, stored().port) == (ADDRESS, None, None)
    assert run("here")[0] == 0


def test_environment_connection_is_reported_not_shadowed(
    compute: LocalCompute, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "ray", "host": "http://u:s3cret@x:8265"}))
    code, out, err = run("here", "--apply", "--replace")
    assert code == 1 and "here is read from EnvironmentVariablesBackend, not from Airflow's database" in err
    assert "s3cret" not in out + err and "address: (not shown)" in out
    with create_session() as session:
        assert session.scalar(select(Connection)) is None


def test_invalid_options_are_refused(
    compute: LocalCompute, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run("--replace")[0] == 2
    code, _, err = run("hear")
    assert code == 2 and "did you mean here?" in err


def test_unusable_database_is_reported(compute: LocalCompute, run: Run) -> None:
    Connection.__table__.drop(settings.engine)
    try:
        code, _, err = run("here")
        assert code == 1 and "Airflow's database cannot be used here (no such table: connection)" in err
    finally:
        Connection.metadata.create_all(settings.engine, tables=[Team.__table__, Connection.__table__])
