"""Pages of a folder's entries, which cost the same for ten entries and for ten million."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from tradewind.browsing.access import Access, Stored, iso, moment_of, store_of, told
from tradewind.browsing.answers import Entry, EntryPage, Kind
from tradewind.browsing.formats import format_of_name
from tradewind.browsing.limits import MAX_SCAN_S
from tradewind.browsing.made_by import with_makers
from tradewind.browsing.refusals import UnreadableError
from tradewind.datasets.files import join
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT
from tradewind.storage.pages import has_pages, list_page

_CHECKED_NAMES: Final = 4096
_MAX_OUTPUTS: Final = 300
"""Folders of a page whose records are read: each costs a request or two."""


def list_entries(access: Access, stored: Stored, prefix: str, after: str | None, limit: int) -> EntryPage:
    """Return entries of a folder whose names begin with ``prefix``.

    Args:
        after: ``next`` of the page before.
    """
    if "/" in prefix or "\0" in prefix:
        raise UnreadableError("A prefix is the beginning of a name, without '/'.")
    with told(stored.path):
        fs, name = store_of(stored.path)
    if has_pages(stored.path):
        page = _listed_bucket(access, stored.path, prefix, after, limit)
    elif isinstance(fs, LocalFileSystem):
        page = _listed_local(access, stored.path, name, prefix, after, limit)
    else:
        page = _listed_any(fs, stored.path, name, prefix, after, limit)
    entries = with_makers(access, page.entries[:_MAX_OUTPUTS]) + page.entries[_MAX_OUTPUTS:]
    return EntryPage(page.path, entries, page.next, page.in_order, page.note)


def names_in(access: Access, folder: str, names: tuple[str, ...]) -> set[str]:
    """Return those of ``names`` that are files or folders in ``folder``."""
    from tradewind.storage.files import existing_many

    with told(folder):
        paths = {join(folder, name): name for name in names}
        return {paths[path] for path in existing_many(paths)}


def _listed_local(access: Access, path: str, folder: str, prefix: str, after: str | None, limit: int) -> EntryPage:
    """List a local folder: the smallest names after ``after``, of those that a scan of bounded time meets."""
    scanned, is_whole = 0, True
    until = time.monotonic() + min(MAX_SCAN_S, max(access.left_s, 0.1))

    def wanted() -> Iterator[str]:
        nonlocal scanned, is_whole
        with access.open_folder(path) as opened, os.scandir(opened) as found:
            for entry in found:
                scanned += 1
                if scanned % _CHECKED_NAMES == 0 and time.monotonic() > until:
                    is_whole = False
                    return
                if entry.name.startswith(prefix) and (after is None or entry.name > after):
                    yield entry.name

    with told(path):
        names = heapq.nsmallest(limit + 1, wanted())
    entries = [entry for name in names[:limit] if (entry := _local_entry(access, path, folder, name)) is not None]
    following = names[limit - 1] if len(names) > limit else None
    note = None
    if not is_whole:
        note = f"The folder has more than {scanned:,} names, so this list is not complete: narrow it by a prefix."
        if prefix:
            note = f"The folder has more than {scanned:,} names; these are the ones with the prefix among them."
    return EntryPage(path, entries, following, is_whole, note)


def _local_entry(access: Access, path: str, folder: str, name: str) -> Entry | None:
    full = os.path.join(folder, name)
    shown, at = _printable(name), join(path, name)
    if shown != name:
        return Entry(shown, at if _is_text(name) else join(path, shown), "other")
    try:
        itself = os.lstat(full)
    except OSError:
        return None  # it vanished
    target = None
    kind: Kind = "other"
    if os.path.islink(full):
        target = os.path.realpath(full)
        if access.roots is not None and not access.roots.allow(target):
            return Entry(name, at, "other", modified=iso(itself.st_mtime))
    if os.path.isdir(full):
        kind = "folder"
    elif os.path.isfile(full):
        kind = "file"
    size = None
    if kind == "file":
        try:
            size = os.stat(full).st_size
        except OSError:
            return None
    named = format_of_name(name) if kind == "file" else None
    target = None if kind == "other" else target
    return Entry(name, at, kind, size, iso(itself.st_mtime), named.name if named else None, target=target)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    """Return a name without bytes that are no text; such a file has no address, so it is only listed."""
    return name if _is_text(name) else os.fsencode(name).decode("utf-8", "replace")


def _listed_any(fs: Any, path: str, folder: str, prefix: str, after: str | None, limit: int) -> EntryPage:
    fs.invalidate_cache()
    with told(path):
        found = {str(each["name"]).rstrip("/").rpartition("/")[2]: each for each in fs.ls(folder, detail=True)}
    names = sorted(name for name in found if name.startswith(prefix) and (after is None or name > after))
    following = names[limit - 1] if len(names) > limit else None
    return EntryPage(path, [_remote_entry(path, name, found[name]) for name in names[:limit]], following)


def _remote_entry(path: str, name: str, info: Mapping[str, Any]) -> Entry:
    at = join(path, name)
    if info.get("type") == "directory":
        return Entry(name, at, "folder")
    named = format_of_name(name)
    size = int(info.get("size") or 0)
    return Entry(name, at, "file", size, moment_of(info), named.name if named else None)


def _listed_bucket(access: Access, path: str, prefix: str, after: str | None, limit: int) -> EntryPage:
    with told(path):
        page = list_page(path, prefix, after, limit, max(access.left_s, 0.1))
    return EntryPage(path, [_remote_entry(path, name, info) for name, info in page.entries.items()], page.next)


def is_output_folder(access: Access, folder: str) -> bool:
    """Whether a folder is the output of a step."""
    return bool(names_in(access, folder, tuple(sorted(RECORDS_OF_AN_OUTPUT))))
