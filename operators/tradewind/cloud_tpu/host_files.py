"""Files and log lines of hosts: development slices, and variables from Secret Manager.

The holder of a development slice writes one line into its log, which a user's laptop reads. That line is input: it is
bounded, and its names are looked up in Google Cloud before any connection is made.

A cluster gives its processes variables from Secret Manager: each is a file on every host, for one user. A host writes
them when Ray starts there, and ``tradewind cluster push-env`` updates them. So a file is newer than the variable of the
same name in a Ray process.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.resources import is_name

DEV_FOLDER: Final = ".tradewind/dev"
"""Below the home of Ray's user: on the head heartbeats, on the hosts files of users."""
ENVIRONMENT_FOLDER: Final = ".tradewind/environment"
"""Below the home of Ray's user; each file has the name of its variable."""
METADATA: Final = "dev_tpu"
"""Metadata key of a holder's job: the session's name, chosen by its user."""
_MARKER: Final = "TRADEWIND_DEV_SLICE "
_MARK: Final = re.compile(r"[0-9A-Fa-f.:]{1,45}/[0-9]{1,10}/[0-9]{1,20}")
_MAX_HOSTS: Final = 4096
_MAX_REFUSED_CHARS: Final = 1000
_NAME: Final = re.compile(r"[a-z](-?[a-z0-9]){0,29}")


class BadDevSliceError(ValueError):
    """The log holds no valid line."""


@dataclass(frozen=True)
class DevHostInfo:
    """One host. Its processes carry ``mark``, so that they end with the holder."""

    ip: str
    mark: str


@dataclass(frozen=True)
class DevSlice:
    """A held slice, or the reason for having none.

    Attributes:
        name: The slice.
        hosts: Its hosts, in the order of their worker IDs.
        refused: Why no slice is held.
    """

    name: str = ""
    hosts: tuple[DevHostInfo, ...] = ()
    refused: str = ""

    def line(self) -> str:
        """Return the holder's log line."""
        return _MARKER + json.dumps(asdict(self))

    @staticmethod
    def in_log(log: str) -> DevSlice | None:
        """Return the holder's last line; None if it has not written one yet.

        Raises:
            BadDevSliceError: It cannot be read.
        """
        lines = [line for line in log.splitlines() if line.startswith(_MARKER)]
        if not lines:
            return None
        try:
            return _parsed(json.loads(lines[-1].removeprefix(_MARKER)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadDevSliceError(f"The holder's line cannot be read ({type(error).__name__}).") from None


def heartbeat_path(session: str) -> str:
    """Return the file, below the home of Ray's user on the head, that a live command touches."""
    return f"{DEV_FOLDER}/{session}.alive"


def is_dev_name(text: str) -> bool:
    """Return whether ``text`` is a valid session name: up to 30 of a-z, digits and single hyphens."""
    return len(text) <= 30 and _NAME.fullmatch(text) is not None


def _parsed(fields: Mapping[str, Any]) -> DevSlice:
    name, refused, hosts = str(fields["name"]), str(fields["refused"])[:_MAX_REFUSED_CHARS], fields["hosts"]
    if refused:
        return DevSlice(refused=refused)
    if not is_name(name) or not isinstance(hosts, Sequence) or not 1 <= len(hosts) <= _MAX_HOSTS:
        raise ValueError("no name of a slice, or no hosts")
    return DevSlice(name, tuple(_host(host) for host in hosts))


def _host(fields: Mapping[str, Any]) -> DevHostInfo:
    ip, mark = str(ipaddress.ip_address(fields["ip"])), str(fields["mark"])
    if not _MARK.fullmatch(mark):
        raise ValueError("no mark of a host")
    if str(ipaddress.ip_address(mark.partition("/")[0])) != ip:
        raise ValueError("the mark of another host")
    return DevHostInfo(ip, mark)


def host_variable(name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """Return the value that this host's cluster gives to ``name``: that of its file, else that in ``env``."""
    try:
        return (Path.home() / ENVIRONMENT_FOLDER / name).read_text().rstrip("\n")
    except (OSError, ValueError):
        return env.get(name)
