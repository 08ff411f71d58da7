"""Rules for the Dockerfiles.

Each one accepts another base, installs only the locked packages, sets no package index and runs as its own user.
"""

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


def final_stage(found: list[Instruction]) -> list[Instruction]:
    last = max(number for number, one in enumerate(found) if one.name == "FROM")
    return found[last:]


@pytest.fixture(params=FILES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def found(kind: str) -> list[Instruction]:
    return instructions(REPOSITORY / "docker" / f"Dockerfile.{kind}")


def test_base_image_is_build_argument_at_locked_version(found: list[Instruction], kind: str) -> None:
    assert {one.name for one in found} <= INSTRUCTIONS
    base = found[0]
    assert base.name == "ARG" and base.rest.startswith("BASE=docker.io/")
    assert {one.rest.split()[0] for one in found if one.name == "FROM"} == {"${BASE}"}
    package = "apache-airflow" if kind == "airflow" else "ray"
    version = re.search(rf"^{package}==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    assert version is not None and version[1] in base.rest


def test_processes_are_not_roots(found: list[Instruction], kind: str) -> None:
    assert [one.rest for one in final_stage(found) if one.name == "USER"][-1] == FILES[kind]


def test_nothing_of_an_index_or_a_certificate_stays(found: list[Instruction], kind: str) -> None:
    for one in found:
        assert not INDEX.search(one.rest), one
        if one.name == "RUN":
            assert one.rest.startswith("--mount=type=secret") or "--no-index" in one.rest, one
    shells = [(REPOSITORY / "docker" / name).read_text() for name in ("build_wheel.sh", "install_python.sh")]
    assert not any(INDEX.search(text) for text in shells)


def test_only_the_lock_is_installed_and_by_its_hashes(found: list[Instruction], kind: str) -> None:
    installs = [one.rest for one in final_stage(found) if "install_python.sh /tmp" in one.rest]
    assert len(installs) == 1 and installs[0].endswith("/tmp/requirements.lock")
    texts = [file.read_text() for file in (REPOSITORY / "docker").iterdir() if file.suffix in (".sh", f".{kind}")]
    pip = re.findall(r"pip (?:install|wheel) (.*)", "".join(texts))
    assert len(pip) == 4 and all("--no-deps" in line for line in pip)
    assert all("--require-hashes" in line or "--no-index" in line or "--no-build-isolation" in line for line in pip)


def test_what_is_copied_is_let_into_the_build(found: list[Instruction]) -> None:
    allowed = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert allowed[1] == "**"
    copied = [
        part for one in found if one.name == "COPY" and "--from" not in one.rest for part in one.rest.split()[:-1]
    ]
    for path in (part for part in copied if not part.startswith("--") and part != "."):
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
    script = REPOSITORY / "docker" / "install_python.sh"
    ended = subprocess.run(
        ["bash", script, REPOSITORY / image_lock("tpu")], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert re.fullmatch(r"The base has ray 1\.13\.0, and the lock 2\.\S+: take a base with that .*\n", ended.stderr)
