"""Pins: outputs that a person wants to keep, whatever else needs them; ``{prefix}/.tradewind/pins/{digest}.json``.

The digest is of the output's path, so an output has one pin however many people set it at once: the first one counts.
Whoever removes an output marks or claims its lease and then looks for pins; whoever pins it sets the pin and then looks
at the lease. So one of the two sees the other: the removal ends, or the pin is taken away again and that is said.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.records.conditional import write_if
from tradewind.records.files import remove_files
from tradewind.records.holding import OutputBusyError
from tradewind.records.reading import read_record
from tradewind.records.record import Record, RecordState
from tradewind.records.store import existing_many, list_names, read_many
from tradewind.steps.paths import self_and_parents

OWN_FOLDER: Final = ".tradewind"
"""Below a prefix, what is Tradewind's own and no output."""
PINS_FOLDER: Final = f"{OWN_FOLDER}/pins"


@dataclass(frozen=True)
class Pin:
    """One pin.

    Attributes:
        path: The output.
        user: Who set it.
        at: When, in ISO 8601, by the clock of the machine that set it.
    """

    path: str
    user: str
    at: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Pin:
        """The pin in a parsed file."""
        return Pin(**{name: fields[name] for name in Pin.__dataclass_fields__ if name in fields})


def add_pin(prefix: str, pin: Pin) -> bool:
    """Set ``pin``; False if its output is pinned already, and then that pin stays as it is."""
    return write_if(pin_path(prefix, pin.path), json.dumps(pin.to_json(), indent=2) + "\n", None) is not None


def set_pin(prefix: str, pin: Pin) -> bool:
    """``add_pin`` for an output that nobody removes.

    Raises:
        OutputBusyError: Somebody does; there is no pin.
    """
    before = _unless_removed(pin.path)
    if not add_pin(prefix, pin):
        return False
    try:
        after = _unless_removed(pin.path)
        if before.state is RecordState.FINISHED and after.state in (RecordState.STOPPED, RecordState.NONE):
            raise _being_removed(pin.path)
    except OutputBusyError:
        remove_pin(prefix, pin.path)
        raise
    return True


def remove_pin(prefix: str, output_path: str) -> bool:
    """Take the pin of an output away; whether there was one."""
    path = pin_path(prefix, output_path)
    was_pinned = bool(existing_many([path]))
    remove_files(posixpath.dirname(path), [posixpath.basename(path)])
    return was_pinned


def is_pinned(output_path: str) -> bool:
    """Whether an output is pinned, at whichever of the folders that it lies in."""
    return bool(existing_many([pin_path(folder, output_path) for folder in folders_above(output_path)]))


def folders_above(path: str) -> list[str]:
    """The folders that ``path`` lies in and that may be prefixes, up to the root of its store."""
    above = list(self_and_parents(path))[1:]
    return [folder for folder in above if "://" in folder] if "://" in path else [*above, "/"]


def read_pins(prefix: str) -> list[Pin]:
    """All pins below ``prefix``, by path."""
    folder = posixpath.join(prefix, PINS_FOLDER)
    names = [name for name in list_names(folder) if name.endswith(".json") and not name.startswith(".")]
    texts = read_many([posixpath.join(folder, name) for name in names])
    return sorted((Pin.from_json(json.loads(text)) for text in texts.values()), key=lambda pin: pin.path)


def pin_path(prefix: str, output_path: str) -> str:
    """Where the pin of an output lies."""
    digest = hashlib.sha256(output_path.rstrip("/").encode()).hexdigest()[:32]
    return posixpath.join(prefix, PINS_FOLDER, f"{digest}.json")


def _unless_removed(output_path: str) -> Record:
    """The output's record. Raises ``OutputBusyError`` if somebody is about to remove it, or removes it."""
    record = read_record(output_path)
    if record.is_being_removed or (record.state is RecordState.AT_WORK and record.lease and "gc" in record.lease.by):
        raise _being_removed(output_path)
    return record


def _being_removed(output_path: str) -> OutputBusyError:
    return OutputBusyError(
        f"{output_path} is being removed by `tradewind gc`, so it is not pinned: look in two minutes whether it is "
        "still there, and pin it then."
    )
