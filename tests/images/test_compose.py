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
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
    return found


def make_secrets(*folders: Path) -> None:
    subprocess.run([sys.executable, FILE.with_name("compose_secrets.py"), *folders], check=True)


@pytest.mark.slow
def test_it_fits_the_compose_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="it is not in this environment: make init")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, FILE], check=True, capture_output=True)
    (tmp_path / "bad.yaml").write_text("services: {a: {imgae: b}}")
    bad = subprocess.run([*check, tmp_path / "bad.yaml"], capture_output=True, text=True)
    assert bad.returncode == 1 and "imgae" in bad.stdout


def test_services_have_healthchecks_and_wait_for_dependencies() -> None:
    known = services()
    for name, service in known.items():
        assert ("healthcheck" in service) == (name not in ONCE), name
        for needed, condition in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert condition == {"condition": expected}, (name, needed)
            assert needed in known


def test_our_images_are_built_from_our_dockerfiles_each_once() -> None:
    built = {service["image"]: service["build"]["dockerfile"] for service in services().values() if "build" in service}
    ours = {f"{image.name}:latest": image.dockerfile for image in (IMAGES["airflow"], IMAGES["cluster"])}
    assert built == ours
    assert {service["image"] for service in services().values()} == {*ours, "postgres:17"}


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


def test_secrets_are_made_once_for_the_services_user_alone(tmp_path: Path) -> None:
    folder, shared = tmp_path / "secrets", tmp_path / "store"
    make_secrets(folder, shared)
    named = set(re.findall(r"/secrets/(\w[\w.]+)", FILE.read_text()))
    made = {file.name: file.read_text() for file in folder.iterdir()}
    assert made.keys() == named | {"done"}
    assert all(stat.S_IMODE((folder / name).stat().st_mode) == 0o600 for name in named)
    assert len(set(made.values())) == len(made)
    assert json.loads(made["passwords.json"]).keys() == {"admin"}
    assert made["database_password"] in made["database_url"]
    assert shared.is_dir()

    make_secrets(folder, shared)
    assert {file.name: file.read_text() for file in folder.iterdir()} == made


def test_secrets_that_were_half_made_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "ray_token").write_text("half")
    (tmp_path / "ray_token").chmod(0o644)
    make_secrets(tmp_path)
    assert len((tmp_path / "ray_token").read_text()) == 64
    assert stat.S_IMODE((tmp_path / "ray_token").stat().st_mode) == 0o600
