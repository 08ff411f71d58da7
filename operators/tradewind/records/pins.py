"""Pins protect outputs from removal, in ``{prefix}/.tradewind/pins/{digest}.json``.

The digest is that of the output's path, so an output has one pin: if several users set it at once, the first one
counts. A removal marks or claims the lease, then reads the pins; ``set_pin`` writes the pin, then reads the lease. So
one of the two sees the other: the removal stops, or ``set_pin`` removes its pin and raises.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.records.lease_store import OutputBusyError
from tradewind.records.parsing import TEXT, RecordFormatError, parse_fields, parse_object
from tradewind.records.record import Record, RecordState, read_record
from tradewind.steps.paths import self_and_parents
from tradewind.storage.bounded_read import SMALL, Content
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import is_anything_at, list_names, read_contents
from tradewind.storage.swap import write_if
from tradewind.storage.trees import remove_files

OWN_FOLDER: Final = ".tradewind"
"""Tradewind's own folder below a prefix; it holds no output."""
PINS_FOLDER: Final = f"{OWN_FOLDER}/pins"
_KINDS: Final = {"path": TEXT, "user": TEXT, "at": TEXT, "note": TEXT}


@dataclass(frozen=True)
class Pin:
    """One pin.

    Attributes:
        path: The output.
        user: The user who set it.
        at: Time in ISO 8601, by the clock of the machine that set it.
    """

    path: str
    user: str
    at: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: str) -> Pin:
        """Return the pin in a file's text.

        Raises:
            RecordFormatError: The text is not a pin.
        """
        return Pin(**parse_fields(parse_object(text), _KINDS, ("path", "user", "at")))


class BadPinError(BadRecordError):
    """A pin cannot be read. Its output stays if it is known, and otherwise every output that it may protect."""


@dataclass(frozen=True)
class Pins:
    """Pins below a prefix.

    Attributes:
        read: The pins that can be read, by path.
        unread: The errors of the others.
    """

    read: tuple[Pin, ...]
    unread: tuple[BadPinError, ...]


def add_pin(prefix: str, pin: Pin) -> bool:
    """Write ``pin``; False, with the earlier pin unchanged, if its output is already pinned."""
    return write_if(pin_path(prefix, pin.path), json.dumps(pin.to_json(), indent=2) + "\n", None) is not None


def set_pin(prefix: str, pin: Pin) -> bool:
    """Write ``pin`` as ``add_pin`` does, for an output that no process removes.

    Raises:
        OutputBusyError: A process removes the output; there is no pin.
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
    """Remove the pin of an output, and return whether there was one."""
    path = pin_path(prefix, output_path)
    was_pinned = is_anything_at([path])
    remove_files(posixpath.dirname(path), [posixpath.basename(path)])
    return was_pinned


def is_pinned(output_path: str) -> bool:
    """Whether an output is pinned, at any of the folders above it."""
    return is_anything_at([pin_path(folder, output_path) for folder in folders_above(output_path)])


def pinned_outputs(prefixes: Iterable[str], output_paths: Iterable[str]) -> set[str]:
    """Return those outputs that have a pin below one of ``prefixes``, by one listing for each; pins are not read."""
    names = {name for prefix in dict.fromkeys(prefixes) for name in list_names(posixpath.join(prefix, PINS_FOLDER))}
    return {path for path in output_paths if posixpath.basename(pin_path("", path)) in names} if names else set()


def folders_above(path: str) -> list[str]:
    """Return the folders above ``path`` that may be prefixes, up to the root of its store."""
    above = list(self_and_parents(path))[1:]
    return [folder for folder in above if "://" in folder] if "://" in path else [*above, "/"]


def read_pins(prefix: str) -> list[Pin]:
    """Return the pins below ``prefix`` that can be read, by path."""
    return list(look_for_pins(prefix).read)


def look_for_pins(prefix: str) -> Pins:
    """Read all pins below ``prefix``."""
    folder = posixpath.join(prefix, PINS_FOLDER)
    names = [name for name in list_names(folder) if name.endswith(".json") and not name.startswith(".")]
    read: list[Pin] = []
    unread: list[BadPinError] = []
    for file, content in read_contents([posixpath.join(folder, name) for name in names], SMALL).items():
        try:
            read.append(_parse(file, content))
        except BadPinError as error:
            unread.append(error)
    return Pins(tuple(sorted(read, key=lambda pin: pin.path)), tuple(unread))


def pin_path(prefix: str, output_path: str) -> str:
    """Return the path of the pin of an output."""
    digest = hashlib.sha256(output_path.rstrip("/").encode()).hexdigest()[:32]
    return posixpath.join(prefix, PINS_FOLDER, f"{digest}.json")


def _parse(file: str, content: Content) -> Pin:
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        pin = Pin.from_json(content.text)
        if posixpath.basename(pin_path("", pin.path)) != posixpath.basename(file):
            raise RecordFormatError("its name is not that of a pin of its path")
    except RecordFormatError as flaw:
        raise BadPinError(file, str(flaw), "Remove it, and pin its output again.") from None
    return pin


def _unless_removed(output_path: str) -> Record:
    """Return the output's record; raise ``OutputBusyError`` if a process removes the output, or is about to."""
    record = read_record(output_path)
    if record.is_being_removed or (record.state is RecordState.AT_WORK and record.lease and "gc" in record.lease.by):
        raise _being_removed(output_path)
    return record


def _being_removed(output_path: str) -> OutputBusyError:
    return OutputBusyError(
        f"{output_path} is being removed by `tradewind gc`, so it is not pinned. If it still exists in two minutes, "
        "pin it then."
    )
