"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import fsspec
import pytest

from tests.support.scheduling import SharingScheduling, longest_first
from tests.support.waiting import calibrate
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.local.airflow_config import NEW_DATABASES
from tradewind.rehearsal.local.ray_start import DASHBOARD_MODULES

pytest_plugins = [f"tests.support.{name}" for name in ("budget", "properties", "shared_clusters", "stores")]

# Told to end, pytest still tears its fixtures down, and with them the clusters and the Airflows that it started.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# A shell has what it runs in the background ignore it, and so would every command that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# To compile a tiny model well takes longer than to train it. Set before JAX is imported; local clusters hand it on.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")  # a third of the time
# The four that our code asks; each further one is a process of every head.
os.environ.setdefault(DASHBOARD_MODULES, "JobHead,NodeHead,ReportHead,StateHead")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        calibrate()
        # A token or a setting that is kept at the home of who runs this decides nothing, and nothing is written there.
        share_folder(config, "HOME", "tradewind-home-")
        # What one training has compiled, all trainings of this run find: that is half of what a tiny one computes.
        share_folder(config, "JAX_COMPILATION_CACHE_DIR", "tradewind-compilations-")
        share_folder(config, NEW_DATABASES, "tradewind-databases-")


def share_folder(config: pytest.Config, variable: str, prefix: str) -> None:
    """A folder for all processes of this run, which this variable names."""
    folder = tempfile.mkdtemp(prefix=prefix)
    os.environ[variable] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Meanwhile no garbage is looked for: that takes half of the time, and what all tests share is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharingScheduling:
    return SharingScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloudStorage]:
    """A Cloud Storage with a bucket named ``bucket``, which ``gs://`` means in the module that asks for it."""
    server = LocalCloudStorage()
    server.start()
    server.buckets.create("bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield server
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    server.stop()
