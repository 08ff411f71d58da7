"""Google's metadata server for virtual machines: one address per simulated host, with its own data.

Requests need ``Metadata-Flavor: Google``. A request with ``wait_for_change=true`` is answered when the value changes,
or after ``timeout_sec`` with the unchanged value; ``last_etag`` names the value that the client has.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tradewind.rehearsal.cloud.loopback_server import end_tasks
from tradewind.timeouts import within

_ROOT: Final = "/computeMetadata/v1"
_FLAVOR: Final = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
_SCOPES: Final = ["https://www.googleapis.com/auth/cloud-platform"]
TOKEN: Final = "rehearsal-token"
"""Access token of the hosts; no server here checks it."""


@dataclass(frozen=True)
class HostMetadata:
    """Metadata of one host."""

    slice_name: str
    worker_id: int
    slice_type: str
    labels: Mapping[str, str]
    attributes: Mapping[str, str]
    is_preemptible: bool


@dataclass
class _Host:
    tree: dict[str, Any]
    address: str
    listener: asyncio.Server
    server: web.Server
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class MetadataServer:
    """Metadata of all simulated hosts of one project and zone."""

    def __init__(self, project: str, zone: str) -> None:
        self._project = project
        self._zone = zone
        self._hosts: dict[str, _Host] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start, ready for hosts."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="metadata")
        self._thread.start()

    def stop(self) -> None:
        """Stop answering all hosts."""
        if self._loop is None or self._thread is None:
            return
        for name in list(self._hosts):
            self._run(self._drop(name))
        self._run(end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def add_host(self, name: str, ip: str, metadata: HostMetadata) -> str:
        """Serve a host at its own address; return the value of its ``GCE_METADATA_HOST``."""
        return str(self._run(self._add(name, ip, metadata)))

    def drop_slice(self, slice_name: str) -> None:
        """Remove the hosts of a slice."""
        for name in self._of_slice(slice_name):
            self._run(self._drop(name))

    def drop_host(self, name: str) -> None:
        """Remove one host."""
        self._run(self._drop(name))

    def preempt_slice(self, slice_name: str) -> None:
        """Announce preemption to every host of the slice."""
        for name in self._of_slice(slice_name):
            self._run(self._set(name, "preempted", "TRUE"))

    def announce_maintenance(self, slice_name: str, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """Announce this maintenance to every host of the slice."""
        for name in self._of_slice(slice_name):
            self._run(self._set(name, "maintenance-event", event))

    def address_of(self, name: str) -> str:
        """Return the metadata address of a host."""
        return self._hosts[name].address

    def _of_slice(self, slice_name: str) -> list[str]:
        return [name for name in list(self._hosts) if name.rpartition(".")[0] == slice_name]

    def _run(self, work: Any) -> Any:
        assert self._loop is not None, "started first"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _add(self, name: str, ip: str, metadata: HostMetadata) -> str:
        await self._drop(name)
        server = web.Server(lambda request: self._serve(name, request), access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, ip, 0)
        address = f"{ip}:{listener.sockets[0].getsockname()[1]}"
        self._hosts[name] = _Host(self._tree(ip, metadata), address, listener, server)
        return address

    async def _drop(self, name: str) -> None:
        host = self._hosts.pop(name, None)
        if host is not None:
            host.listener.close()
            await host.server.shutdown(timeout=0.01)

    async def _set(self, name: str, key: str, value: str) -> None:
        host = self._hosts.get(name)
        if host is not None:
            host.tree["instance"][key] = value
            host.changed.set()
            host.changed = asyncio.Event()

    async def _serve(self, name: str, request: web.BaseRequest) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            return web.Response(status=403, text="Missing Metadata-Flavor:Google header.", headers=_FLAVOR)
        host = self._hosts.get(name)
        if host is None:
            return web.Response(status=503, headers=_FLAVOR)
        return await _answer(host, request)

    def _tree(self, ip: str, metadata: HostMetadata) -> dict[str, Any]:
        email = f"tpu@{self._project}.iam.gserviceaccount.com"
        account = {"aliases": ["default"], "email": email, "scopes": _SCOPES}
        host = f"{metadata.slice_name}-w-{metadata.worker_id}"
        zone = f"projects/{_number(self._project)}/zones/{self._zone}"
        attributes = {
            **metadata.labels,
            **metadata.attributes,
            "accelerator-type": metadata.slice_type,
            "agent-worker-number": str(metadata.worker_id),
            "instance-id": metadata.slice_name,
        }
        return {
            "instance": {
                "attributes": attributes,
                "hostname": f"{host}.{self._zone}.c.{self._project}.internal",
                "id": _number(f"{self._project}/{self._zone}/{host}/{ip}"),
                "maintenance-event": "NONE",
                "name": host,
                "network-interfaces": [{"ip": ip}],
                "preempted": "FALSE",
                "scheduling": {"preemptible": str(metadata.is_preemptible).upper()},
                "service-accounts": {"default": account, email: account},
                "zone": zone,
            },
            "project": {"numeric-project-id": _number(self._project), "project-id": self._project},
        }


async def _answer(host: _Host, request: web.BaseRequest) -> web.Response:
    query = request.query
    keys = [key for key in request.path.removeprefix(_ROOT).split("/") if key]
    if keys[:2] == ["instance", "service-accounts"] and keys[3:] == ["token"]:
        token = {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}
        return _response(json.dumps(token), "application/json")
    try:
        found = _find(host.tree, keys)
        if query.get("wait_for_change") == "true" and query.get("last_etag", _etag(found)) == _etag(found):
            found = await _changed(host, keys, float(query["timeout_sec"]) if "timeout_sec" in query else None)
    except (KeyError, IndexError):
        return web.Response(status=404, text="Not found", headers=_FLAVOR)
    if isinstance(found, dict) and keys and not request.path.endswith("/"):
        return web.Response(status=301, headers={**_FLAVOR, "Location": f"{request.path}/?{request.query_string}"})
    if isinstance(found, dict) and query.get("recursive") != "true":
        listing = "".join(f"{key}/\n" if isinstance(value, dict) else f"{key}\n" for key, value in found.items())
        return _response(listing, "application/text", _etag(found))
    if isinstance(found, dict) or query.get("alt") == "json":
        return _response(json.dumps(found), "application/json", _etag(found))
    text = "\n".join(map(str, found)) if isinstance(found, list) else str(found)
    return _response(text, "application/text", _etag(found))


async def _changed(host: _Host, keys: list[str], timeout: float | None) -> Any:
    """Wait until the value changes, or until the timeout; return it."""
    before = _etag(_find(host.tree, keys))
    try:
        async with within(timeout):
            while _etag(_find(host.tree, keys)) == before:
                await host.changed.wait()
    except TimeoutError:
        pass
    return _find(host.tree, keys)


def _find(tree: Any, keys: list[str]) -> Any:
    for key in keys:
        if isinstance(tree, list):
            tree = tree[int(key)] if key.isdecimal() else tree[len(tree)]
        elif isinstance(tree, dict):
            tree = tree[key]
        else:
            raise KeyError(key)
    return tree


def _etag(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _response(text: str, kind: str, etag: str | None = None) -> web.Response:
    headers = {**_FLAVOR, **({"ETag": etag} if etag else {})}
    return web.Response(text=text, content_type=kind, headers=headers)


def _number(text: str) -> int:
    """Return a number that is stable for this text, like Google's ids."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
