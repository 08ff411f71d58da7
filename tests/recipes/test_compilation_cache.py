"""A second process reuses the first one's compilations beside the outputs, also on Cloud Storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.workbench import lines_of
from tests.support.fork_server import PreparedPython
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.processes import free_port

pytestmark = pytest.mark.slow

COMPILE = """
import sys
from tradewind.recipes.lm.levanter_parts import keep_compilations
keep_compilations(sys.argv[1] + "/train-abc123")
import jax
import jax.numpy as jnp
if len(sys.argv) > 2:
    jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4))).block_until_ready()
"""
PRINT_FOLDER = """
from tradewind.recipes.lm.levanter_parts import keep_compilations
keep_compilations("/outputs/experiment/train-abc123")
import jax
print(jax.config.jax_compilation_cache_dir)
"""
OWN = {"JAX_COMPILATION_CACHE_DIR": ""}


def test_restarted_process_reuses_compilations(cloud: LocalCloudStorage, python: PreparedPython) -> None:
    env = OWN | {"STORAGE_EMULATOR_HOST": cloud.url}
    writes = []
    for _ in range(2):
        cloud.requests.clear()
        lines_of(python.start(COMPILE, "gs://bucket/experiment", env=env))
        writes.append(cloud.requests["write"])
    assert writes[0] > 0 and writes[1] == 0
    names = [item["name"] for item in cloud.buckets.list("bucket", {})["items"]]
    assert all(name.startswith("experiment/compilation-cache/") for name in names)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "/outputs/experiment/compilation-cache"), ("/shared/compilations", "/shared/compilations")],
)
def test_environment_overrides_compilation_folder(python: PreparedPython, folder: str, expected: str) -> None:
    program = python.start(PRINT_FOLDER, env={"JAX_COMPILATION_CACHE_DIR": folder})
    assert lines_of(program) == [expected]


def test_two_restarted_processes_reuse_compilations(python: PreparedPython, tmp_path: Path) -> None:
    known: list[set[str]] = []
    for _ in range(2):
        address = f"127.0.0.1:{free_port()}"
        for program in [python.start(COMPILE, str(tmp_path), address, number, env=OWN) for number in "01"]:
            lines_of(program)
        known.append({path.name for path in (tmp_path / "compilation-cache").iterdir()})
    assert known[0] == known[1]
    assert len([name for name in known[0] if name.startswith("jit__lambda")]) == 2
