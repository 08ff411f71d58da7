"""A second process finds the compilations of the first, beside the outputs, also on Cloud Storage."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tradewind.rehearsal.cloud_storage import LocalCloudStorage

COMPILE = """
import sys
from tradewind.recipes.levanter_parts import keep_compilations
keep_compilations("gs://bucket/experiment/train-abc123")
import jax
import jax.numpy as jnp
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4))).block_until_ready()
"""


@pytest.mark.slow
def test_a_restarted_process_compiles_nothing_again(cloud: LocalCloudStorage) -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    writes = []
    for _ in range(2):
        cloud.requests.clear()
        subprocess.run([sys.executable, "-c", COMPILE], env=env, check=True, timeout=300)
        writes.append(cloud.requests["write"])
    assert writes[0] > 0 and writes[1] == 0
    names = [item["name"] for item in cloud.buckets.list("bucket", {})["items"]]
    assert all(name.startswith("experiment/compilation-cache/") for name in names)
