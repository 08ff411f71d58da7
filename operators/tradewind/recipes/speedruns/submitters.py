"""Authors and descriptions of speedruns, which their steps return beside the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.datasets.files import join
from tradewind.records.manifests import RESULT_FILE
from tradewind.records.parsing import RecordFormatError, parse_object
from tradewind.storage.bounded_read import LARGE, Content
from tradewind.storage.files import read_contents
from tradewind.text import single_line

_OF_AUTHOR: Final = ("name", "affiliation", "url")


def read_submitters(paths: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Read ``author`` (name, affiliation, url) and ``description`` by label.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    files = {label: join(path, RESULT_FILE) for label, path in paths.items()}
    contents = read_contents(list(files.values()), LARGE)
    return {label: _texts(contents.get(file)) for label, file in files.items()}


def _texts(content: Content | None) -> dict[str, Any]:
    """Return the texts as single lines, without other values: a function may return anything."""
    try:
        fields = parse_object(content.text) if content is not None and content.flaw is None else {}
    except RecordFormatError:
        return {}
    given = fields.get("author")
    author = {name: _line(given.get(name)) for name in _OF_AUTHOR} if isinstance(given, dict) else {}
    return {"author": author, "description": _line(fields.get("description"))}


def _line(value: Any) -> str:
    return single_line(value) if isinstance(value, str) else ""
