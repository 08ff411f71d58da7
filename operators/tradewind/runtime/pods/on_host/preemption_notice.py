"""Preemption notice: a file that every process of the pod can check at the cost of one ``stat``.

The host actors write it on all hosts when one of them has a notice. The process saves a checkpoint, for the same step
on all hosts, and exits with code 76. This module runs in the user's process and needs only the standard library.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from tradewind.machine import write_private_file

NOTICE_VARIABLE: Final = "TRADEWIND_NOTICE_FILE"
_ABOUT_THE_SAME_S: Final = 2.0


@dataclass(frozen=True)
class Notice:
    """A slice of this pod is about to be preempted."""

    deadline: float
    """Epoch seconds; steps that are not saved by then are lost."""
    reason: str


def preemption_notice() -> Notice | None:
    """Return the notice of this process's pod, if any. Cheap enough for every step; None outside a pod."""
    path = os.environ.get(NOTICE_VARIABLE)
    return read_notice(path) if path and os.path.exists(path) else None


def is_sooner(new: Notice, present: Notice | None) -> bool:
    """Whether ``new`` replaces ``present``: a deadline only moves to an earlier time."""
    return present is None or new.deadline < present.deadline - _ABOUT_THE_SAME_S


def read_notice(path: str) -> Notice | None:
    """Return the notice in the file at ``path``, or None when there is none."""
    try:
        with open(path) as file:
            return Notice(**json.load(file))
    except FileNotFoundError:
        return None


def write_notice(path: str, notice: Notice) -> None:
    """Write ``notice`` to ``path`` atomically."""
    write_private_file(path, json.dumps(asdict(notice)))
