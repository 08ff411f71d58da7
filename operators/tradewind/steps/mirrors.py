"""Mirrors: paths of a config that the step reads in the region of its run, wherever they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIRROR_SCHEME: Final = "mirror://"


@dataclass(frozen=True)
class Mirror:
    """One path that a config gives as ``mirrored(...)``.

    Attributes:
        field: Where it stands, such as ``config.data``.
        path: Below the prefix of any region, or absolute.
        budget_gb: The most gigabytes (1e9 bytes) that may be copied for it; None for any number.
        prefix: That of the run.
        is_output: It lies in the output of a step that this one refers to, and so is made before.
    """

    field: str
    path: str
    budget_gb: float | None
    prefix: str
    is_output: bool = False

    @property
    def text(self) -> str:
        """What stands in the filled-in config until the step runs."""
        return MIRROR_SCHEME + self.path
