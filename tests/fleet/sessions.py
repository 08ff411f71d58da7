"""Development sessions for tests."""

from __future__ import annotations

from tradewind.cloud_tpu.host_files import DevSlice
from tradewind.fleet.access.hosts import SliceHost
from tradewind.fleet.dev_sessions import DevSession


def session_of(*addresses: str, job: str = "dev-tpu-ada-ada-1") -> DevSession:
    """Return a development session on slice ``one`` with hosts at these addresses."""
    hosts = tuple(SliceHost("one", number, address) for number, address in enumerate(addresses))
    return DevSession(job, DevSlice("one"), hosts, tuple(f"{address}/12/345" for address in addresses))
