"""``docker/compose.yaml``: compose schema, health checks and private secrets."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.images.places import IMAGES
from tests.fleet.fleets import REPOSITORY

FILE = REPOSITORY / "docker" / "compose.yaml"
ONCE = {"secrets", "migration"}
"""Services that exit after their work."""


def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(FILE.read_text())["services"])


def make_secrets(*folders: Path) -> None:
    subprocess.run([sys.executable, FILE.with_name("compose_secrets.py"), *folders], check=True)


@pytest.mark.slow
def test_compose_file_fits_the_compose_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="it is not in this environment: make init")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, FILE], check=True, capture_output=True)
    (tmp_path / "bad.yaml").write_text("services: {a: {imgae: b}}")
    bad = subprocess.run([*check, tmp_path / "bad.yaml"], capture_output=True, text=True)
    assert bad.returncode == 1 and "imgae" in bad.stdout


def test_services_have_healthchecks_and_wait_for_dependencies() -> None:
    for name, service in services().items():
        assert ("healthcheck" in service) == (name not in ONCE), name
        for needed, condition in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert condition == {"condition": expected} and needed in services(), (name, needed)


def test_images_are_built_from_the_dockerfiles_each_once() -> None:
    built = {service["image"]: service["build"]["dockerfile"] for service in services().values() if "build" in service}
    assert built == {f"{image.name}:latest": image.dockerfile for image in (IMAGES["airflow"], IMAGES["cluster"])}
    assert {service["image"] for service in services().values()} == {*built, "postgres:17"}


def test_compose_file_binds_to_localhost_and_holds_no_secrets() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    named = re.findall(r"/secrets/(\w[\w.]+)", FILE.read_text())
    values = [
        value for service in services().values() for key, value in service.get("environment", {}).items()
        if re.search("PASSWORD|SECRET|TOKEN|KEY|CONN", key)
    ]  # fmt: skip
    assert values and all("/secrets/" in value or value.startswith("token") for value in values)
    assert set(named) >= {"ray_token", "database_password", "database_url", "fernet_key", "jwt_secret", "api_secret"}


def test_secrets_are_created_once_and_private(tmp_path: Path) -> None:
    folder, shared = tmp_path / "secrets", tmp_path / "store"
    folder.mkdir()
    (folder / "ray_token").write_text("unfinished")
    (folder / "ray_token").chmod(0o644)
    make_secrets(folder, shared)
    named = set(re.findall(r"/secrets/(\w[\w.]+)", FILE.read_text()))
    secrets = {file.name: file.read_text() for file in folder.iterdir()}
    assert secrets.keys() == named | {"done"}
    assert all(stat.S_IMODE((folder / name).stat().st_mode) == 0o600 for name in named)
    assert len(set(secrets.values())) == len(secrets) and len(secrets["ray_token"]) == 64
    assert json.loads(secrets["passwords.json"]).keys() == {"admin"}
    assert secrets["database_password"] in secrets["database_url"]
    assert shared.is_dir()

    make_secrets(folder, shared)
    assert {file.name: file.read_text() for file in folder.iterdir()} == secrets
