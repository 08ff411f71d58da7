"""Input of Ray's own autoscaler: the cluster file as on the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tradewind.fleet.provider import TradewindNodeProvider

POD: Final = "tpu_slice_v4_16"
"""The type of the shipped cluster ``us-central2`` whose slices have two hosts."""


def resolved(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a cluster file as Ray's launcher resolves it, without minimum slices and without SSH logins."""
    key = folder / "key"
    key.write_text("a key")
    config["auth"]["ssh_private_key"] = str(key)
    made = TradewindNodeProvider.bootstrap_config(TradewindNodeProvider.fillout_available_node_types_resources(config))
    made["provider"]["disable_node_updaters"] = True
    for node_type in made["available_node_types"].values():
        node_type |= {"min_workers": 0, "max_workers": 0}
    return made
