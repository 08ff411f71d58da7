"""Real head with one of Ray's autoscalers and Ray's test provider; no test asks it for a node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

_HEAD_ID = "f" * 51 + "00000"
_NODE_TYPES = {
    "head": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
    "big": {"resources": {"CPU": 8, "TPU": 4}, "node_config": {}, "labels": {"kind": "big"}, "max_workers": 1},
    "none": {"resources": {"CPU": 1, "rare": 4}, "node_config": {}, "max_workers": 0},
}
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("auth", "docker", "file_mounts"), {}),
    **dict.fromkeys(("initialization_commands", "setup_commands", "head_setup_commands"), []),
    **dict.fromkeys(("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"), []),
    **dict.fromkeys(("cluster_synced_files", "rsync_exclude", "rsync_filter"), []),
}


class AutoscaledRay(LocalRay):
    """One head; ``generation`` of its autoscaler is 1 or 2."""

    def __init__(self, stack: LocalStack, *, generation: int) -> None:
        own = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
        if generation == 2:
            own |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": _HEAD_ID}
            own |= {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID}
        super().__init__(stack, token="", num_cpus=1, env=own)

    def _start_node(
        self, name: str, stack: LocalStack, ip: str, options: Sequence[str], env: Mapping[str, str]
    ) -> None:
        provider = {
            "type": "external",  # Ray's list has a name for this provider, but the wheel lacks a file that it needs
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": _HEAD_ID,
        }
        config = {
            **_EMPTY,
            "cluster_name": "test",
            "max_workers": 8,
            "upscaling_speed": 1.0,
            "idle_timeout_minutes": 5,
            "provider": provider,
            "available_node_types": _NODE_TYPES,
            "head_node_type": "head",
            "file_mounts_sync_continuously": False,
        }
        path = self.stack.root / "autoscaling.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))  # JSON is YAML
        super()._start_node(name, stack, ip, [*options, f"--autoscaling-config={path}"], env)
