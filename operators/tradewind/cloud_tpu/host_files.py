"""How a slice that a person develops on is told of: its holder writes one line into its log, which a laptop reads.

What stands there is input: it is bounded, and what it names is looked up in Google Cloud before anybody goes there.
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
"""Below the home of Ray's user: on the head signs of life, on the hosts the files of people."""
METADATA: Final = "dev_tpu"
"""What the metadata of a holder's job call the name that its person gave it."""
_MARKER: Final = "TRADEWIND_DEV_SLICE "
_MARK: Final = re.compile(r"[0-9A-Fa-f.:]{1,45}/[0-9]{1,10}/[0-9]{1,20}")
_MOST_HOSTS: Final = 4096
_LONGEST_WHY: Final = 1000
_NAME: Final = re.compile(r"[a-z](-?[a-z0-9]){0,29}")


class BadDevSliceError(ValueError):
    """What the log holds is no such line."""


@dataclass(frozen=True)
class DevHostInfo:
    """One host; ``mark`` is what its processes carry, so that they end with the holder."""

    ip: str
    mark: str


@dataclass(frozen=True)
class DevSlice:
    """A slice that is held, or why none is.

    Attributes:
        name: The slice.
        hosts: Its hosts, in the order of their worker ids.
        refused: Why there is none.
    """

    name: str = ""
    hosts: tuple[DevHostInfo, ...] = ()
    refused: str = ""

    def line(self) -> str:
        """What the holder writes."""
        return _MARKER + json.dumps(asdict(self))

    @staticmethod
    def in_log(log: str) -> DevSlice | None:
        """What the holder has written last; None if it has not yet.

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
    """The file on the head, below the home of Ray's user, that is changed while the person's command lives."""
    return f"{DEV_FOLDER}/{session}.alive"


def is_dev_name(text: str) -> bool:
    """Whether people may call what they hold so: lower-case letters, digits and single hyphens, up to 30."""
    return len(text) <= 30 and _NAME.fullmatch(text) is not None


def _parsed(fields: Mapping[str, Any]) -> DevSlice:
    name, refused, hosts = str(fields["name"]), str(fields["refused"])[:_LONGEST_WHY], fields["hosts"]
    if refused:
        return DevSlice(refused=refused)
    if not is_name(name) or not isinstance(hosts, Sequence) or not 1 <= len(hosts) <= _MOST_HOSTS:
        raise ValueError("no name of a slice, or no hosts")
    return DevSlice(name, tuple(_host(host) for host in hosts))


def _host(fields: Mapping[str, Any]) -> DevHostInfo:
    ip, mark = str(ipaddress.ip_address(fields["ip"])), str(fields["mark"])
    if not _MARK.fullmatch(mark):
        raise ValueError("no mark of a host")
    if str(ipaddress.ip_address(mark.partition("/")[0])) != ip:
        raise ValueError("the mark of another host")
    return DevHostInfo(ip, mark)


# The variables that a cluster gives its processes from Secret Manager: each is a file on every host, for one user.
#
# A host writes them when Ray is started there, and ``tradewind cluster push-env`` writes them anew. So a file is newer
# than the variable of the same name that a process of Ray has.

ENVIRONMENT_FOLDER: Final = ".tradewind/environment"
"""Below the home of Ray's user; the name of a file is that of its variable."""


def host_variable(name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The value that this host's cluster gives to ``name``: that of its file, else that in ``env``."""
    try:
        return (Path.home() / ENVIRONMENT_FOLDER / name).read_text().rstrip("\n")
    except (OSError, ValueError):
        return env.get(name)
