"""JSON objects of other steps: read within a bound and checked by field, since any user may write the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tradewind.records.parsing import FieldType, RecordFormatError, parse_fields, parse_object
from tradewind.storage.bounded_read import SMALL


def read_object(path: str, kinds: Mapping[str, FieldType], required: Iterable[str]) -> dict[str, Any] | None:
    """Return the JSON object at ``path``, whose fields in ``kinds`` are checked; None without a file.

    Raises:
        ValueError: It is no such object.
    """
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    content = read_contents([path], SMALL).get(path)
    if content is None:
        return None
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        fields = parse_object(content.text)
        parse_fields(fields, kinds, required)
    except RecordFormatError as flaw:
        raise ValueError(f"{path} is not what its step writes, because {flaw}: force that step once.") from None
    return fields
