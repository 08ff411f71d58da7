"""Metadata of this host from Google Cloud's server. Without a response it is None, never a guess.

It needs only the standard library, and uses no proxy. ``GCE_METADATA_HOST`` names another server (``HOST:PORT``), as in
Google's own libraries. Outside Google Cloud, no server answers at the default address.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

NOTICE_S: Final = 30.0
"""From Google Cloud's notice of a preemption to the end of the machine."""
MAINTENANCE_S: Final = 60.0
"""From Google Cloud's notice of maintenance to the end of the machine."""
HOST_VARIABLE: Final = "GCE_METADATA_HOST"
_DEFAULT_HOST: Final = "169.254.169.254"  # an address, because name lookups can be slow elsewhere
_HEADER: Final = "Metadata-Flavor"
_MAX_WAIT_S: Final = 60.0
_PAUSE_S: Final = 1.0
_PREEMPTED: Final = "instance/preempted"
_MAINTENANCE: Final = "instance/maintenance-event"
_SLACK_S: Final = 5.0
_WATCH_S: Final = 3600.0


@dataclass(frozen=True)
class _Value:
    text: str
    etag: str


def is_preempted(timeout_s: float = 1.0) -> bool | None:
    """Return whether Google Cloud has reported this host's preemption; None without a response."""
    value = _get(_PREEMPTED, timeout_s)
    return None if value is None else _is_true(value)


def wait_for_maintenance(timeout_s: float, *, stopped: Callable[[], bool] = lambda: False) -> bool | None:
    """Wait for maintenance that ends this host; otherwise like ``wait_for_preemption``.

    A migration that the machine survives (``MIGRATE_ON_HOST_MAINTENANCE``) does not count.
    """
    return _wait(_MAINTENANCE, lambda value: value.text.strip().upper().startswith("TERMINATE"), timeout_s, stopped)


def wait_for_preemption(timeout_s: float, *, stopped: Callable[[], bool] = lambda: False) -> bool | None:
    """Wait for this host's preemption; return whether it has occurred, or None without a response.

    The server holds each request until a change, so this returns at once. ``stopped`` is called between two
    requests, at least once a minute.
    """
    return _wait(_PREEMPTED, _is_true, timeout_s, stopped)


def watch_end(on_notice: Callable[[float], None]) -> None:
    """Call ``on_notice`` in a thread once this host's end is announced, with the epoch seconds of the end.

    A preemption and maintenance are watched for by a thread each, so it may be called once for each.
    """
    for wait, notice_s in ((wait_for_preemption, NOTICE_S), (wait_for_maintenance, MAINTENANCE_S)):
        threading.Thread(target=_watch, args=(wait, notice_s, on_notice), daemon=True, name="watch-metadata").start()


def _watch(wait: Callable[[float], bool | None], notice_s: float, on_notice: Callable[[float], None]) -> None:
    while wait(_WATCH_S) is not True:
        time.sleep(_PAUSE_S)
    on_notice(time.time() + notice_s)


def _wait(path: str, has_come: Callable[[_Value], bool], timeout_s: float, stopped: Callable[[], bool]) -> bool | None:
    deadline = time.monotonic() + timeout_s
    known = _get(path, min(timeout_s, _SLACK_S))
    while known is not None and not has_come(known):
        left = deadline - time.monotonic()
        if left <= 0 or stopped():
            return False
        began = time.monotonic()
        seconds = min(left, _MAX_WAIT_S)
        query = {"wait_for_change": "true", "timeout_sec": str(max(1, round(seconds))), "last_etag": known.etag}
        known = _get(f"{path}?{urlencode(query)}", max(1.0, seconds) + _SLACK_S)
        if time.monotonic() - began < _PAUSE_S and known is not None and not has_come(known):
            time.sleep(min(_PAUSE_S, left))  # for a server that does not hold requests
    return None if known is None else True


def zone(timeout_s: float = 1.0) -> str | None:
    """Return the zone of this host, such as ``us-central2-b``."""
    value = _get("instance/zone", timeout_s)
    return None if value is None else value.text.rpartition("/")[2]


def attribute(name: str, timeout_s: float = 1.0) -> str | None:
    """Return a custom attribute of this host; None also if it has none of this name."""
    value = _get(f"instance/attributes/{quote(name, safe='')}", timeout_s)
    return None if value is None else value.text


def _is_true(value: _Value) -> bool:
    return value.text.strip().upper() == "TRUE"


def _get(path: str, timeout_s: float) -> _Value | None:
    host = os.environ.get(HOST_VARIABLE) or _DEFAULT_HOST
    connection = http.client.HTTPConnection(host, timeout=timeout_s)
    try:
        connection.request("GET", f"/computeMetadata/v1/{path}", headers={_HEADER: "Google"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != 200 or answer.getheader(_HEADER) != "Google":
        return None
    return _Value(text, answer.getheader("ETag") or "0")
