"""Run or only print commands of other programs, and report failed ones."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.fleet.errors import FleetError


class FailedCommandError(FleetError):
    """A command ended with an error, or is not installed."""


@dataclass(frozen=True)
class Commands:
    """Prints commands and runs them one after another.

    Attributes:
        is_dry: Whether they are only printed.
    """

    is_dry: bool = False

    def run(self, command: Sequence[str], *, secret_input: Sequence[str] = ()) -> None:
        """Run a command; with ``secret_input``, pipe in that command's output without showing it.

        Raises:
            FailedCommandError: It failed.
        """
        shown = shlex.join(command)
        print(f"{shlex.join(secret_input)} | {shown}" if secret_input else shown, flush=True)
        if self.is_dry:
            return
        given = self._output(secret_input).encode() if secret_input else None
        ended = _ended(command, input=given)
        if ended.returncode:
            raise FailedCommandError(f"`{shown}` ended with {ended.returncode}: its output is above.")

    def _output(self, command: Sequence[str]) -> str:
        ended = _ended(command, stdout=subprocess.PIPE)
        if ended.returncode:
            raise FailedCommandError(f"`{shlex.join(command)}` ended with {ended.returncode}: its output is above.")
        return str(ended.stdout.decode())

    def is_found(self, command: Sequence[str], missing: str) -> bool:
        """Return whether a lookup command succeeds; a dry run assumes so.

        Args:
            missing: Its error text if there is no such object.

        Raises:
            FailedCommandError: It failed with another error.
        """
        print(shlex.join(command), flush=True)
        if self.is_dry:
            return True
        ended = _ended(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        words = ended.stderr.decode(errors="replace").split()
        if ended.returncode and not any(missing in word for word in words):
            raise FailedCommandError(f"`{shlex.join(command)}` ended with {ended.returncode}: {' '.join(words)}")
        return not ended.returncode


def _ended(command: Sequence[str], **how: object) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, check=False, **how)  # type: ignore[call-overload, no-any-return]
    except FileNotFoundError:
        raise FailedCommandError(f"{command[0]} is not installed, or not on the PATH.") from None
