"""A local fleet file, Google Cloud and bucket for cluster locks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.fleet.clouds import PROJECT as PROJECT
from tests.fleet.clouds import ZONE as ZONE
from tests.fleet.fleets import HEAD, TEMPLATE
from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.cluster_files import GeneratedFiles
from tradewind.fleet.fleet_file import load_fleet

IMAGE_TAG: Final = (
    f"projects/{PROJECT}/locations/us-central2/repositories/tradewind/packages/tradewind_cluster/tags/latest"
)
TOKEN: Final = "a-token-of-more-than-sixteen"
_FIELDS: Final = """\
    ssh_private_key: {key}
    min_workers: 0
    max_workers: 8
    slices: {{v4-16: {{min: 1}}}}
"""


def write_key(folder: Path) -> Path:
    """Create an SSH key; its public half is in a file beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / "key")], check=True)
    return folder / "key"


def write_local_fleet(folder: Path, key: Path, more: str = "", *, bucket: str = "my-bucket") -> Path:
    """Write a fleet whose cluster ``here`` wants one slice of two hosts, for machines without Docker.

    This also writes its cluster files. ``more`` holds more fields of the cluster, or more clusters, as lines.
    """
    folder.mkdir(exist_ok=True)
    file = folder / "fleet.yaml"
    file.write_text(HEAD.replace("my-bucket", bucket) + _FIELDS.format(key=key) + more)
    template = TEMPLATE.read_text()
    template = re.sub(r"(?ms)^docker:\n.*?(?=^# On the machine)", "docker: {}\n\n", template)
    template = re.sub(
        r"(?ms)^initialization_commands:\n.*?(?=^# In the c)", "initialization_commands: []\n\n", template
    )
    (folder / "cluster.yaml.j2").write_text(template)
    update(file)
    return file


def update(file: Path) -> None:
    """Regenerate the cluster files of a fleet file."""
    list(GeneratedFiles.of(load_fleet(file)).update())


def create_slice(api: TpuApi, name: str, cluster: str = "here", kind: str = "worker", **fields: Any) -> None:
    """Create a slice of one host that is set up, with a label for Ray's node type."""
    labels = {"ray-cluster-name": cluster, "ray-node-type": kind, "ray-node-status": "up-to-date"}
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "labels": labels}
    api.create(name, {**body, **fields})
