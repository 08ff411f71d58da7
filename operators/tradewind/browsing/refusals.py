"""Why something cannot be shown, each with a sentence for the user."""

from __future__ import annotations

from typing import Final


class BrowsingError(Exception):
    """Base: the request cannot be answered."""


class MissingError(BrowsingError):
    """Nothing exists at the path, or it vanished."""


class OutsideError(BrowsingError):
    """The path is below no allowed root."""


class ChangedError(BrowsingError):
    """The file is another than the one that the place is of."""


class WrongKindError(BrowsingError):
    """The path cannot be shown in this way, for example an image as rows."""


class TooLargeError(BrowsingError):
    """It would take more memory or time than one request may take."""


class UnreadableError(BrowsingError):
    """The file is damaged, or not what its name says; or the request names no place in it."""


class StoreSilentError(BrowsingError):
    """The store did not answer, or refused."""


class BusyError(BrowsingError):
    """All readers are busy."""


ERRORS: Final = {
    kind.__name__: kind
    for kind in (
        MissingError,
        OutsideError,
        ChangedError,
        WrongKindError,
        TooLargeError,
        UnreadableError,
        StoreSilentError,
        BusyError,
    )
}
"""By name, as they pass from a reader's process."""
