"""All that the simulated Compute Engine keeps: instances, disks and operations, behind one lock, and what may fail."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tradewind.rehearsal.compute.refusals import (
    FailedOperationError,
    RefusedRequestError,
    already_exists,
    denied,
    not_found,
)

Resource = dict[str, Any]
_BASE: Final = "https://www.googleapis.com/compute/v1/"


@dataclass
class ComputeFaults:
    """What goes wrong.

    Attributes:
        denied: The permissions that the account lacks, such as ``compute.instances.create``.
        quota: How many instances may exist; None: any number.
        is_out: No machine is given at present.
        flaky: How many of the next requests are answered with ``flaky_status`` and do nothing.
    """

    denied: set[str] = field(default_factory=set)
    quota: int | None = None
    is_out: bool = False
    flaky: int = 0
    flaky_status: int = 503


class ComputeState:
    """What there is, in all projects and zones. Keys are paths such as ``projects/P/zones/Z/instances/N``."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.faults = ComputeFaults()
        self.resources: dict[str, Resource] = {}
        self.operations: dict[str, Resource] = {}
        self.guests: dict[str, dict[str, str]] = {}
        """The host keys that machines wrote down, by their types."""
        self._ids = itertools.count(int(time.time() * 1000))

    def may(self, permission: str, path: str) -> None:
        """Refuse what the account may not do, and what comes while the service is flaky."""
        if self.faults.flaky:
            self.faults.flaky -= 1
            reason = "rateLimitExceeded" if self.faults.flaky_status in (403, 429) else "backendError"
            raise RefusedRequestError(self.faults.flaky_status, reason, "The service is flaky at present: try again")
        if permission in self.faults.denied:
            raise denied(permission, path)

    def get(self, path: str) -> Resource:
        """The resource at ``path``."""
        if path not in self.resources:
            raise not_found(path)
        return self.resources[path]

    def add(self, path: str, fields: Mapping[str, Any], **more: Any) -> Resource:
        """A new resource, with what Google adds to each."""
        if path in self.resources:
            raise already_exists(path)
        zone = path.partition("/zones/")[2].partition("/")[0]
        made = {
            **fields, **more, "id": str(next(self._ids)), "name": path.rpartition("/")[2], "selfLink": _BASE + path,
            "zone": f"{_BASE}{path.partition('/zones/')[0]}/zones/{zone}",
            "creationTimestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }  # fmt: skip
        made["labelFingerprint"] = fingerprint(made.get("labels", {}))
        self.resources[path] = made
        return made

    def under(self, prefix: str) -> list[Resource]:
        """The resources of a collection, in the order of their names."""
        return [self.resources[path] for path in sorted(self.resources) if path.rpartition("/")[0] == prefix]

    def users_of(self, disk: str) -> list[str]:
        """The instances that have the disk at this path."""
        return [
            path
            for path, fields in self.resources.items()
            if any(one.get("source", "").endswith(disk) for one in fields.get("disks", []))
        ]

    def check_supply(self, path: str) -> None:
        """Whether a new instance at ``path`` can be had.

        Raises:
            FailedOperationError: There is no capacity, or the quota is used up.
        """
        zone = path.split("/")[3]
        count = sum("/instances/" in there for there in self.resources)
        if self.faults.quota is not None and count > self.faults.quota:
            raise FailedOperationError(
                "QUOTA_EXCEEDED", f"Quota 'CPUS' exceeded.  Limit: {self.faults.quota}.0 in region {zone[:-2]}."
            )
        if self.faults.is_out:
            raise FailedOperationError(
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                f"The zone '{path.partition('/instances/')[0]}' does not have enough resources available to fulfill "
                "the request.  Try a different zone, or try again later.",
            )

    def begin(self, verb: str, path: str) -> Resource:
        """An operation on the resource at ``path`` that is under way."""
        name = f"operation-{next(self._ids)}"
        zone = path.split("/instances/")[0].split("/disks/")[0]
        operation: Resource = {
            "kind": "compute#operation", "name": name, "operationType": verb, "status": "RUNNING", "progress": 0,
            "targetLink": _BASE + path, "zone": _BASE + zone, "selfLink": f"{_BASE}{zone}/operations/{name}",
        }  # fmt: skip
        self.operations[f"{zone}/operations/{name}"] = operation
        return operation

    def end(self, operation: Resource, error: FailedOperationError | None = None) -> None:
        """It is done, or has failed."""
        operation.update(status="DONE", progress=100)
        if error is not None:
            operation["error"] = {"errors": [{"code": error.code, "message": error.message}]}
            operation["httpErrorStatusCode"] = 403
        self.changed.notify_all()


def fingerprint(value: Any) -> str:
    """What a later change of ``value`` must show, so that no other change is lost."""
    text = json.dumps(value, sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(text).digest()[:8]).decode()
