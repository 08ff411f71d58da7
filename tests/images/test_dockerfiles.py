"""Each Dockerfile accepts another base, installs only locked packages, sets no package index and runs as its user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

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
