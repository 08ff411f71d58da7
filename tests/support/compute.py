"""Compute Engine v1 over REST, as Google's client for Python speaks it: instances, disks, subnetworks, operations."""

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

from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest

# The filters of Compute Engine's lists, as Google describes them: ``(labels.a = b) AND (NOT labels.c:*)``.
#
# Served are comparisons by ``=``, ``!=`` and ``:``, joined by AND, OR, NOT and brackets; side by side, it is AND.

Test = Callable[[Mapping[str, Any]], bool]

_TOKEN: Final = re.compile(r'\s*(?:([()])|(AND|OR|NOT)\b|([\w.\-]+)\s*(!=|=|:|eq\b|ne\b)\s*("[^"]*"|[^\s()]+))')


class BadFilterError(ValueError):
    """A filter cannot be read."""


def parse_filter(text: str) -> Test:
    """What a list is filtered by; an empty text lets everything through.

    Raises:
        BadFilterError: It cannot be read.
    """
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadFilterError(f"Invalid list filter expression: {text[at:]!r}")
        tokens.append(found.groups())
        at = found.end()
    if not tokens:
        return lambda fields: True
    parser = _FilterParser(tokens)
    test = parser.any_of()
    if parser.tokens:
        raise BadFilterError(f"Invalid list filter expression: {text!r}")
    return test


class _FilterParser:
    """Takes the tokens of one filter, the next first."""

    def __init__(self, tokens: list[tuple[str, ...]]) -> None:
        self.tokens = tokens

    def any_of(self) -> Test:
        tests = [self._all_of()]
        while self._takes_word("OR"):
            tests.append(self._all_of())
        return lambda fields: any(test(fields) for test in tests)

    def _all_of(self) -> Test:
        tests = [self._one()]
        while self._takes_word("AND") or (self.tokens and self.tokens[0][0] != ")" and self.tokens[0][1] != "OR"):
            tests.append(self._one())
        return lambda fields: all(test(fields) for test in tests)

    def _one(self) -> Test:
        if self._takes_word("NOT"):
            refused = self._one()
            return lambda fields: not refused(fields)
        if not self.tokens:
            raise BadFilterError("Invalid list filter expression: it ends too early")
        bracket, word, field, operator, value = self.tokens.pop(0)
        if bracket == "(":
            inner = self.any_of()
            if not self.tokens or self.tokens.pop(0)[0] != ")":
                raise BadFilterError("Invalid list filter expression: a bracket is not closed")
            return inner
        if bracket or word:
            raise BadFilterError(f"Invalid list filter expression: {bracket or word!r} is out of place")
        return _comparison(field, operator, value.strip('"'))

    def _takes_word(self, word: str) -> bool:
        if self.tokens and self.tokens[0][1] == word:
            self.tokens.pop(0)
            return True
        return False


def _comparison(field: str, operator: str, value: str) -> Test:
    def there(fields: Mapping[str, Any]) -> str | None:
        first, _, rest = field.partition(".")
        found = fields.get(first)
        if rest:
            found = found.get(rest) if isinstance(found, Mapping) else None
        return None if found is None else str(found)

    match operator:
        case "=" | "eq":
            return lambda fields: there(fields) == value
        case "!=" | "ne":
            return lambda fields: there(fields) != value
        case _ if value == "*":
            return lambda fields: there(fields) is not None
    return lambda fields: value in (there(fields) or "")


# What stands behind an instance of the simulated Compute Engine: a machine to log in to, or nothing at all.


class MachineError(RuntimeError):
    """A machine did not come up."""


@dataclass(frozen=True)
class MachineMetadata:
    """What a machine learns of itself.

    Attributes:
        name: The instance's.
        labels: The instance's, as it was created.
        disks: The names of the disks that outlive it.
    """

    name: str
    labels: Mapping[str, str]
    disks: tuple[str, ...]


@dataclass(frozen=True)
class RunningMachine:
    """A machine that is up.

    Attributes:
        host_keys: The SSH host keys that it writes into its metadata, by their types.
    """

    address: str
    host_keys: Mapping[str, str]


class MachineBackend(Protocol):
    """Starts and ends machines."""

    def start(self, facts: MachineMetadata) -> RunningMachine:
        """Start one; returns once it is up.

        Raises:
            MachineError: It did not come up; nothing of it is left.
        """

    def kill(self, name: str) -> None:
        """It vanishes, with all that runs on it."""


class NullMachines:
    """For those who only want to talk to the API: an instance is RUNNING at once, and nothing runs there."""

    def __init__(self) -> None:
        self._numbers = itertools.count(2)

    def start(self, facts: MachineMetadata) -> RunningMachine:
        return RunningMachine(f"10.128.0.{next(self._numbers)}", {})

    def kill(self, name: str) -> None:
        """There is nothing to end."""


# What Compute Engine says no with: HTTP answers, and the errors that an operation ends in.

_JSON: Final = {"Content-Type": "application/json; charset=UTF-8"}


class RefusedRequestError(Exception):
    """A request that is answered with an error; ``reason`` is Google's short word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    def answer(self, kind: str) -> Answer:
        """The error as it is sent."""
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return json_answer(
            kind, {"error": {"code": self.status, "message": self.message, "errors": [one]}}, self.status
        )


class FailedOperationError(Exception):
    """What an accepted request fails with later; ``code`` is what its operation tells."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def json_answer(kind: str, fields: dict[str, Any], status: int = 200) -> Answer:
    """An answer in JSON."""
    return Answer(kind, status, json.dumps(fields).encode(), _JSON)


def not_found(path: str) -> RefusedRequestError:
    """Nothing has this name."""
    return RefusedRequestError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> RefusedRequestError:
    """The name is taken."""
    return RefusedRequestError(409, "alreadyExists", f"The resource '{path}' already exists")


def denied(permission: str, path: str) -> RefusedRequestError:
    """The account may not do this."""
    return RefusedRequestError(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def invalid(message: str) -> RefusedRequestError:
    """The request cannot be meant so."""
    return RefusedRequestError(400, "invalid", f"Invalid value for field: {message}")


# All that the simulated Compute Engine keeps: instances, disks and operations, behind one lock, and what may fail.

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

    def check_permission(self, permission: str, path: str) -> None:
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


PREFIX: Final = "/compute/v1/"
_ZONE: Final = r"projects/[^/]+/zones/[^/]+"
_ITEM: Final = re.compile(rf"({_ZONE}/(instances|disks)/[^/]+)(?:/(\w+))?")
_COLLECTION: Final = re.compile(rf"({_ZONE}/(instances|disks))")
_OPERATION: Final = re.compile(rf"{_ZONE}/operations/[^/]+")
_SUBNETWORKS: Final = re.compile(r"projects/[^/]+/regions/[^/]+/subnetworks")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LARGEST_PAGE: Final = 500


class ComputeService:
    """Every project and zone; ``machines`` starts and ends what instances consist of."""

    def __init__(self, machines: MachineBackend | None = None) -> None:
        self.state = ComputeState()
        self._machines = machines or NullMachines()
        self._threads: list[threading.Thread] = []

    def answer(self, call: HttpRequest) -> Answer:
        """Do what is asked, at once; what takes its time goes on behind an operation."""
        path = call.path.removeprefix(PREFIX)
        with self.state.changed:
            kind, act = self._route(call, path)
            try:
                return json_answer(kind, act())
            except RefusedRequestError as error:
                return error.answer(kind)

    def end_all(self) -> None:
        """No machine is left."""
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
        return "unknown", lambda: self._refuse_unknown(path)

    def _refuse_unknown(self, path: str) -> Resource:
        raise not_found(path)

    def _list(self, call: HttpRequest, prefix: str, collection: str) -> Resource:
        self.state.check_permission(f"compute.{collection}.list", prefix.rpartition("/zones/")[0])
        try:
            test = parse_filter(call.query.get("filter", ""))
        except BadFilterError as error:
            raise invalid(f"'filter': {error}") from None
        size = min(int(call.query.get("maxResults", _LARGEST_PAGE)), _LARGEST_PAGE)
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
        operation = self.state.begin("setLabels", path)
        self.state.end(operation)
        return operation

    # ---- disks

    def _insert_disk(self, prefix: str, body: dict[str, Any]) -> Resource:
        path = f"{prefix}/{_checked_name(body)}"
        self.state.check_permission("compute.disks.create", path)
        self.state.add(path, body, status="READY")
        operation = self.state.begin("insert", path)
        self.state.end(operation)
        return operation

    # ---- instances

    def _insert_instance(self, prefix: str, body: dict[str, Any]) -> Resource:
        path = f"{prefix}/{_checked_name(body)}"
        self.state.check_permission("compute.instances.create", path)
        disks = [one["source"].rpartition("/compute/v1/")[2] for one in body.get("disks", []) if "source" in one]
        for disk in disks:
            self.state.get(disk)
            if users := self.state.users_of(disk):
                message = f"The disk resource '{disk}' is already being used by '{users[0]}'"
                raise RefusedRequestError(400, "resourceInUseByAnotherResource", message)
        instance = self.state.add(path, body, status="PROVISIONING")
        operation = self.state.begin("insert", path)
        names = tuple(disk.rpartition("/")[2] for disk in disks)
        self._begin(self._bring_up, path, instance, operation, names)
        return operation

    def _bring_up(self, path: str, instance: Resource, operation: Resource, disks: tuple[str, ...]) -> None:
        facts = MachineMetadata(instance["name"], dict(instance.get("labels", {})), disks)
        try:
            with self.state.changed:
                self.state.check_supply(path)
            machine = self._machines.start(facts)
        except (FailedOperationError, MachineError) as error:
            failed = error if isinstance(error, FailedOperationError) else FailedOperationError("INTERNAL", str(error))
            with self.state.changed:
                self.state.resources.pop(path, None)
                self.state.end(operation, failed)
            return
        with self.state.changed:
            if self.state.resources.get(path) is not instance or instance["status"] != "PROVISIONING":
                self._machines.kill(facts.name)  # it was deleted while it came up
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
        if collection == "disks" and (users := self.state.users_of(path)):
            message = f"The disk resource '{path}' is already being used by '{users[0]}'"
            raise RefusedRequestError(400, "resourceInUseByAnotherResource", message)
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
