"""Dashboards of clusters on this machine, one ``ssh`` each, and a page with a tile for each cluster.

Each has its own host name, ``NAME.localhost``: Ray's dashboard stores the token in a cookie, and cookies ignore ports,
so with one host name the browser would send the last token to all clusters.

The page is plain HTML, without scripts, forms or secrets, for browsers of this machine. Any website may send a browser
to an address on the loopback under its own name, so only requests that name this server as the host are answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final

from tradewind.fleet.access.connect import connected
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.machine import free_port
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.nodes import NodeInfo, fetch_nodes, hosts_alive
from tradewind.text import pluralize

CHECK_INTERVAL_S: Final = 15.0
_GRACE_S: Final = 6.0

Reach = Callable[[FleetCluster, int], AbstractContextManager[RayCluster]]


@dataclass(frozen=True)
class DashboardTile:
    """State of a cluster and its dashboard.

    Attributes:
        url: Address of its dashboard on this machine.
        why: Why it does not answer; None if it does.
        slices: Number of slices with live hosts in Ray.
        hosts: Number of those hosts.
        jobs: Number of running jobs.
    """

    cluster: str
    region: str
    url: str
    why: str | None = "it was not looked at yet"
    ray_version: str = ""
    slices: int = 0
    hosts: int = 0
    jobs: int = 0


class Dashboards:
    """Dashboards of ``clusters``, open within the block; one that does not answer is retried.

    Args:
        tell: Called with a sentence for each cluster that begins or ceases to answer.
        interval_s: Interval between two checks.
    """

    def __init__(
        self,
        clusters: Sequence[FleetCluster],
        tell: Callable[[str], None],
        *,
        reach: Reach = connected,
        interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self._tell = tell
        self._reach = reach
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._tiles: dict[str, DashboardTile] = {}
        self._checks: dict[str, int] = dict.fromkeys((cluster.name for cluster in clusters), 0)
        self._threads = []
        for cluster in clusters:
            port = free_port()
            url = f"http://{cluster.name}.localhost:{port}"
            self._tiles[cluster.name] = DashboardTile(cluster.name, cluster.region, url)
            self._threads.append(threading.Thread(target=self._watch, args=(cluster, port), daemon=True))

    def tiles(self) -> list[DashboardTile]:
        """Return the state of each cluster at its last check, in the given order."""
        with self._changed:
            return list(self._tiles.values())

    def wait_for_first_check(self) -> None:
        """Wait until each cluster was checked once, whether it answers or not."""
        with self._changed:
            self._changed.wait_for(lambda: all(self._checks.values()))

    def __enter__(self) -> Dashboards:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all. The ``ssh`` of a dashboard that is being opened ends by itself once it is connected."""
        self._over.set()
        for thread in self._threads:
            thread.join(_GRACE_S)

    def _watch(self, cluster: FleetCluster, port: int) -> None:
        while not self._over.is_set():
            try:
                with self._reach(cluster, port) as there:
                    while not self._over.is_set():
                        self._show(check_cluster(cluster, there, self._tiles[cluster.name].url))
                        self._over.wait(self._interval_s)
            except (FleetError, RayJobsError, OSError) as error:
                tile = self._tiles[cluster.name]
                self._show(DashboardTile(tile.cluster, tile.region, tile.url, str(error)))
                self._over.wait(self._interval_s)

    def _show(self, tile: DashboardTile) -> None:
        with self._changed:
            before, self._tiles[tile.cluster] = self._tiles[tile.cluster], tile
            is_first = not self._checks[tile.cluster]
            self._checks[tile.cluster] += 1
            self._changed.notify_all()
        if tile.why is None and before.why is not None:
            self._tell(f"The dashboard of {tile.cluster} is at {tile.url} until Ctrl-C.")
        elif tile.why is not None and (before.why is None or is_first):
            self._tell(f"{tile.cluster} does not answer: {tile.why}")


def check_cluster(cluster: FleetCluster, there: RayCluster, url: str) -> DashboardTile:
    """Return the tile of ``cluster``, whose dashboard is at ``url``.

    Raises:
        RayJobsError: The cluster does not answer.
    """
    jobs = RayJobs(there)

    async def nodes() -> list[NodeInfo]:
        async with JobsApi(there) as api:
            return await fetch_nodes(api)

    hosts = hosts_alive(asyncio.run(nodes()))
    running = sum(job.status == "RUNNING" for job in jobs.jobs())
    version = jobs.version()
    return DashboardTile(cluster.name, cluster.region, url, None, version, len(hosts), sum(hosts.values()), running)


_REFRESH_S: Final = 15
_HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; background: #f4f5f7; color: #1c2530; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
a, article { display: block; background: #fff; border: 1px solid #d4d9e0; border-left: 5px solid #1e7f4f;
  border-radius: 6px; padding: .8rem 1rem; color: inherit; text-decoration: none; overflow-wrap: anywhere; }
a:hover, a:focus { border-color: #1e7f4f; }
article { border-left-color: #b3372f; }
h2 { margin: 0; font-size: 1.1rem; } p { margin: .2rem 0 0; } .quiet { color: #5b6673; }
@media (prefers-color-scheme: dark) {
  body { background: #14181d; color: #e4e8ed; } a, article { background: #1e242c; border-color: #3a434e; }
  .quiet { color: #a3adb9; } }"""


def tiles_page(tiles: Sequence[DashboardTile]) -> str:
    """Return the page as HTML."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Clusters</title>'
        f'<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="{_REFRESH_S}">'
        f"<style>{_STYLE}</style></head><body><h1>Clusters</h1><main>{''.join(map(_tile, tiles))}</main></body></html>"
    )


@contextmanager
def served_page(tiles: Callable[[], Sequence[DashboardTile]], port: int = 0) -> Iterator[str]:
    """Serve the page on the loopback for the length of the block, and yield its address.

    Args:
        port: Its port; default: a free one.

    Raises:
        OSError: The port is in use.
    """
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(tiles))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(tiles: Callable[[], Sequence[DashboardTile]]) -> type[BaseHTTPRequestHandler]:
    class PageHandler(BaseHTTPRequestHandler):
        """One request."""

        def do_GET(self) -> None:
            assert isinstance(self.server, ThreadingHTTPServer)
            own = [[f"{name}:{self.server.server_port}"] for name in ("127.0.0.1", "localhost")]
            if self.headers.get_all("Host") not in own:
                self.send_error(421, "This page is served under its own address only")
            elif self.path != "/":
                self.send_error(404)
            else:
                self._send(tiles_page(tiles()).encode(errors="replace"))

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            for name, value in {**_HEADERS, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    return PageHandler


def _tile(tile: DashboardTile) -> str:
    title = f'<h2>{escape(tile.cluster)}</h2><p class="quiet">{escape(tile.region)}'
    if tile.why is not None:
        return f"<article>{title}</p><p>Does not answer: {escape(tile.why)}</p></article>"
    slices = f"{pluralize(tile.slices, 'slice')} with {pluralize(tile.hosts, 'host')}"
    about = f"{title}, Ray {escape(tile.ray_version)}</p><p>{slices}</p><p>{pluralize(tile.jobs, 'job')} running</p>"
    return f'<a href="{escape(tile.url)}" target="_blank" rel="noopener noreferrer">{about}</a>'
