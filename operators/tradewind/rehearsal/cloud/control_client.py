"""Control a rehearsal cloud from another process, through its control API and an owner-only file.

Standard library only, so that the command line starts quickly.
"""

from __future__ import annotations

import json
import os
import stat
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.storage.bounded_read import SMALL, read_local

CONTROL_FILE: Final = "control.json"
_TIMEOUT_S: Final = 120.0


class RehearsalControlError(RuntimeError):
    """The rehearsal cannot perform the request, or does not answer."""


@dataclass(frozen=True)
class RehearsalControl:
    """URL and token of a rehearsal's control API."""

    url: str
    token: str

    @classmethod
    def of_folder(cls, folder: Path) -> RehearsalControl:
        """Return the control of the rehearsal in ``folder``.

        Raises:
            RehearsalControlError: None is running there, or other users could control it too.
        """
        file = folder / CONTROL_FILE
        try:
            mode, content = stat.S_IMODE(os.stat(file).st_mode), read_local(file, SMALL)
            if content.flaw is not None:
                raise ValueError(content.flaw)
            fields = json.loads(content.text)
            control = cls(fields["url"], fields["token"])
        except FileNotFoundError:
            raise RehearsalControlError(f"No rehearsal is up in {folder}: start one with 'rehearse up'.") from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise RehearsalControlError(f"{file} cannot be read ({error}): run 'rehearse down' and 'up'.") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RehearsalControlError(f"{file} is accessible to other users: run 'chmod 600' on it.")
        return control

    def to_json(self) -> str:
        """Serialize for ``of_folder``."""
        return json.dumps(asdict(self))

    def ask(self, what: str) -> Any:
        """Fetch ``status`` or ``requests``."""
        return self._send(urllib.request.Request(f"{self.url}/{what}"))

    def do(self, what: str, **arguments: Any) -> Any:
        """Call a documented method of ``RehearsalCloud`` with its arguments."""
        body = json.dumps(arguments).encode()
        return self._send(urllib.request.Request(f"{self.url}/{what}", data=body, method="POST"))

    def _send(self, request: urllib.request.Request) -> Any:
        request.add_header("Authorization", f"Bearer {self.token}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this loopback
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RehearsalControlError(json.load(error)["error"]) from None
        except (OSError, ValueError) as error:
            raise RehearsalControlError(f"The rehearsal at {self.url} does not answer: {error}.") from None
