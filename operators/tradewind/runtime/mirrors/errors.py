"""Why a step's mirrored path cannot be read in the region of its run. Each message names the field."""

from __future__ import annotations

from tradewind.calls.errors import RuntimeFault


class MirrorError(RuntimeFault):
    """A mirrored path cannot be had. What was there before is as it was."""


class MirrorMissingError(MirrorError):
    """It is in none of the places where it may be."""


class MirrorBudgetError(MirrorError):
    """More than its budget would have to be copied; nothing was."""


class MirrorOccupiedError(MirrorError):
    """Something else lies where the copy belongs."""


class MirrorOutsideError(MirrorError):
    """A link or a name leads out of a prefix. It was not followed."""


class MirrorCopyError(MirrorError):
    """What was copied is not what the source has, or had at the beginning."""
