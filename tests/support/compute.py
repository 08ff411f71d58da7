"""Compute Engine v1 over REST, as Google's Python client uses it: instances, disks, subnetworks, operations."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, json_answer

Test = Callable[[Mapping[str, Any]], bool]

_TOKEN: Final = re.compile(r'\s*(?:([()]|AND\b|OR\b|NOT\b)|([\w.\-]+)\s*(!=|=|:|eq\b|ne\b)\s*("[^"]*"|[^\s()]+))')


class BadFilterError(ValueError):
    """A list filter is invalid."""


def parse_filter(text: str) -> Test:
    """Parse the filter of a list call, for example ``(labels.a = b) AND (NOT labels.c:*)``.

    It has ``=``, ``!=`` and ``:``, joined by AND, OR, NOT and brackets, with Python's precedence; adjacent terms mean
    AND. An empty filter matches everything.
    """
    tests: list[Test] = []
    words: list[str] = []
    at = 0
    while text[at:].strip():
        if (found := _TOKEN.match(text, at)) is None:
            raise BadFilterError(f"Invalid list filter expression: {text[at:]!r}")
        at = found.end()
        word, field, operator, value = found.groups()
        if words and words[-1].endswith(")") and word not in ("AND", "OR", ")"):
            words.append("and")
        words.append(word.lower() if word else f"tests[{len(tests)}](fields)")
        if not word:
            tests.append(_comparison(field, operator, value.strip('"')))
    try:
        test: Test = eval(f"lambda fields: {' '.join(words) or True}", {"tests": tests})
    except SyntaxError:
        raise BadFilterError(f"Invalid list filter expression: {text!r}") from None
    return test


def _comparison(field: str, operator: str, value: str) -> Test:
    def actual(fields: Mapping[str, Any]) -> str | None:
        first, _, rest = field.partition(".")
        found = fields.get(first)
        if rest:
            found = found.get(rest) if isinstance(found, Mapping) else None
        return None if found is None else str(found)

    match operator:
        case "=" | "eq":
            return lambda fields: actual(fields) == value
        case "!=" | "ne":
            return lambda fields: actual(fields) != value
        case _ if value == "*":
            return lambda fields: actual(fields) is not None
    return lambda fields: value in (actual(fields) or "")


class MachineError(RuntimeError):
    """A machine did not start."""


@dataclass(frozen=True)
class MachineMetadata:
    """Metadata that a machine reads about itself; ``disks`` outlive it."""

    name: str
    labels: Mapping[str, str]
    disks: tuple[str, ...]


@dataclass(frozen=True)
class RunningMachine:
    """A machine that has started, with the SSH host keys that it writes into its metadata, by key type."""

    address: str
    host_keys: Mapping[str, str]


class MachineBackend(Protocol):
    """Interface that starts and kills machines."""

    def start(self, described: MachineMetadata) -> RunningMachine:
        """Start a machine, or raise ``MachineError`` and leave nothing of it; return once it is up."""

    def kill(self, name: str) -> None:
        """Remove the machine and kill all its processes."""


class NullMachines:
    """Backend for tests of the API alone: an instance is RUNNING at once and runs nothing."""

    def __init__(self) -> None:
        self._numbers = itertools.count(2)

    def start(self, described: MachineMetadata) -> RunningMachine:
        return RunningMachine(f"10.128.0.{next(self._numbers)}", {})

    def kill(self, name: str) -> None:
        """Do nothing, since no machine exists."""


class RefusedRequestError(Exception):
    """Request refused with an HTTP error; ``reason`` is Google's error code."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    def answer(self, kind: str) -> Answer:
        """Return the error as an HTTP answer."""
        reasons = [{"message": self.message, "domain": "global", "reason": self.reason}]
        error = {"code": self.status, "message": self.message, "errors": reasons}
        return json_answer(kind, {"error": error}, self.status)


class FailedOperationError(Exception):
    """Failure of an accepted request; ``code`` appears in the operation's error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def not_found(path: str) -> RefusedRequestError:
    """Return the error for a missing resource."""
    return RefusedRequestError(404, "notFound", f"The resource '{path}' was not found")


def denied(permission: str, path: str) -> RefusedRequestError:
    """Return the error for a missing permission."""
    return RefusedRequestError(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def invalid(message: str) -> RefusedRequestError:
    """Return the error for an invalid request."""
    return RefusedRequestError(400, "invalid", f"Invalid value for field: {message}")


Resource = dict[str, Any]
_BASE: Final = "https://www.googleapis.com/compute/v1/"


@dataclass
class ComputeFaults:
    """Injected faults: permissions that the account lacks, and how many instances the zone can supply."""

    denied: set[str] = field(default_factory=set)
    quota: int | None = None
    is_out: bool = False


class ComputeState:
    """Resources of all projects and zones, by path: ``projects/P/zones/Z/instances/N``."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.faults = ComputeFaults()
        self.resources: dict[str, Resource] = {}
        self.operations: dict[str, Resource] = {}
        self.guests: dict[str, dict[str, str]] = {}
        """Instance path → the SSH host keys that its machine published, by key type."""
        self._ids = itertools.count(int(time.time() * 1000))

    def check_permission(self, permission: str, path: str) -> None:
        """Refuse requests without permission."""
        if permission in self.faults.denied:
            raise denied(permission, path)

    def get(self, path: str) -> Resource:
        """Return the resource at ``path``."""
        if path not in self.resources:
            raise not_found(path)
        return self.resources[path]

    def add(self, path: str, fields: Mapping[str, Any], **more: Any) -> Resource:
        """Add a resource with the fields that Google sets."""
        if path in self.resources:
            raise RefusedRequestError(409, "alreadyExists", f"The resource '{path}' already exists")
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
        """Return the resources of a collection, sorted by name."""
        return [self.resources[path] for path in sorted(self.resources) if path.rpartition("/")[0] == prefix]

    def check_unused(self, disk: str) -> None:
        """Refuse the request if an instance uses the disk at this path."""
        for path, fields in self.resources.items():
            if any(used.get("source", "").endswith(disk) for used in fields.get("disks", [])):
                message = f"The disk resource '{disk}' is already being used by '{path}'"
                raise RefusedRequestError(400, "resourceInUseByAnotherResource", message)

    def check_supply(self, path: str) -> None:
        """Fail the operation if the zone has no capacity for an instance at ``path``, or the quota is used up."""
        zone = path.split("/")[3]
        count = sum("/instances/" in known for known in self.resources)
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
        """Create a running operation on the resource at ``path``."""
        name = f"operation-{next(self._ids)}"
        zone = path.split("/instances/")[0].split("/disks/")[0]
        operation: Resource = {
            "kind": "compute#operation", "name": name, "operationType": verb, "status": "RUNNING", "progress": 0,
            "targetLink": _BASE + path, "zone": _BASE + zone, "selfLink": f"{_BASE}{zone}/operations/{name}",
        }  # fmt: skip
        self.operations[f"{zone}/operations/{name}"] = operation
        return operation

    def end(self, operation: Resource, error: FailedOperationError | None = None) -> None:
        """Mark the operation as done or failed."""
        operation.update(status="DONE", progress=100)
        if error is not None:
            operation["error"] = {"errors": [{"code": error.code, "message": error.message}]}
            operation["httpErrorStatusCode"] = 403
        self.changed.notify_all()


def fingerprint(value: Any) -> str:
    """Return the fingerprint of ``value``; an update must send it, so that it overwrites no concurrent change."""
    text = json.dumps(value, sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(text).digest()[:8]).decode()


PREFIX: Final = "/compute/v1/"
_ZONE: Final = r"projects/[^/]+/zones/[^/]+"
_ITEM: Final = re.compile(rf"({_ZONE}/(instances|disks)/[^/]+)(?:/(\w+))?")
_COLLECTION: Final = re.compile(rf"({_ZONE}/(instances|disks))")
_OPERATION: Final = re.compile(rf"{_ZONE}/operations/[^/]+")
_SUBNETWORKS: Final = re.compile(r"projects/[^/]+/regions/[^/]+/subnetworks")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_PAGE: Final = 500


class ComputeService:
    """Compute Engine of all projects and zones; ``machines`` starts and kills the machines of instances."""

    def __init__(self, machines: MachineBackend | None = None) -> None:
        self.state = ComputeState()
        self._machines = machines or NullMachines()
        self._threads: list[threading.Thread] = []

    def answer(self, call: HttpRequest) -> Answer:
        """Handle the request at once; slow work continues in a thread and has an operation."""
        path = call.path.removeprefix(PREFIX)
        with self.state.changed:
            kind, act = self._route(call, path)
            try:
                return json_answer(kind, act())
            except RefusedRequestError as error:
                return error.answer(kind)

    def end_all(self) -> None:
        """Kill all machines."""
        for thread in self._threads:
            thread.join()
        for path in [path for path in self.state.resources if "/instances/" in path]:
            self._machines.kill(path.rpartition("/")[2])

    def _route(self, call: HttpRequest, path: str) -> tuple[str, Callable[[], Resource]]:
        body = json.loads(call.body) if call.body else {}
        if found := _COLLECTION.fullmatch(path):
            if call.method == "GET":
                return f"{found[2]}.list", lambda: self._list(call, found[1], found[2])
            insert = self._insert_instance if found[2] == "instances" else self._insert_disk
            return f"{found[2]}.insert", lambda: insert(found[1], body)
        if found := _ITEM.fullmatch(path):
            item, collection, verb = found.groups()
            acts: dict[tuple[str, str | None], tuple[str, Callable[[], Resource]]] = {
                ("GET", None): ("get", lambda: self._get(item, collection)),
                ("DELETE", None): ("delete", lambda: self._delete(item, collection)),
                ("GET", "getGuestAttributes"): ("getGuestAttributes", lambda: self._guest_attributes(item, call)),
                ("POST", "setLabels"): ("setLabels", lambda: self._set_labels(item, body)),
            }
            if (call.method, verb) in acts:
                name, act = acts[call.method, verb]
                return f"{collection}.{name}", act
        if _OPERATION.fullmatch(path):
            return "zoneOperations.get", lambda: self._operation(path)
        if _SUBNETWORKS.fullmatch(path):
            return "subnetworks.list", lambda: self._subnetworks(path)
        return "unknown", lambda: self.state.get(path)

    def _list(self, call: HttpRequest, prefix: str, collection: str) -> Resource:
        self.state.check_permission(f"compute.{collection}.list", prefix.rpartition("/zones/")[0])
        try:
            test = parse_filter(call.query.get("filter", ""))
        except BadFilterError as error:
            raise invalid(f"'filter': {error}") from None
        size = min(int(call.query.get("maxResults", _MAX_PAGE)), _MAX_PAGE)
        after = call.query.get("pageToken", "")
        fitting = [one for one in self.state.under(prefix) if one["name"] > after and test(one)]
        page = {"kind": "compute#list", "items": fitting[:size]} if fitting else {"kind": "compute#list"}
        return {**page, "nextPageToken": fitting[size - 1]["name"]} if len(fitting) > size else page

    def _get(self, path: str, collection: str) -> Resource:
        self.state.check_permission(f"compute.{collection}.get", path)
        return self.state.get(path)

    def _subnetworks(self, path: str) -> Resource:
        self.state.check_permission("compute.subnetworks.list", path.rpartition("/")[0])
        return {"items": [{"name": "default", "selfLink": f"https://www.googleapis.com/compute/v1/{path}/default"}]}

    def _operation(self, path: str) -> Resource:
        if path not in self.state.operations:
            raise not_found(path)
        return self.state.operations[path]

    def _guest_attributes(self, path: str, call: HttpRequest) -> Resource:
        self.state.check_permission("compute.instances.getGuestAttributes", path)
        self.state.get(path)
        namespace = call.query.get("queryPath", "").rstrip("/")
        written = self.state.guests.get(path, {}) if namespace == "hostkeys" else {}
        if not written:
            raise RefusedRequestError(
                404, "notFound", f"The resource '{namespace}/' of type 'Guest Attribute' was not found."
            )
        items = [{"namespace": namespace, "key": key, "value": value} for key, value in written.items()]
        return {"kind": "compute#guestAttributes", "queryPath": f"{namespace}/", "queryValue": {"items": items}}

    def _set_labels(self, path: str, body: dict[str, Any]) -> Resource:
        self.state.check_permission("compute.instances.setLabels", path)
        instance = self.state.get(path)
        if body.get("labelFingerprint") != instance["labelFingerprint"]:
            message = "Labels fingerprint either invalid or resource labels have changed"
            raise RefusedRequestError(412, "conditionNotMet", message)
        instance["labels"] = body.get("labels", {})
        instance["labelFingerprint"] = fingerprint(instance["labels"])
        return self._done("setLabels", path)

    def _insert_disk(self, prefix: str, body: dict[str, Any]) -> Resource:
        path = f"{prefix}/{_checked_name(body)}"
        self.state.check_permission("compute.disks.create", path)
        self.state.add(path, body, status="READY")
        return self._done("insert", path)

    def _done(self, verb: str, path: str) -> Resource:
        """Return an operation that is done at once."""
        operation = self.state.begin(verb, path)
        self.state.end(operation)
        return operation

    def _insert_instance(self, prefix: str, body: dict[str, Any]) -> Resource:
        path = f"{prefix}/{_checked_name(body)}"
        self.state.check_permission("compute.instances.create", path)
        disks = [one["source"].rpartition("/compute/v1/")[2] for one in body.get("disks", []) if "source" in one]
        for disk in disks:
            self.state.get(disk)
            self.state.check_unused(disk)
        instance = self.state.add(path, body, status="PROVISIONING")
        operation = self.state.begin("insert", path)
        names = tuple(disk.rpartition("/")[2] for disk in disks)
        self._begin(self._bring_up, path, instance, operation, names)
        return operation

    def _bring_up(self, path: str, instance: Resource, operation: Resource, disks: tuple[str, ...]) -> None:
        described = MachineMetadata(instance["name"], dict(instance.get("labels", {})), disks)
        try:
            with self.state.changed:
                self.state.check_supply(path)
            machine = self._machines.start(described)
        except (FailedOperationError, MachineError) as error:
            failed = error if isinstance(error, FailedOperationError) else FailedOperationError("INTERNAL", str(error))
            with self.state.changed:
                self.state.resources.pop(path, None)
                self.state.end(operation, failed)
            return
        with self.state.changed:
            if self.state.resources.get(path) is not instance or instance["status"] != "PROVISIONING":
                self._machines.kill(described.name)  # a request deleted the instance while its machine started
                self.state.end(operation, FailedOperationError("RESOURCE_NOT_FOUND", f"'{path}' was deleted"))
                return
            for interface in instance.setdefault("networkInterfaces", [{}]):
                interface["networkIP"] = machine.address
                for access in interface.get("accessConfigs", []):
                    access["natIP"] = machine.address
            self.state.guests[path] = dict(machine.host_keys)
            instance["status"] = "RUNNING"
            self.state.end(operation)

    def _delete(self, path: str, collection: str) -> Resource:
        self.state.check_permission(f"compute.{collection}.delete", path)
        resource = self.state.get(path)
        if collection == "disks":
            self.state.check_unused(path)
        operation = self.state.begin("delete", path)
        if collection == "instances":
            resource["status"] = "STOPPING"
        self._begin(self._take_away, path, collection, operation)
        return operation

    def _take_away(self, path: str, collection: str, operation: Resource) -> None:
        if collection == "instances":
            self._machines.kill(path.rpartition("/")[2])
        with self.state.changed:
            self.state.resources.pop(path, None)
            self.state.end(operation)

    def _begin(self, life: Callable[..., None], *about: Any) -> None:
        thread = threading.Thread(target=life, args=about, daemon=True, name=f"compute-{life.__name__}")
        self._threads = [known for known in self._threads if known.is_alive()] + [thread]
        thread.start()


def _checked_name(body: dict[str, Any]) -> str:
    name = str(body.get("name", ""))
    if not _NAME.fullmatch(name):
        raise invalid(f"'resource.name': '{name}'. Must be a match of regex '{_NAME.pattern}'")
    return name
