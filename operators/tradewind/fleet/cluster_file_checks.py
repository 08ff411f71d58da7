"""Checks of a cluster file of Ray's launcher before a start, beyond Ray's own schema.

Ray fills in no defaults for an external provider, takes the last of two equal keys, and reports problems without a
line. It sends each ``node_config`` to Google Cloud unchecked, where a misspelt field such as ``preemptable`` is dropped
silently, and slices cost three times as much. The API descriptions in Google's client for Python list the known fields.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.errors import BadFileError, FileProblem, FleetError, nearest_names_hint
from tradewind.fleet.yaml_schema import YamlDocument, YamlPath, read_yaml, schema_problems

_APIS: Final = {"compute": ("compute", "v1", "Instance"), "tpu": ("tpu", "v2alpha1", "Node")}
"""Ray's kind of a node → the API, its version, and its name of a node."""
_RAYS_OWN: Final = {
    "compute": {"networkConfig", "sourceInstanceTemplate"},
    "tpu": {"networkInterfaces", "serviceAccounts"},
}
"""Fields that Ray removes or converts before it sends the rest."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
}  # fmt: skip
_WORDS: Final = {"string": "text", "boolean": "true or false", "integer": "a whole number", "number": "a number"}

Schema = Mapping[str, Any]


def node_config_problems(kind: str, config: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Yield path and problem for each error in the ``node_config`` of a node of Ray's ``kind``.

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
            writable = [field for field in fields if not fields[field].get("readOnly")]
            yield (*path, name), f"Google Cloud knows no such field: {nearest_names_hint(name, writable)}"


def _fits(value: Any, kind: str, schema: Schema) -> bool:
    """Whether a value is of this type. The APIs write large numbers as text, and take them as numbers too."""
    if kind == "string" and str(schema.get("format", "")).endswith("int64"):
        return isinstance(value, (int, str)) and not isinstance(value, bool)
    is_flag_for_number = isinstance(value, bool) and kind != "boolean"
    return isinstance(value, _TYPES[kind]) and not is_flag_for_number


_NODE_TYPES: Final = "available_node_types"
_GOOGLES: Final = ("gcp", "external")
"""Providers whose nodes are Google Cloud's; an external one, if it says a project."""


def check_cluster_file(file: Path) -> None:
    """Check a cluster file offline.

    Raises:
        BadFileError: It has problems; the message names each with its line.
        FleetError: Google's client for Python is not installed.
    """
    document = read_yaml(file)
    if problems := [*_outline_problems(document)] or [*_node_problems(document), *_ray_problems(document)]:
        raise BadFileError(document.file, problems)


def _place(path: YamlPath) -> str:
    return ".".join(map(str, path)) or "the file"


def _problem(document: YamlDocument, path: YamlPath, sentence: str) -> FileProblem:
    return FileProblem(document.line_of(path), f"{_place(path)}: {sentence}")


def _outline_problems(document: YamlDocument) -> Iterator[FileProblem]:
    """Yield violations of Ray's schema, and missing sections of an external provider."""
    import ray.autoscaler
    from ray.autoscaler._private.providers import _get_default_config

    schema = Path(ray.autoscaler.__file__).with_name("ray-schema.json")
    yield from schema_problems(document, json.loads(schema.read_text()), _place)
    content = document.value
    if not isinstance(content, dict) or not isinstance(provider := content.get("provider"), dict):
        return
    if "gcp_credentials" in provider:
        yield _problem(
            document, ("provider", "gcp_credentials"),
            "Ray would write them where all users of the machine can read them: leave them out, and use those of "
            "`gcloud auth application-default login`.",
        )  # fmt: skip
    if provider.get("type") == "external":
        for section in sorted(_get_default_config({"type": "gcp"}).keys() - content.keys()):
            sentence = f"section {section!r} is missing: for an external provider Ray fills in nothing."
            yield _problem(document, (), sentence)


def _node_problems(document: YamlDocument) -> Iterator[FileProblem]:
    from ray.autoscaler._private.gcp import config as gcp

    provider = document.value["provider"]
    if provider["type"] not in _GOOGLES or "project_id" not in provider:
        return
    for name, node_type in document.value.get(_NODE_TYPES, {}).items():
        path: YamlPath = (_NODE_TYPES, name, "node_config")
        config = node_type["node_config"]
        try:
            with _only_errors_of(gcp.logger):
                kind = gcp.get_node_type(config).value
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            yield _problem(document, path, f"{error}: mend it.")
            continue
        for where, sentence in node_config_problems(kind, config):
            yield _problem(document, (*path, *where), sentence)


def _ray_problems(document: YamlDocument) -> Iterator[FileProblem]:
    """Yield Ray's own errors, after it has filled in its defaults."""
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from ray.autoscaler._private import util

    content: Mapping[str, Any] = copy.deepcopy(document.value)
    try:
        with _only_errors_of(util.logger):
            util.validate_config(util.prepare_config(dict(content)))
    except ValidationError as error:
        path = tuple(error.absolute_path)
        yield _problem(document, path, f"{error.message}: mend it.")
    except (ValueError, RuntimeError, AssertionError, NotImplementedError, KeyError) as error:
        yield FileProblem(1, f"Ray refuses the file: {error}")


@contextmanager
def _only_errors_of(logger: logging.Logger) -> Iterator[None]:
    """Suppress Ray's warnings about multi-host slices, which these clusters support."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
