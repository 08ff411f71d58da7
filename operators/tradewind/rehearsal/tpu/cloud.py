"""Local Cloud TPU API v2 over REST, as ``google.cloud.tpu_v2`` uses it.

``tpu.grpc`` serves the same state over gRPC. ``ZonedTpuCloud`` serves several projects and zones at one address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from google.longrunning import operations_pb2  # type: ignore[import-untyped]
from google.protobuf import json_format

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer, json_answer
from tradewind.rehearsal.tpu.hosts import NullHosts, SliceHosts
from tradewind.rehearsal.tpu.requests import ProjectZone, RefusedCallError, code_of, invalid
from tradewind.rehearsal.tpu.service import GET_OPERATION, REQUESTS, WRITES, TpuService

_PLACE: Final = r"/v2/(projects/[^/]+/locations/[^/]+)"
_NODE: Final = r"/v2/(projects/[^/]+/locations/[^/]+/nodes/[^/:]+)"
_QUEUED: Final = r"/v2/(projects/[^/]+/locations/[^/]+/queuedResources/[^/:]+)"
_OPERATION: Final = r"/v2/(projects/[^/]+/locations/[^/]+/operations/[^/:]+)"
_WHOLE: Final = "*"
_RULES: Final = [
    ("GET", _PLACE + "/nodes", "ListNodes", "parent", ""),
    ("POST", _PLACE + "/nodes", "CreateNode", "parent", "node"),
    ("GET", _NODE, "GetNode", "name", ""),
    ("DELETE", _NODE, "DeleteNode", "name", ""),
    ("POST", _NODE + ":getGuestAttributes", "GetGuestAttributes", "name", _WHOLE),
    ("POST", _NODE + ":stop", "StopNode", "name", ""),
    ("POST", _NODE + ":start", "StartNode", "name", ""),
    ("PATCH", _NODE, "UpdateNode", "", "node"),
    ("GET", _PLACE + "/queuedResources", "ListQueuedResources", "parent", ""),
    ("POST", _PLACE + "/queuedResources", "CreateQueuedResource", "parent", "queuedResource"),
    ("GET", _QUEUED, "GetQueuedResource", "name", ""),
    ("DELETE", _QUEUED, "DeleteQueuedResource", "name", ""),
    ("GET", _OPERATION, GET_OPERATION, "name", ""),
]
"""HTTP method, path, call, the request field in the path, and the one in the body, or ``_WHOLE``."""
_ROUTES: Final = [(method, re.compile(path), name, field, body) for method, path, name, field, body in _RULES]
_ZONE_PATH: Final = re.compile(r"/v2/(projects/[^/]+/locations/[^/]+)/")
_OF_THE_TRANSPORT: Final = ("$", "alt", "key", "prettyPrint")


class LocalTpuCloud(LoopbackServer):
    """The REST server of ``service``. Without ``hosts``, its nodes have no processes.

    Attributes:
        service: The calls over any transport.
    """

    writes = WRITES

    def __init__(
        self, hosts: SliceHosts | None = None, *, project: str = "rehearsal", zone: str = "us-central2-b"
    ) -> None:
        super().__init__()
        self.service = TpuService(hosts or NullHosts(), ProjectZone(project, zone))

    def answer(self, call: HttpRequest) -> Answer:
        for method, pattern, name, field, body in _ROUTES:
            if method == call.method and (match := pattern.fullmatch(call.path)):
                try:
                    answer = self.service.call(name, _request(name, call, field, match[1], body), "rest")
                    message = answer if isinstance(answer, operations_pb2.Operation) else type(answer).pb(answer)
                    return json_answer(name, json_format.MessageToDict(message))
                except RefusedCallError as error:
                    return _refused(name, error)
        unknown = RefusedCallError("UNIMPLEMENTED", f"{call.method} {call.path} is not served by the rehearsal")
        return _refused("unknown", unknown)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return _refused(kind, RefusedCallError(code_of(status), message, status))


class ZonedTpuCloud(LoopbackServer):
    """Forwards each request to the cloud of its zone, which need not run its own server."""

    writes = WRITES

    def __init__(self, clouds: Iterable[LocalTpuCloud]) -> None:
        super().__init__()
        self._clouds = {cloud.service.state.place.path: cloud for cloud in clouds}

    def answer(self, call: HttpRequest) -> Answer:
        match = _ZONE_PATH.match(call.path)
        if match is None or match[1] not in self._clouds:
            return self.refusal("unknown", 403, f"Permission denied on '{call.path}' (or it may not exist)")
        return self._clouds[match[1]].answer(call)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return _refused(kind, RefusedCallError(code_of(status), message, status))


def _request(name: str, call: HttpRequest, field: str, path: str, body: str) -> Any:
    """Parse the request message; refuse unknown fields and wrong types, as Google does."""
    fields: dict[str, Any] = {
        key: {"true": True, "false": False}.get(value, value)
        for key, value in call.query.items()
        if not key.startswith(_OF_THE_TRANSPORT)
    }
    try:
        if body == _WHOLE:
            fields |= json.loads(call.body or b"{}")
        elif body:
            fields[body] = json.loads(call.body or b"{}")
        if field:
            fields[field] = path
        else:
            fields[body]["name"] = path
        if name == GET_OPERATION:
            return json_format.ParseDict(fields, operations_pb2.GetOperationRequest())
        kind = REQUESTS[name]
        return kind.wrap(json_format.ParseDict(fields, kind.pb()()))
    except (json_format.ParseError, ValueError, TypeError) as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None


def _refused(name: str, error: RefusedCallError) -> Answer:
    return json_answer(name, error.body(), error.status)
