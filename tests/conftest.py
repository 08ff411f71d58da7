"""Fixtures and settings that all tests share."""

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

# On SIGTERM, pytest still tears down its fixtures, and so stops the clusters and Airflows that they started.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# A shell makes its background jobs ignore SIGINT, and the commands that a test starts and interrupts inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Optimized compilation of a tiny model takes longer than its training. The variables must be set before the import
# of JAX; local clusters inherit them.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")  # reduces the time to a third
# The package calls only these four modules; each further one costs a process on every head.
os.environ.setdefault(DASHBOARD_MODULES, "JobHead,NodeHead,ReportHead,StateHead")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        calibrate()
        # Tests neither read nor write tokens and settings in the user's home.
        share_folder(config, "HOME", "tradewind-home-")
        # Trainings share compiled code within this run; compilation is half of the CPU time of a tiny training.
        share_folder(config, "JAX_COMPILATION_CACHE_DIR", "tradewind-compilations-")
        share_folder(config, NEW_DATABASES, "tradewind-databases-")


def share_folder(config: pytest.Config, variable: str, prefix: str) -> None:
    """Create a folder for all processes of this run, and set the variable to its path."""
    folder = tempfile.mkdtemp(prefix=prefix)
    os.environ[variable] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable Python's garbage collector during collection; it would take half of the time.

    The objects that tests share are never garbage, so the hook also freezes them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: packed ones may hold the time, and all workers must collect the same cases."""
    return argname if isinstance(val, bytes) else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharingScheduling:
    return SharingScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloudStorage]:
    """Return a Cloud Storage with a bucket ``bucket``; ``gs://`` refers to it in the requesting module."""
    server = LocalCloudStorage()
    server.start()
    server.buckets.create("bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield server
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    server.stop()
