"""A second process finds the compilations of the first, beside the outputs, also on Cloud Storage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.processes import free_port

COMPILE = """
import sys
from tradewind.recipes.lm.levanter_parts import keep_compilations
keep_compilations("gs://bucket/experiment/train-abc123")
import jax
import jax.numpy as jnp
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4))).block_until_ready()
"""


SAY_FOLDER = """
from tradewind.recipes.lm.levanter_parts import keep_compilations
keep_compilations("/outputs/experiment/train-abc123")
import jax
print(jax.config.jax_compilation_cache_dir)
"""
ENV = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}


@pytest.mark.slow
def test_a_restarted_process_compiles_nothing_again(cloud: LocalCloudStorage) -> None:
    env = {**ENV, "STORAGE_EMULATOR_HOST": cloud.url, "JAX_PLATFORMS": "cpu"}
    writes = []
    for _ in range(2):
        cloud.requests.clear()
        subprocess.run([sys.executable, "-c", COMPILE], env=env, check=True, timeout=300)
        writes.append(cloud.requests["write"])
    assert writes[0] > 0 and writes[1] == 0
    names = [item["name"] for item in cloud.buckets.list("bucket", {})["items"]]
    assert all(name.startswith("experiment/compilation-cache/") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({}, "/outputs/experiment/compilation-cache"),
        ({"JAX_COMPILATION_CACHE_DIR": "/shared/compilations"}, "/shared/compilations"),
    ],
)
def test_the_folder_that_the_environment_names_wins(more: dict[str, str], folder: str) -> None:
    env = {**ENV, **more, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SAY_FOLDER], env=env, check=True, timeout=300, stdout=subprocess.PIPE)
    assert done.stdout.decode().strip() == folder


COMPILE_IN_TWO = """
import sys
from tradewind.recipes.lm.levanter_parts import keep_compilations
keep_compilations(sys.argv[1] + "/train-abc123")
import jax
import jax.numpy as jnp
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4))).block_until_ready()
"""


@pytest.mark.slow
def test_of_two_processes_none_compiles_anything_again(tmp_path: Path) -> None:
    known: list[set[str]] = []
    for _ in range(2):
        address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-c", COMPILE_IN_TWO, str(tmp_path), address]
        started = [subprocess.Popen([*command, number], env={**ENV, "JAX_PLATFORMS": "cpu"}) for number in "01"]
        assert [process.wait(300) for process in started] == [0, 0]
        known.append({path.name for path in (tmp_path / "compilation-cache").iterdir()})
    assert known[0] == known[1]
    assert len([name for name in known[0] if name.startswith("jit__lambda")]) == 2
