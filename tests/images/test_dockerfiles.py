"""Each Dockerfile accepts another base, installs only locked packages, sets no index and runs as its user."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.check_lock import image_lock
from scripts.images.places import IMAGES
from tests.fleet.fleets import REPOSITORY

FILES = {"cluster": "ray", "vllm": "ray", "airflow": "airflow"}
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "FROM", "LABEL", "RUN", "USER", "WORKDIR"}
INDEX = re.compile(
    r"(?i:index[-_]url|find[-_]links|trusted[-_]host|https?://)|\bPIP_(?!CONFIG_FILE|CERT|NO_CACHE_DIR|DISABLE_PIP)\w+"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, its continued lines joined."""

    name: str
    rest: str


def instructions(file: Path) -> list[Instruction]:
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.strip().partition(" ") for line in joined.splitlines())
    return [Instruction(name, rest.strip()) for name, _, rest in pairs]


def final_stage(parsed: list[Instruction]) -> list[Instruction]:
    last = max(number for number, line in enumerate(parsed) if line.name == "FROM")
    return parsed[last:]


@pytest.fixture(params=FILES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def parsed(kind: str) -> list[Instruction]:
    return instructions(REPOSITORY / "docker" / f"Dockerfile.{kind}")


def test_base_image_is_build_argument_at_locked_version(parsed: list[Instruction], kind: str) -> None:
    assert {line.name for line in parsed} <= INSTRUCTIONS
    base = parsed[0]
    assert base.name == "ARG" and base.rest.startswith("BASE=docker.io/")
    assert {line.rest.split()[0] for line in parsed if line.name == "FROM"} == {"${BASE}"}
    package = "apache-airflow" if kind == "airflow" else "ray"
    version = re.search(rf"^{package}==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    assert version is not None and version[1] in base.rest


def test_user_is_not_root_and_no_index_or_certificate_stays(parsed: list[Instruction], kind: str) -> None:
    assert [line.rest for line in final_stage(parsed) if line.name == "USER"][-1] == FILES[kind]
    for line in parsed:
        assert not INDEX.search(line.rest), line
        if line.name == "RUN":
            assert line.rest.startswith("--mount=type=secret") or "--no-index" in line.rest, line
    shells = [(REPOSITORY / "docker" / name).read_text() for name in ("build_wheel.sh", "install_python.sh")]
    assert not any(INDEX.search(text) for text in shells)


def test_only_the_lock_is_installed_with_its_hashes(parsed: list[Instruction], kind: str) -> None:
    installs = [line.rest for line in final_stage(parsed) if "install_python.sh /tmp" in line.rest]
    assert len(installs) == 1 and installs[0].endswith("/tmp/requirements.lock")
    texts = [file.read_text() for file in (REPOSITORY / "docker").iterdir() if file.suffix in (".sh", f".{kind}")]
    pip = re.findall(r"pip (?:install|wheel) (.*)", "".join(texts))
    assert len(pip) == 4 and all("--no-deps" in line for line in pip)
    assert all("--require-hashes" in line or "--no-index" in line or "--no-build-isolation" in line for line in pip)


def test_copied_files_are_not_ignored_by_the_build(parsed: list[Instruction]) -> None:
    allowed = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert allowed[1] == "**"
    copies = [line.rest.split()[:-1] for line in parsed if line.name == "COPY" and "--from" not in line.rest]
    for path in (part for parts in copies for part in parts if not part.startswith("--") and part != "."):
        for lock in ("tpu", "cuda") if "CHIPS" in path else ("",):
            file = path.replace("${CHIPS}", lock)
            assert (REPOSITORY / file).exists(), file
            assert f"!docker/*{Path(file).suffix}" in allowed


def test_each_image_has_dockerfile_installing_its_lock() -> None:
    for image in IMAGES.values():
        text = (REPOSITORY / image.dockerfile).read_text()
        kind = image.build_arguments.get("CHIPS", image.dockerfile.partition(".")[2])
        assert (REPOSITORY / image_lock(kind)).exists()
        assert str(image_lock("${CHIPS}" if image.build_arguments else kind)) in text


def test_base_with_other_ray_version_is_refused_before_install(tmp_path: Path) -> None:
    (tmp_path / "ray-1.13.0.dist-info").mkdir()
    (tmp_path / "ray-1.13.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 1.13.0\n")
    (tmp_path / "python").symlink_to(sys.executable)
    # The script can install no package: pip has no index.
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path), "PIP_NO_INDEX": "1"}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_REQUIRE_VIRTUALENV": "1"}
    command = ["bash", REPOSITORY / "docker" / "install_python.sh", REPOSITORY / image_lock("tpu")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert re.fullmatch(r"The base has ray 1\.13\.0, and the lock 2\.\S+: take a base with that .*\n", ended.stderr)


# ---- docker/compose.yaml: health checks and private secrets


COMPOSE = REPOSITORY / "docker" / "compose.yaml"
ONCE = {"secrets", "migration"}
"""Services that exit after their work."""


def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def make_secrets(*folders: Path) -> None:
    subprocess.run([sys.executable, COMPOSE.with_name("compose_secrets.py"), *folders], check=True)


@pytest.mark.slow
def test_compose_file_fits_the_compose_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="it is not in this environment: make init")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, COMPOSE], check=True, capture_output=True)
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
    named = re.findall(r"/secrets/(\w[\w.]+)", COMPOSE.read_text())
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
    named = set(re.findall(r"/secrets/(\w[\w.]+)", COMPOSE.read_text()))
    secrets = {file.name: file.read_text() for file in folder.iterdir()}
    assert secrets.keys() == named | {"done"}
    assert all(stat.S_IMODE((folder / name).stat().st_mode) == 0o600 for name in named)
    assert len(set(secrets.values())) == len(secrets) and len(secrets["ray_token"]) == 64
    assert json.loads(secrets["passwords.json"]).keys() == {"admin"}
    assert secrets["database_password"] in secrets["database_url"]
    assert shared.is_dir()

    make_secrets(folder, shared)
    assert {file.name: file.read_text() for file in folder.iterdir()} == secrets
