"""Endpoints of Google's services. Only one on this machine may lack TLS, and gets no credentials."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_HOST: Final = re.compile(r"[A-Za-z0-9._\-:\[\]]+")

ENDPOINT_VARIABLES: Final = {
    "artifactregistry": "TRADEWIND_ARTIFACT_REGISTRY_ENDPOINT",
    "cloudresourcemanager": "TRADEWIND_RESOURCE_MANAGER_ENDPOINT",
    "compute": "TRADEWIND_COMPUTE_ENDPOINT",
    "secretmanager": "TRADEWIND_SECRET_MANAGER_ENDPOINT",
    "tpu": "TRADEWIND_TPU_ENDPOINT",
}
"""API → the variable that names its endpoint."""


def parse_endpoint(endpoint: str) -> tuple[str, str, bool] | None:
    """Return scheme, host with port, and whether it is on this machine.

    None for a text that is no URL, holds more than scheme, host and port, or uses http to another machine.
    """
    try:
        parts = urlsplit(endpoint)
        parts.port  # noqa: B018  urlsplit validates the port only on access
    except ValueError:
        return None
    if not _HOST.fullmatch(parts.netloc) or parts.path.strip("/") or parts.query or parts.fragment:
        return None
    is_here = _is_loopback(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not parts.hostname or (parts.scheme == "http" and not is_here):
        return None
    return parts.scheme, parts.netloc, is_here


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
