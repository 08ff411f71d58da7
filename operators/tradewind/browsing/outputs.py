"""Outputs of steps: their manifest, evaluation and split caches, besides their files."""

from __future__ import annotations

from typing import Final

from tradewind.browsing.access import Access, Stored, told
from tradewind.browsing.answers import Entry, Fact, ListedFile
from tradewind.browsing.formats import Details, format_of_name
from tradewind.browsing.limits import MAX_FILES
from tradewind.browsing.refusals import BrowsingError
from tradewind.datasets.cache_rows import LEDGER_FILE
from tradewind.datasets.files import basename, join
from tradewind.records.lease import Phase
from tradewind.records.manifests import MAX_MANIFEST_BYTES, OLDER_MANIFEST_FILE, Manifest, manifest_path
from tradewind.records.parsing import RecordFormatError
from tradewind.records.record import read_leases
from tradewind.text import single_line

_MAX_SHOWN_BYTES: Final = 16 << 20
"""Size of a manifest that is listed, about 130,000 files, which take twice that in memory when parsed."""
_LEDGER: Final = f"/{LEDGER_FILE}"
_MAX_CACHES: Final = 30
_RELATED: Final = {
    "record.json": "record of an evaluation",
    "samples.parquet": "samples of an evaluation",
    "summary.md": "summary of an evaluation",
    "metrics.jsonl": "metrics of a training",
    "config.json": "config of a model",
    f"train/{LEDGER_FILE}": "token cache of the training split",
    f"validation/{LEDGER_FILE}": "token cache of the validation split",
}
"""Files of an output that are worth a link, relative to it; of a token cache its folder."""


def describe(access: Access, stored: Stored) -> Details:
    """Return the files that the manifest of a committed output lists, and what else is worth a look."""
    details = Details()
    try:
        details.related = _related(access, stored.path)
        _add_manifest(access, stored.path, details)
    except BrowsingError as error:
        details.notes.append(single_line(error))
    return details


def _related(access: Access, path: str) -> list[Entry]:
    from tradewind.storage.files import existing_many

    with told(path):
        found = existing_many([join(path, name) for name in _RELATED])
    entries = []
    for name in _RELATED:
        file = join(path, name)
        if file not in found:
            continue
        if name.endswith(LEDGER_FILE):
            folder = file.removesuffix(f"/{LEDGER_FILE}")
            entries.append(Entry(basename(folder), folder, "folder", format="token_cache"))
        else:
            named = format_of_name(name)
            entries.append(Entry(name, file, "file", format=named.name if named else None))
    return entries


def _add_manifest(access: Access, path: str, details: Details) -> None:
    with told(path):
        lease = read_leases([path]).get(path)
    if lease is None or lease.phase is not Phase.COMMITTED:
        return
    details.facts.append(Fact("attempt", str(lease.attempt)))
    for file in (manifest_path(path, lease.attempt), join(path, OLDER_MANIFEST_FILE)):
        try:
            size = access.stat(file).size
            if size > _MAX_SHOWN_BYTES:
                limit = min(_MAX_SHOWN_BYTES, MAX_MANIFEST_BYTES)
                details.notes.append(f"The manifest has {size:,} bytes; a page lists one of {limit:,}.")
                return
            with access.open(file) as opened:
                manifest = Manifest.from_json(opened.read(_MAX_SHOWN_BYTES).decode())
        except BrowsingError:
            continue
        except (RecordFormatError, UnicodeDecodeError) as error:
            details.notes.append(f"The manifest {file} cannot be read, because {single_line(error)}.")
            return
        break
    else:
        return
    details.facts += [Fact("files", f"{len(manifest.files):,}"), Fact("bytes", f"{manifest.size:,}")]
    if lease.digest not in (None, manifest.digest):
        details.notes.append("The manifest is not the one that was committed.")
    details.files = [
        ListedFile(each.path, join(path, each.path), each.size, each.checksum) for each in manifest.files[:MAX_FILES]
    ]
    known = {entry.path for entry in details.related}
    caches = [each.path.removesuffix(_LEDGER) for each in manifest.files if each.path.endswith(_LEDGER)]
    details.related += [
        Entry(single_line(name), join(path, name), "folder", format="token_cache")
        for name in caches[:_MAX_CACHES]
        if join(path, name) not in known
    ]
    if len(manifest.files) > MAX_FILES:
        details.notes.append(f"{MAX_FILES:,} of {len(manifest.files):,} files of the manifest are listed.")
