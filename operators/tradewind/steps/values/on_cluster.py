"""Values of heavy libraries that only a cluster can make: here it is known how to get them, and nothing else.

Unlike ``lazy``, which a DAG file's author writes, these come from files that import the libraries themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class OnCluster:
    """What stands for such a value. It has no names of its own, since those of the value are asked of it."""

    __slots__ = ()

    def _tradewind_way(self) -> Way | None:
        raise NotImplementedError


@dataclass(frozen=True)
class Named:
    """It is a part of a module."""

    module: str
    path: str


@dataclass(frozen=True)
class Taken:
    """It is an attribute of another."""

    of: OnCluster
    attribute: str


@dataclass(frozen=True)
class Called:
    """It is what calling another gives."""

    of: OnCluster
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Way = Named | Taken | Called


def way_to(value: OnCluster) -> Way | None:
    """How a cluster gets ``value``; None for what is only good for annotations."""
    return value._tradewind_way()
