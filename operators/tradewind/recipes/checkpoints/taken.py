"""Which checkpoint of another training is taken: decided once, written down, and gone by at every later start.

A folder of checkpoints may get another newest one at any time: between two processes that look for it, and between two
starts of one training, which would then take its first step for another, or be compared with another model.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from tradewind.datasets.files import join
from tradewind.recipes.checkpoints.newest import FoundCheckpoint, newest_checkpoint, untrue_checkpoints
from tradewind.records.parsing import Flaw, Kind, is_count, is_relative, is_text, known_fields, parse
from tradewind.storage.bounded import SMALL

_KINDS: Final = {
    "given": Kind(is_text, "a path"),
    "checkpoint": Kind(is_text, "a path"),
    "first_step": Kind(is_count, "a step"),
}


@dataclass(frozen=True)
class TakenCheckpoint:
    """The checkpoint of another training that one took.

    Attributes:
        given: What the config named, which may be a folder of checkpoints.
        checkpoint: The one that was found there.
        first_step: More than 0 where the training goes on with all that the other was.
    """

    given: str
    checkpoint: str
    first_step: int = 0


@dataclass(frozen=True)
class TakenFile:
    """Where that is written down; ``path`` lies beside the training's own checkpoints, and stays as long as they do."""

    path: str

    @classmethod
    def of_begin(cls, checkpoints: str) -> TakenFile:
        """Of what the training whose own checkpoints lie there began with."""
        return cls(join(checkpoints, "begin.json"))

    @classmethod
    def of_reference(cls, checkpoints: str) -> TakenFile:
        """Of what the preferences of that training are compared with."""
        return cls(join(checkpoints, "reference.json"))

    def read(self) -> TakenCheckpoint | None:
        """What is written there, if anything is.

        Raises:
            ValueError: It is not what we have written.
        """
        from tradewind.storage.files import read_contents

        content = read_contents([self.path], SMALL).get(self.path)
        if content is None:
            return None
        try:
            if content.flaw is not None:
                raise Flaw(content.flaw)
            taken = TakenCheckpoint(**known_fields(parse(content.text), _KINDS, required=_KINDS))
            if not _is_below(taken.checkpoint, taken.given):
                raise Flaw("its checkpoint does not lie below what was given")
        except Flaw as flaw:
            raise ValueError(
                f"{self.path} does not say which checkpoint this training has taken, because {flaw}: put back what it "
                "was, or remove this training's checkpoints so that it begins anew."
            ) from None
        return taken

    def found(self, path: str, field: str, *, is_read: bool, has_own: bool) -> str:
        """The checkpoint that ``field`` names with ``path``; what is written down, if it is of that path.

        Args:
            is_read: Whether the training will read it; else it need not be there.
            has_own: Whether the training has a checkpoint of its own, and so has worked with this one.

        Raises:
            ValueError: It is not there, or nobody knows any more which it was.
        """
        try:
            taken = self.read()
        except ValueError:
            if is_read and has_own:
                raise
            taken = None  # decided anew, since nothing was made with it
        if taken is None or taken.given != path:
            return newest_under(path, field).path if is_read else path
        if not is_read or newest_checkpoint([taken.checkpoint]) is not None:
            return taken.checkpoint
        if has_own:
            raise ValueError(
                f"{field}: the checkpoint {taken.checkpoint}, with which this training has worked so far, is not there "
                "any more: put it back."
            )
        return newest_under(path, field).path

    def write(self, taken: TakenCheckpoint) -> None:
        """Write it down. Of two that find nothing there one wins."""
        from tradewind.storage.files import create_text, write_text

        text = json.dumps(asdict(taken), indent=2, sort_keys=True) + "\n"
        if not create_text(self.path, text) and not self._holds_for(taken.given):
            write_text(self.path, text)

    def _holds_for(self, path: str) -> bool:
        """Whether what is written there is of that path, and can be gone by."""
        try:
            there = self.read()
        except ValueError:
            return False
        return there is not None and there.given == path and newest_checkpoint([there.checkpoint]) is not None


def newest_under(path: str, field: str) -> FoundCheckpoint:
    """The checkpoint itself, if the output of a training or the folder of its checkpoints is given.

    Raises:
        ValueError: There is none, or one that may be newer says another step than its own.
    """
    roots = [path, join(path, "checkpoints")]
    found = newest_checkpoint(roots)
    for untrue in untrue_checkpoints(roots):
        if found is None or untrue.may_be_after(found.step):
            raise ValueError(f"{field}: the checkpoint {untrue.path} {untrue.wrong}: copy it again or give another.")
    if found is None:
        raise ValueError(f"There is no complete checkpoint under {field} {path}.")
    return found


def _is_below(path: str, folder: str) -> bool:
    below = path.removeprefix(f"{folder.rstrip('/')}/")
    return path == folder or (below != path and is_relative(below))
