"""Validation of Cloud TPU API requests: names, ids, and a node's slice type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final

from google.cloud.tpu_v2 import types
from google.rpc import code_pb2  # type: ignore[import-untyped]

from tradewind.cloud_tpu.slice_types import SLICE_TYPES, SliceType, UnknownSliceTypeError, slice_type

# Errors of the Cloud TPU API: one code of ``google.rpc``, the same over REST and gRPC.

HTTP_STATUS: Final = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP status of each code."""


class RefusedCallError(Exception):
    """A call that is answered with an error; ``code`` is its name in ``google.rpc.Code``.

    ``status`` is its HTTP status: that of the code, or another one from a proxy.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = HTTP_STATUS[code] if status is None else status

    @property
    def number(self) -> int:
        """Number of the code in gRPC and operations."""
        return int(code_pb2.Code.Value(self.code))

    def body(self) -> dict[str, Any]:
        """Google's JSON form of the error."""
        return {"error": {"code": self.status, "message": self.message, "status": self.code}}


def code_of(status: int) -> str:
    """Return the first code with this HTTP status."""
    return next((code for code, other in HTTP_STATUS.items() if other == status), "UNAVAILABLE")


def not_found(name: str) -> RefusedCallError:
    """Return the error for an unknown name."""
    return RefusedCallError("NOT_FOUND", f"Resource '{name}' was not found")


def already_exists(name: str) -> RefusedCallError:
    """Return the error for a name in use."""
    return RefusedCallError("ALREADY_EXISTS", f"Resource '{name}' already exists")


def invalid(message: str) -> RefusedCallError:
    """Return the error for an invalid request."""
    return RefusedCallError("INVALID_ARGUMENT", message)


_ID: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PARENT: Final = re.compile(r"projects/([^/]+)/locations/([^/]+)")
_SUBNETWORK: Final = ip_network("10.128.0.0/9")
_GENERATIONS: Final = {
    types.AcceleratorConfig.Type.V4: "v4",
    types.AcceleratorConfig.Type.V5LITE_POD: "v5litepod",
    types.AcceleratorConfig.Type.V5P: "v5p",
    types.AcceleratorConfig.Type.V6E: "v6e",
}


@dataclass(frozen=True)
class ProjectZone:
    """The one project and zone of the service."""

    project: str
    zone: str

    @property
    def path(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"

    def check(self, path: str, may_be_any: bool = False) -> None:
        """Refuse a request about another project or zone; ``path`` is a parent or a resource's name."""
        found = _PARENT.match(path)
        if found is None:
            raise invalid(f"Invalid resource name '{path}': projects/PROJECT/locations/ZONE is expected")
        project, zone = found.groups()
        if project != self.project or (zone != self.zone and not (may_be_any and zone == "-")):
            raise RefusedCallError("PERMISSION_DENIED", f"Permission denied on '{found[0]}' (or it may not exist)")

    def name(self, collection: str, last: str) -> str:
        """Return the full name of a resource with this id, which is checked."""
        if not _ID.fullmatch(last):
            raise invalid(f"Invalid id '{last}' in {collection}: it must match {_ID.pattern}")
        return f"{self.path}/{collection}/{last}"


def shape_of(node: types.Node) -> SliceType:
    """Return the slice type of a node, by its accelerator's type or its configuration."""
    if not node.runtime_version:
        raise invalid("node.runtime_version is required")
    _check_cidr_block(node.cidr_block)
    config = node.accelerator_config
    if bool(node.accelerator_type) == bool(config.topology):
        raise invalid("Exactly one of node.accelerator_type and node.accelerator_config must be set")
    if node.accelerator_type:
        try:
            return slice_type(node.accelerator_type)
        except UnknownSliceTypeError as error:
            raise invalid(f"Accelerator type '{node.accelerator_type}' is not available: {error}") from None
    generation = _GENERATIONS.get(config.type_)
    for shape in SLICE_TYPES.values():
        if shape.generation == generation and shape.topology == config.topology:
            return shape
    raise invalid(f"Topology '{config.topology}' is not available for TPU type {config.type_.name}")


def cidr_block(number: int) -> str:
    """Return the default address block of a node."""
    return str(ip_network((int(_SUBNETWORK[0]) + number % 2**17 * 8, 29)))


def _check_cidr_block(requested: str) -> None:
    """Refuse an address block that overlaps a network of the project; default blocks belong to one."""
    try:
        block = ip_network(requested) if requested else None
    except ValueError as error:
        raise invalid(f"node.cidr_block is no block of addresses: {error}") from None
    if block is not None and block.overlaps(_SUBNETWORK):
        raise invalid(f"node.cidr_block {requested} conflicts with subnetwork 'default' ({_SUBNETWORK}) of the network")


def node_ids(spec: types.QueuedResource.Tpu.NodeSpec) -> list[str]:
    """Return the node ids of one entry of a queued resource."""
    many = spec.multislice_params
    if bool(spec.node_id) == bool(many.node_count):
        raise invalid("Exactly one of node_spec.node_id and node_spec.multislice_params must be set")
    if spec.node_id:
        return [spec.node_id]
    if many.node_count < 2:
        raise invalid("node_spec.multislice_params.node_count must be at least 2")
    if not many.node_id_prefix:
        raise invalid("node_spec.multislice_params.node_id_prefix is required")
    return [f"{many.node_id_prefix}-{number}" for number in range(many.node_count)]
