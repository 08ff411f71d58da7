"""A preemption announces itself in a file that every process of the pod can look for, at the price of one ``stat``.

The host actors write it on all hosts when one of them has a notice. The process saves a checkpoint, on all hosts for
the same step, and ends with exit code 76. Standard library only: this runs inside the user's process.
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
    """A slice of this pod is about to go."""

    deadline: float
    """Epoch seconds; what is not saved by then is lost."""
    reason: str


def preemption_notice() -> Notice | None:
    """The notice that this process's pod has, if it has one. Cheap enough for every step; None outside a pod."""
    path = os.environ.get(NOTICE_VARIABLE)
    return read_notice(path) if path and os.path.exists(path) else None


def is_sooner(new: Notice, present: Notice | None) -> bool:
    """Whether ``new`` says anything that ``present`` does not: a deadline is only ever moved forward."""
    return present is None or new.deadline < present.deadline - _ABOUT_THE_SAME_S


def read_notice(path: str) -> Notice | None:
    """The notice in the file at ``path``, or None when there is none."""
    try:
        with open(path) as file:
            return Notice(**json.load(file))
    except FileNotFoundError:
        return None


def write_notice(path: str, notice: Notice) -> None:
    """Leave ``notice`` at ``path``, whole or not at all."""
    write_private_file(path, json.dumps(asdict(notice)))
