"""The version recipe reproduces each vector that Marin's June 2026 executor recorded."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import hashlib
from enum import Enum
from typing import Any

import pytest

from tests.steps.vectors import GraphBuilder, load_vectors
from tradewind.steps import Recipe, resolve

VECTORS = {vector["id"]: vector for vector in load_vectors()}
REFUSED = {
    "builtin_callable": "config.f is the function len",
    "builtin_callable_det": "config.f is the function len",
    "versioned_set": "config.d is a set",
    "versioned_containing_input": r"config.d.\[1\] holds InputName inside versioned",
}
RAY_ERA = {key for key, vector in VECTORS.items() if "expected_ray_era" in vector}
ERRORS = {key for key, vector in VECTORS.items() if "expected_error" in vector}


def as_recorded(value: Any) -> Any:
    """Return an instantiated config in the notation of the vectors."""
    if isinstance(value, float) and type(value) is not float:
        return float(value)
    if value is None or isinstance(value, (bool, int, float, str)) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return as_recorded(value.value)
    if isinstance(value, dict):
        return {key: as_recorded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_recorded(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_recorded(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, datetime.timedelta):
        return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    return str(value)


@pytest.mark.parametrize("vector_id", sorted(VECTORS.keys() - REFUSED.keys() - ERRORS))
def test_vector_resolves_as_recorded(vector_id: str) -> None:
    vector = VECTORS[vector_id]
    graph = GraphBuilder(vector)
    experiment = resolve([graph.steps[key] for key in vector["roots"]], vector["prefix"])
    key_of = {id(step): key for key, step in graph.steps.items()}

    assert [key_of[id(resolved.step)] for resolved in experiment.steps] == vector["step_order"]
    assert [key_of[id(step.step)] for step in experiment.steps if step.is_blocking] == vector["to_run"]
    for key, expected in vector["expected"].items():
        resolved = experiment.of(graph.steps[key])
        assert resolved.version_json == expected["version_str"]
        assert resolved.hash == expected["hash"]
        assert hashlib.md5(resolved.version_json.encode()).hexdigest().startswith(resolved.hash)
        assert key_of[id(resolved.step)] == expected["canonical"]
        assert [key_of[id(step.step)] for step in resolved.dependencies] == expected["dependencies"]
        assert resolved.is_blocking is not expected["is_pseudo_dep"]
        if expected["canonical"] == key:
            assert resolved.output_path == expected["output_path"]
            if "instantiated_config" in expected:
                assert as_recorded(resolved.config) == expected["instantiated_config"]


@pytest.mark.parametrize("vector_id", sorted(RAY_ERA - REFUSED.keys()))
def test_vector_resolves_as_marin_did_in_november_2025(vector_id: str) -> None:
    vector = VECTORS[vector_id]
    graph = GraphBuilder(vector, Recipe.NOVEMBER_2025)
    experiment = resolve([graph.steps[key] for key in vector["roots"]], vector["prefix"])
    for key, expected in vector["expected_ray_era"].items():
        resolved = experiment.of(graph.steps[key])
        assert (resolved.version_json, resolved.hash) == (expected["version_str"], expected["hash"])


@pytest.mark.parametrize("recipe", Recipe)
@pytest.mark.parametrize("vector_id", sorted(REFUSED))
def test_values_without_a_stable_identity_are_refused(vector_id: str, recipe: Recipe) -> None:
    vector = VECTORS[vector_id]
    graph = GraphBuilder(vector, recipe)
    with pytest.raises(ValueError, match=REFUSED[vector_id]) as caught:
        resolve([graph.steps[key] for key in vector["roots"]], vector["prefix"])
    assert f"Step {vector['steps'][-1]['name']!r}" in str(caught.value)


@pytest.mark.parametrize("vector_id", sorted(ERRORS))
def test_errors_are_those_recorded(vector_id: str) -> None:
    vector = VECTORS[vector_id]
    expected = vector["expected_error"]
    with pytest.raises(getattr(builtins, expected["type"])) as caught:
        graph = GraphBuilder(vector)
        resolve([graph.steps[key] for key in vector["roots"]], vector["prefix"])
    assert expected["message"] in str(caught.value)
