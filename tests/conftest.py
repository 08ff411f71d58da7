"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import fsspec
import pytest

from tradewind.rehearsal.cloud_storage import LocalCloudStorage

# Told to end, pytest still tears its fixtures down, and with them the clusters and the Airflows that it started.
signal.signal(signal.SIGTERM, signal.default_int_handler)


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
