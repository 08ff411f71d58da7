"""DAG file side: light configs, encoded as those of a step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tradewind.marin.legacy.classes import builder
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import Encoder

NO_CODE = CodeFolder(Path("/nonexistent"))
REQUIRED = {"str": "a/b", "int": 3, "float": 0.5, "bool": True, "list[str]": ["a/b"], "Optional[int]": None}
"""Values for fields without a default, by their annotations."""


def written(value: Any) -> Any:
    """Return ``value`` as the cluster receives it."""
    return json.loads(json.dumps(Encoder(NO_CODE).encode(value, "config")))


def plain(name: str) -> Any:
    """Return a config of the class with its defaults, or None if a field requires a complex value."""
    made = builder().find(name)
    required = {
        spec.name: REQUIRED.get(str(spec.type))
        for spec in dataclasses.fields(made)
        if spec.init and spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
    }
    try:
        return None if None in required.values() else made(**required)
    except (TypeError, ValueError, AttributeError):
        return None


def varied(config: Any, unchanged: frozenset[str]) -> Any:
    """Return ``config`` with other values in all fields that accept them, except those in ``unchanged``."""
    for spec in dataclasses.fields(config):
        if spec.name in unchanged or not spec.init:
            continue
        try:
            config = dataclasses.replace(config, **{spec.name: _other(getattr(config, spec.name), unchanged)})
        except (TypeError, ValueError, AssertionError):
            continue
    return config


def _other(value: Any, unchanged: frozenset[str]) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 1
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return varied(value, unchanged)
    if isinstance(value, list | tuple):
        return type(value)(_other(item, unchanged) for item in value)
    return value
