"""The output that somebody names at the command line: by its path, or by one below the prefix."""

from __future__ import annotations

from tradewind.cli.errors import UsageError
from tradewind.steps.paths import is_absolute
from tradewind.storage import Location, StorageError, place_of


def named_output(prefix: str, word: str) -> str:
    """The path that ``word`` stands for; a relative one is below ``prefix``, and leads nowhere else.

    Raises:
        UsageError: It leads out of the prefix, or is no path at all.
    """
    is_whole = is_absolute(word)
    path = (word if is_whole else f"{prefix.rstrip('/')}/{word}").rstrip("/") or "/"
    try:
        Location.of(path, "The output")
        place, top = place_of(path, follows_links=False), place_of(prefix, follows_links=False)
        if not is_whole and not place.is_or_is_below(top):
            raise UsageError(f"{word!r} leads out of {prefix}: name the output by its whole path.")
    except StorageError as error:
        raise UsageError(str(error)) from None
    return path
