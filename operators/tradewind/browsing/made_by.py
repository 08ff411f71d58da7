"""Who made an output: its step, version, state and producer, from the records beside it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tradewind.browsing.access import Access, told
from tradewind.browsing.answers import Entry, MadeBy
from tradewind.browsing.refusals import BrowsingError
from tradewind.datasets.files import basename, join, parent
from tradewind.records.info_files import INFO_FILE, BadInfoError, parse_info
from tradewind.records.manifests import RECORDS_OF_AN_OUTPUT
from tradewind.records.record import Record, read_records
from tradewind.storage.bounded_read import SMALL
from tradewind.storage.files import existing_many, read_contents
from tradewind.text import single_line

_MAX_PARENTS: Final = 12


def makers_of(access: Access, folders: Sequence[str]) -> dict[str, MadeBy]:
    """Return who made each of the ``folders`` that is an output.

    Records are read as they are; one that cannot be read has a ``problem``. Links are no records.
    """
    if not folders:
        return {}
    with told(folders[0]):
        files = [join(folder, name) for folder in folders for name in sorted(RECORDS_OF_AN_OUTPUT)]
        outputs = sorted({posixpath.dirname(file) for file in existing_many(files)})
        if not outputs:
            return {}
        records = read_records(outputs)
        infos = read_contents([join(output, INFO_FILE) for output in outputs], SMALL)
    found: dict[str, MadeBy] = {}
    for output in outputs:
        made, file = _of_record(output, records[output]), join(output, INFO_FILE)
        if file in infos:
            try:
                made = replace(made, step=single_line(parse_info(file, infos[file])["name"]))
            except BadInfoError as error:
                made = replace(made, problem=made.problem or single_line(error))
        found[output] = made
    return found


def with_makers(access: Access, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, of which the folders with records are outputs, with who made them."""
    folders = [entry.path for entry in entries if entry.kind == "folder"]
    try:
        makers = makers_of(access, folders)
    except BrowsingError:
        return list(entries)  # the names are more important than their makers
    return [
        replace(entry, kind="output", made_by=makers[entry.path]) if entry.path in makers else entry
        for entry in entries
    ]


def maker_above(access: Access, path: str) -> tuple[str, MadeBy] | None:
    """Return the output that ``path`` is, or is in, and who made it."""
    folders: list[str] = []
    above = path.rstrip("/")
    while len(folders) < _MAX_PARENTS and (access.roots is None or access.roots.allow(above)):
        folders.append(above)
        if parent(above) in (above, ".") or above.endswith(":/"):
            break
        above = parent(above)
    makers = makers_of(access, folders)
    nearest = next((folder for folder in folders if folder in makers), None)
    return None if nearest is None else (nearest, makers[nearest])


def _of_record(output: str, record: Record) -> MadeBy:
    lease = record.lease
    made = MadeBy(version=basename(output), state=record.state.value)
    if lease is None:
        return made
    if lease.flaw is not None:
        return replace(made, problem=lease.why_unreadable)
    return replace(made, **_producer(lease.by))


def _producer(by: Mapping[str, Any]) -> dict[str, str]:
    names = {"dag": "dag_id", "run": "run_id", "task": "task_id", "script": "script"}
    return {field: single_line(by[name]) for name, field in names.items() if isinstance(by.get(name), str) and by[name]}
