"""A fleet file whose cluster ``here`` is the shared Ray that requires a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import write_fleet
from tests.fleet.sshd import running_sshd
from tests.support.google import LocalCompute
from tests.support.shared_clusters import TOKEN, shared_cluster
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager

RAY_TOKEN = "projects/my-project/secrets/RAY_AUTH_TOKEN"


@contextmanager
def guarded_fleet(folder: Path, clusters: str = "") -> Iterator[LocalSecretManager]:
    """Set up ``fleet.yaml`` in ``folder``, a Google Cloud and an ``sshd``; ``clusters`` are further clusters."""
    secrets = LocalSecretManager()
    secrets.start()
    secrets.put(RAY_TOKEN, TOKEN)
    with (
        running_sshd(folder / "sshd") as sshd,
        served(LocalCompute(), "compute") as compute,
        pytest.MonkeyPatch.context() as patch,
    ):
        put_head(compute, ip="127.0.0.1", host_keys=dict([sshd.host_key]))
        file = write_fleet(folder, f"ssh_user: {sshd.user}\nssh_private_key: {sshd.private_key}\n")
        file.write_text(file.read_text() + clusters)
        settings = {
            "TRADEWIND_FLEET": str(file),
            "TRADEWIND_SSH_PORT": str(sshd.port),
            "TRADEWIND_HEAD_DASHBOARD": shared_cluster("guarded").address.removeprefix("http://"),
            ENDPOINT_VARIABLE: secrets.endpoint,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "_AIRFLOW_PROCESS_CONTEXT": "client",  # restored after the test
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        yield secrets
    secrets.stop()
