"""The version recipe reproduces each vector that Marin's June 2026 executor recorded."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import hashlib
import json
from enum import Enum
from typing import Any

import pytest

from tests.steps.vectors import GraphBuilder, load_vectors
from tradewind.steps import Recipe, ResolvedExperiment, resolve

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

    def data(value: Any) -> Any:
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, datetime.timedelta):
            return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return str(value)

    return json.loads(json.dumps(value, default=data))


def resolved(vector: dict[str, Any], recipe: Recipe = Recipe.JUNE_2026) -> tuple[GraphBuilder, ResolvedExperiment]:
    graph = GraphBuilder(vector, recipe)
    return graph, resolve([graph.steps[key] for key in vector["roots"]], vector["prefix"])


@pytest.mark.parametrize("vector_id", sorted(VECTORS.keys() - REFUSED.keys() - ERRORS))
def test_vector_resolves_as_recorded(vector_id: str) -> None:
    vector = VECTORS[vector_id]
    graph, experiment = resolved(vector)
    key_of = {id(step): key for key, step in graph.steps.items()}

    assert [key_of[id(step.step)] for step in experiment.steps] == vector["step_order"]
    assert [key_of[id(step.step)] for step in experiment.steps if step.is_blocking] == vector["to_run"]
    for key, expected in vector["expected"].items():
        step = experiment.of(graph.steps[key])
        assert step.version_json == expected["version_str"]
        assert step.hash == expected["hash"]
        assert hashlib.md5(step.version_json.encode()).hexdigest().startswith(step.hash)
        assert key_of[id(step.step)] == expected["canonical"]
        assert [key_of[id(each.step)] for each in step.dependencies] == expected["dependencies"]
        assert step.is_blocking is not expected["is_pseudo_dep"]
        if expected["canonical"] == key:
            assert step.output_path == expected["output_path"]
            if "instantiated_config" in expected:
                assert as_recorded(step.config) == expected["instantiated_config"]


@pytest.mark.parametrize("vector_id", sorted(RAY_ERA - REFUSED.keys()))
def test_vector_resolves_as_marin_did_in_november_2025(vector_id: str) -> None:
    graph, experiment = resolved(VECTORS[vector_id], Recipe.NOVEMBER_2025)
    for key, expected in VECTORS[vector_id]["expected_ray_era"].items():
        step = experiment.of(graph.steps[key])
        assert (step.version_json, step.hash) == (expected["version_str"], expected["hash"])


@pytest.mark.parametrize("recipe", Recipe)
@pytest.mark.parametrize("vector_id", sorted(REFUSED))
def test_values_without_a_stable_identity_are_refused(vector_id: str, recipe: Recipe) -> None:
    with pytest.raises(ValueError, match=REFUSED[vector_id]) as caught:
        resolved(VECTORS[vector_id], recipe)
    assert f"Step {VECTORS[vector_id]['steps'][-1]['name']!r}" in str(caught.value)


@pytest.mark.parametrize("vector_id", sorted(ERRORS))
def test_errors_are_those_recorded(vector_id: str) -> None:
    expected = VECTORS[vector_id]["expected_error"]
    with pytest.raises(getattr(builtins, expected["type"])) as caught:
        resolved(VECTORS[vector_id])
    assert expected["message"] in str(caught.value)
