"""What one Ray node of a local cluster is started with: its command, its environment, its address.

No process inherits the caller's environment beyond what ``_INHERITED`` names.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE, SliceType

_INHERITED: Final = (
    "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH",
    "PYTHONPYCACHEPREFIX", "PYTHONUNBUFFERED", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XLA_FLAGS",
)  # fmt: skip
_RAY_SETTINGS: Final = {
    # Nothing is reported to anyone.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Nobody scrapes metrics here; collecting them costs more CPU than all else in an idle cluster, and the
    # dashboard, which records its own all the same, does half as much without.
    "RAY_enable_metrics_collection": "0",
    "METRICS_RECORD_INTERVAL_S": "3600",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # By default they are nicer than all else on the machine, so a test that waits for them waits for every other one.
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
_OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
_HOST_CPUS: Final = 2
RAY_START: Final = "tradewind.rehearsal.local.ray_start"


def node_command(ip: str, temp_dir: Path, agent_port: int, options: Sequence[str]) -> list[str]:
    """Starts a node at an address of its own; ``options`` say whether it is the head, and what it has."""
    argv = [sys.executable, "-m", RAY_START, "start", *options]
    argv += [f"--node-ip-address={ip}", f"--temp-dir={temp_dir}", f"--dashboard-agent-listen-port={agent_port}"]
    argv += [f"--object-store-memory={_OBJECT_STORE_BYTES}", "--min-worker-port=0", "--max-worker-port=0"]
    return [*argv, "--include-log-monitor=false", "--disable-usage-stats", "--log-style=record", "--log-color=false"]


def host_options(gcs_address: str, num_gpus: int = 0, chips: int | None = None) -> list[str]:
    """Of a node that joins the head at ``gcs_address``, with GPUs and TPU chips that Ray only counts."""
    options = [f"--address={gcs_address}", f"--num-cpus={_HOST_CPUS}", f"--num-gpus={num_gpus}"]
    return options if chips is None else [*options, "--resources", json.dumps({"TPU": chips})]


def node_env(home: Path) -> dict[str, str]:
    """What every node has in its environment; the folder ``home`` is made if it is not there."""
    home.mkdir(parents=True, exist_ok=True)
    inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, "HOME": str(home), **_RAY_SETTINGS}


def head_memory(folder: Path) -> dict[str, str]:
    """Settings of a cluster whose head, killed and started again, knows what it knew, as ours in the cloud do.

    Its hosts wait for it as long as a start may take on a busy machine. By default they end themselves after a minute.
    """
    return {
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(folder),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    }


def tpu_host_env(slice_name: str, worker_id: int, shape: SliceType) -> dict[str, str]:
    """What a TPU machine tells the processes on it of itself, and that this one is simulated."""
    return {
        "TPU_NAME": slice_name,
        SIMULATED_VARIABLE: "1",
        "TPU_WORKER_ID": str(worker_id),
        "TPU_ACCELERATOR_TYPE": shape.name,
        **({"TPU_TOPOLOGY": shape.topology} if shape.topology else {}),
    }


def host_name(slice_name: str, worker_id: int) -> str:
    """How one host of a slice is called in logs and folders."""
    return f"{slice_name}.{worker_id}"


def loopback_addresses() -> Iterator[str]:
    """Addresses that, in all likelihood, no other cluster on this machine uses."""
    first = ipaddress.IPv4Address("127.1.0.1") + 1024 * random.randrange(16_000)
    return (str(first + number) for number in itertools.count())
