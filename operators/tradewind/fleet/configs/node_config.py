"""What Ray leaves unread in a cluster file: each ``node_config``, which goes to Google Cloud as it stands.

A field that is misspelt there, such as ``preemptable``, is dropped without a word, and slices cost three times as much.
What fields there are is in the descriptions of the APIs that come with Google's client for Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from tradewind.fleet.errors import FleetError, meant
from tradewind.fleet.file.yaml_document import YamlPath

_APIS: Final = {"compute": ("compute", "v1", "Instance"), "tpu": ("tpu", "v2alpha1", "Node")}
"""Ray's kind of a node → the API, its version, and what it calls a node."""
_RAYS_OWN: Final = {
    "compute": {"networkConfig", "sourceInstanceTemplate"},
    "tpu": {"networkInterfaces", "serviceAccounts"},
}
"""What Ray takes out or turns into something else before it sends the rest."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
}  # fmt: skip
_WORDS: Final = {"string": "text", "boolean": "true or false", "integer": "a whole number", "number": "a number"}

Schema = Mapping[str, Any]


def node_config_problems(kind: str, config: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """What is wrong with the ``node_config`` of a node of Ray's ``kind``, each with the path in it.

    Raises:
        FleetError: Google's client for Python is not installed.
    """
    api, version, name = _APIS[kind]
    schemas = _schemas(api, version)
    known = {field: item for field, item in config.items() if field not in _RAYS_OWN[kind]}
    yield from _problems(known, schemas[name], schemas, ())


@cache
def _schemas(api: str, version: str) -> Mapping[str, Schema]:
    try:
        from googleapiclient.discovery_cache import get_static_doc  # type: ignore[import-untyped]
    except ImportError:
        raise FleetError(
            "A cluster file is checked by the descriptions in google-api-python-client, which is not installed here: "
            "install airflow-provider-tradewind[fleet]."
        ) from None
    document: Mapping[str, Schema] = json.loads(get_static_doc(api, version))["schemas"]
    return document


def _problems(
    value: Any, schema: Schema, schemas: Mapping[str, Schema], path: YamlPath
) -> Iterator[tuple[YamlPath, str]]:
    schema = schemas[schema["$ref"]] if "$ref" in schema else schema
    match schema.get("type"):
        case "object":
            yield from _table_problems(value, schema, schemas, path)
        case "array" if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _problems(item, schema["items"], schemas, (*path, index))
        case "array":
            yield path, "a list belongs here."
        case str(kind) if kind in _TYPES and not _fits(value, kind, schema):
            yield path, f"{value!r} is not {_WORDS[kind]}, which belongs here."


def _table_problems(
    value: Any, schema: Schema, schemas: Mapping[str, Schema], path: YamlPath
) -> Iterator[tuple[YamlPath, str]]:
    if not isinstance(value, dict):
        yield path, "a table of fields belongs here."
        return
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        if name in fields and fields[name].get("readOnly"):
            yield (*path, name), "Google Cloud sets this field itself: leave it out."
        elif name in fields:
            yield from _problems(item, fields[name], schemas, (*path, name))
        elif others:
            yield from _problems(item, others, schemas, (*path, name))
        else:
            ours = [field for field in fields if not fields[field].get("readOnly")]
            yield (*path, name), f"Google Cloud knows no such field: {meant(name, ours)}"


def _fits(value: Any, kind: str, schema: Schema) -> bool:
    """Whether a value is of this type. The APIs write large numbers as text, and take them as numbers too."""
    if kind == "string" and str(schema.get("format", "")).endswith("int64"):
        return isinstance(value, (int, str)) and not isinstance(value, bool)
    is_flag_for_number = isinstance(value, bool) and kind != "boolean"
    return isinstance(value, _TYPES[kind]) and not is_flag_for_number
