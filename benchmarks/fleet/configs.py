"""Cost of writing the cluster files of many clusters from the fleet file with the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from benchmarks.harness import ROOT

_HEAD = dedent(
    """\
    default_cluster: cluster-0
    defaults:
      project: my-project
      head_service_account: head@my-project.iam.gserviceaccount.com
      worker_service_account: worker@my-project.iam.gserviceaccount.com
    clusters:
    """
)
_CLUSTER = "  cluster-{}: {{zone: us-east5-a, generation: v5p, bucket: my-bucket, slices: {{v5p-64: {{min: 4}}}}}}\n"


@dataclass(frozen=True)
class ConfigsCost:
    """Seconds of a whole command.

    Attributes:
        clusters: Number of clusters.
        python_s: The command's help: the minimum of every command.
        write_s: Writing every file.
        check_s: Checking that all files are current.
    """

    clusters: int
    python_s: float
    write_s: float
    check_s: float


def measure(clusters: int) -> ConfigsCost:
    """Measure this number of clusters in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(_HEAD + "".join(map(_CLUSTER.format, range(clusters))))
        shutil.copy(ROOT / "infra" / "cluster.yaml.j2", folder)
        python = _seconds("cluster", "update-configs", "--help")
        write = _seconds("cluster", "update-configs", "--fleet", str(file))
        check = _seconds("cluster", "update-configs", "--check", "--fleet", str(file))
        written = len(list((Path(folder) / "clusters").glob("*.yaml")))
    if written != clusters:
        raise RuntimeError(f"update-configs wrote {written} files for {clusters} clusters.")
    return ConfigsCost(clusters, python, write, check)


def _seconds(*words: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "tradewind.cli.main", *words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
