"""A cluster file of Ray's launcher, checked before anything is started: by Ray's own schema, and where that is blind.

Ray fills in no defaults for an external provider, reads no ``node_config``, and of two keys with one name takes the
last. It says what is wrong without a line. All of that is made up for here, for files that anybody wrote.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.configs.node_config import node_config_problems
from tradewind.fleet.errors import BadFileError, FileProblem
from tradewind.fleet.file.schema import schema_problems
from tradewind.fleet.file.yaml_document import YamlDocument, YamlPath, read_yaml

_NODE_TYPES: Final = "available_node_types"
_GOOGLES: Final = ("gcp", "external")
"""Providers whose nodes are Google Cloud's; an external one, if it says a project."""


def check_cluster_file(file: Path) -> None:
    """Check a cluster file without asking anybody.

    Raises:
        BadFileError: Something is wrong with it; every problem is named with its line.
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
    """What Ray's schema has against it, and what an external provider lacks."""
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
    """What Ray itself says when it has filled in its defaults."""
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
    """Ray warns of every slice of several hosts, which is what these clusters are for."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
