"""What Ray's own autoscaler needs of a cluster: its file as the head has it, and the head as Google lists it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.support.google import LocalGoogle
from tradewind.fleet.provider import TradewindNodeProvider

POD: Final = "tpu_slice_v4_16"
"""The type of the shipped cluster ``us-central2`` whose slices have two hosts."""


def resolved(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What Ray's launcher makes of a cluster file; no slice is wanted by itself, and nobody logs in to its hosts."""
    key = folder / "key"
    key.write_text("a key")
    config["auth"]["ssh_private_key"] = str(key)
    made = TradewindNodeProvider.bootstrap_config(TradewindNodeProvider.fillout_available_node_types_resources(config))
    made["provider"]["disable_node_updaters"] = True
    for node_type in made["available_node_types"].values():
        node_type |= {"min_workers": 0, "max_workers": 0}
    return made


def put_head(google: LocalGoogle, ip: str) -> None:
    """The head of ``us-central2``."""
    labels = {"ray-cluster-name": "us-central2", "ray-node-type": "head", "ray-user-node-type": "head_default"}
    google.compute.state.add(
        "projects/my-project/zones/us-central2-b/instances/ray-us-central2-head-1-compute",
        {"labels": labels, "status": "RUNNING", "networkInterfaces": [{"networkIP": ip}]},
    )
