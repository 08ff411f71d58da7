"""Ray's node provider for Google Cloud, named in the cluster files: it writes nothing to IAM and creates no keys.

Only Ray imports this module: on the machine that runs ``ray up``, and on the head.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Final

import click
from googleapiclient.errors import HttpError  # type: ignore[import-untyped]
from ray.autoscaler._private.constants import AUTOSCALER_HEARTBEAT_TIMEOUT_S
from ray.autoscaler._private.gcp import config as gcp
from ray.autoscaler._private.gcp.node import GCPNodeType
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.util import check_legacy_fields
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

from tradewind.cloud_tpu.endpoints import ENDPOINT_VARIABLES
from tradewind.fleet.cloud.google_api import google_api
from tradewind.fleet.errors import FleetError
from tradewind.fleet.provider_google import (
    Representatives,
    SliceNode,
    Slices,
    VirtualMachines,
    idle_seconds,
    only_not_found,
)

_ENDPOINTS: Final = {f"{api}_endpoint": ENDPOINT_VARIABLES[api] for api in ("compute", "tpu")}
"""Settings of the provider → variables with their values on the machine that runs ``ray up``."""
_PROXY: Final = "ssh_proxy_command"
_IDLE_TIMEOUT: Final = "idle_timeout_minutes"
_DEFAULT_IDLE_MINUTES: Final = 5
"""Ray's own, where a config does not say it."""


class TradewindNodeProvider(GCPNodeProvider):
    """``GCPNodeProvider`` for clusters whose service accounts and keys exist and are named.

    Its settings are Ray's for ``gcp``, ``labels`` (labels of every node besides Ray's), and what ``bootstrap_config``
    adds: other endpoints than Google's, the SSH proxy command between nodes, and the idle timeout of slices.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._representatives = Representatives(
            idle_seconds,
            idle_timeout_s=60 * provider_config.get(_IDLE_TIMEOUT, _DEFAULT_IDLE_MINUTES),
            lost_after_s=AUTOSCALER_HEARTBEAT_TIMEOUT_S,
        )

    def _construct_clients(self) -> None:
        settings = self.provider_config
        place = (settings["project_id"], settings["availability_zone"], self.cluster_name)
        compute = google_api("compute", settings.get("compute_endpoint"))
        self.resources = {GCPNodeType.COMPUTE: VirtualMachines(compute, *place)}
        if settings.get(gcp.HAS_TPU_PROVIDER_FIELD):
            tpu = google_api("tpu", settings.get("tpu_endpoint"))
            self.resources[GCPNodeType.TPU] = Slices(tpu, *place)

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Complete a config like Ray's own bootstrap, but without its writes to the project.

        Ray's creates a project that it cannot see, a service account, and an SSH key pair, and grants roles. Here the
        config must name the key, and each node's service account.

        Raises:
            FleetError: The config does not name them.
        """
        config = copy.deepcopy(cluster_config)
        check_legacy_fields(config)
        if "ssh_private_key" not in config["auth"]:
            raise FleetError("auth.ssh_private_key is missing: name the file of a key that the project knows.")
        for name, node_type in config["available_node_types"].items():
            if not {"serviceAccount", "serviceAccounts"} & node_type["node_config"].keys():
                raise FleetError(f"{name} names no service account: add one that exists to its node_config.")
        provider = config["provider"]
        provider[gcp.HAS_TPU_PROVIDER_FIELD] = gcp._has_tpus_in_node_configs(config)
        provider |= {name: os.environ[variable] for name, variable in _ENDPOINTS.items() if os.environ.get(variable)}
        if _PROXY in config["auth"]:
            provider[_PROXY] = config["auth"][_PROXY]
        provider[_IDLE_TIMEOUT] = config.get(_IDLE_TIMEOUT, _DEFAULT_IDLE_MINUTES)
        return dict(gcp._configure_subnet(config, google_api("compute", provider.get("compute_endpoint"))))

    def prepare_for_head_node(self, cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Keep the proxy command in the head's config, which Ray removes: the head reaches the slices by it."""
        config = dict(super().prepare_for_head_node(cluster_config))
        if _PROXY in self.provider_config:
            config["auth"] = {**config["auth"], _PROXY: self.provider_config[_PROXY]}
        return config

    def safe_to_scale(self) -> bool:
        """Whether the autoscaler may act in this round; it calls this after it has listed the nodes.

        It may not while the use of hosts is unknown, since it deletes slices that seem idle.
        """
        with self.lock:
            slices = {
                name: [address for number in range(node.num_workers) if (address := node.get_internal_ip(number))]
                for name, node in self.cached_nodes.items()
                if isinstance(node, SliceNode) and node.is_running()
            }
        return self._representatives.choose(slices)

    def internal_ip(self, node_id: str) -> str:
        """Return the address by which the autoscaler knows a node: its own, or that of its slice's representative."""
        address: str = self._representatives.of(node_id) or super().internal_ip(node_id)
        return address

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Label a node, if it exists. Ray's own fails without it, and holds the lock until Google has finished."""
        node = self._get_node(node_id)
        if node.is_terminated():
            return
        try:
            self._get_resource_depending_on_node_name(node_id).set_labels(node=node, labels=tags)
        except HttpError as error:
            only_not_found(error)

    def create_node(self, base_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, dict[str, Any]]:
        """Create nodes without the provider's lock, which Ray's own holds until the last node exists."""
        labels = {**self.provider_config.get("labels", {}), **tags}
        resource = self.resources[gcp.get_node_type(base_config)]
        if isinstance(resource, Slices):
            resource.delete_dead(tags.get(TAG_RAY_USER_NODE_TYPE, ""))
        try:
            return {name: made for made, name in resource.create_instances(base_config, labels, count)}
        except NodeLaunchException as error:
            if tags.get(TAG_RAY_NODE_KIND) != NODE_KIND_HEAD:
                raise
            raise click.ClickException(f"The head could not be created: {error.description}") from None

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        """Delete a node, and wait for it if it is a head; return None, where Ray's own fails, if it does not exist."""
        resource = self._get_resource_depending_on_node_name(node_id)
        try:
            is_slice = isinstance(resource, Slices)
            return dict(resource.delete_instance(node_id=node_id, wait_for_operation=not is_slice))
        except HttpError as error:
            only_not_found(error)
        return None
