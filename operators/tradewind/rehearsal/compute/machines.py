"""What stands behind an instance of the simulated Compute Engine: a machine to log in to, or nothing at all."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class MachineError(RuntimeError):
    """A machine did not come up."""


@dataclass(frozen=True)
class MachineFacts:
    """What a machine learns of itself.

    Attributes:
        name: The instance's.
        labels: The instance's, as it was created.
        disks: The names of the disks that outlive it.
    """

    name: str
    labels: Mapping[str, str]
    disks: tuple[str, ...]


@dataclass(frozen=True)
class MachineUp:
    """A machine that is up.

    Attributes:
        host_keys: The SSH host keys that it writes into its metadata, by their types.
    """

    address: str
    host_keys: Mapping[str, str]


class Machines(Protocol):
    """Starts and ends machines."""

    def start(self, facts: MachineFacts) -> MachineUp:
        """Start one; returns once it is up.

        Raises:
            MachineError: It did not come up; nothing of it is left.
        """

    def kill(self, name: str) -> None:
        """It vanishes, with all that runs on it."""


class NoMachines:
    """For those who only want to talk to the API: an instance is RUNNING at once, and nothing runs there."""

    def __init__(self) -> None:
        self._numbers = itertools.count(2)

    def start(self, facts: MachineFacts) -> MachineUp:
        return MachineUp(f"10.128.0.{next(self._numbers)}", {})

    def kill(self, name: str) -> None:
        """There is nothing to end."""
