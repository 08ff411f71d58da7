"""The page with a tile for each cluster: plain HTML, without scripts, forms or secrets, for browsers of this machine.

Any website may send a browser to an address on the loopback, under a name of its own. So only requests that name this
server as the host are answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tradewind.fleet.access.dashboards import DashboardTile

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
    """The page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Clusters</title>'
        f'<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="{_REFRESH_S}">'
        f"<style>{_STYLE}</style></head><body><h1>Clusters</h1><main>{''.join(map(_tile, tiles))}</main></body></html>"
    )


@contextmanager
def served_page(tiles: Callable[[], Sequence[DashboardTile]], port: int = 0) -> Iterator[str]:
    """The page's address, where it is served for the length of the block.

    Args:
        port: Where on the loopback; default: at a free port.

    Raises:
        OSError: The port is taken.
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
            ours = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
            if self.headers.get_all("Host") not in [[host] for host in ours]:
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
            """Nothing is printed."""

    return PageHandler


def _tile(tile: DashboardTile) -> str:
    title = f'<h2>{escape(tile.cluster)}</h2><p class="quiet">{escape(tile.region)}'
    if tile.why is not None:
        return f"<article>{title}</p><p>Does not answer: {escape(tile.why)}</p></article>"
    counts = (
        f"{_count(tile.slices, 'slice')} with {_count(tile.hosts, 'host')}",
        _count(tile.jobs, "job") + " running",
    )
    lines = "".join(f"<p>{escape(line)}</p>" for line in counts)
    about = f"{title}, Ray {escape(tile.ray_version)}</p>{lines}"
    return f'<a href="{escape(tile.url)}" target="_blank" rel="noopener noreferrer">{about}</a>'


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
