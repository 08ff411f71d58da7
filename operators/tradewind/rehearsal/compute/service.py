"""Compute Engine v1 over REST, as Google's client for Python speaks it: instances, disks, subnetworks, operations."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any, Final

from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest
from tradewind.rehearsal.compute.filters import BadFilterError, parse_filter
from tradewind.rehearsal.compute.machines import MachineError, MachineFacts, Machines, NoMachines
from tradewind.rehearsal.compute.refusals import (
    FailedOperationError,
    RefusedRequestError,
    invalid,
    not_found,
    told,
)
from tradewind.rehearsal.compute.state import ComputeState, Resource, fingerprint

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

    def __init__(self, machines: Machines | None = None) -> None:
        self.state = ComputeState()
        self._machines = machines or NoMachines()
        self._threads: list[threading.Thread] = []

    def answer(self, call: HttpRequest) -> Answer:
        """Do what is asked, at once; what takes its time goes on behind an operation."""
        path = call.path.removeprefix(PREFIX)
        with self.state.changed:
            kind, act = self._route(call, path)
            try:
                return told(kind, act())
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
        self.state.may(f"compute.{collection}.list", prefix.rpartition("/zones/")[0])
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
        self.state.may(f"compute.{collection}.get", path)
        return self.state.get(path)

    def _subnetworks(self, path: str) -> Resource:
        self.state.may("compute.subnetworks.list", path.rpartition("/")[0])
        return {"items": [{"name": "default", "selfLink": f"https://www.googleapis.com/compute/v1/{path}/default"}]}

    def _operation(self, path: str) -> Resource:
        if path not in self.state.operations:
            raise not_found(path)
        return self.state.operations[path]

    def _guest_attributes(self, path: str, call: HttpRequest) -> Resource:
        self.state.may("compute.instances.getGuestAttributes", path)
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
        self.state.may("compute.instances.setLabels", path)
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
        self.state.may("compute.disks.create", path)
        self.state.add(path, body, status="READY")
        operation = self.state.begin("insert", path)
        self.state.end(operation)
        return operation

    # ---- instances

    def _insert_instance(self, prefix: str, body: dict[str, Any]) -> Resource:
        path = f"{prefix}/{_checked_name(body)}"
        self.state.may("compute.instances.create", path)
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
        facts = MachineFacts(instance["name"], dict(instance.get("labels", {})), disks)
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
        self.state.may(f"compute.{collection}.delete", path)
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
