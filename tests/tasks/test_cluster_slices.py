"""A task refuses a step on a slice type that its cluster lacks, before it submits a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tradewind.hooks.ray import RayHook
from tradewind.ray_jobs.errors import BadAddressError
from tradewind.steps import Cpu, ExecutorStep, ResolvedStep, Resources, TpuSlice, resolve
from tradewind.tasks.cluster_slices import BadRequestError, refuse_missing_slice_types


def connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, slice_types: Any) -> None:
    described = {"conn_type": "ray", "host": "http://127.0.0.1:1", "extra": {"slice_types": slice_types}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(described))


def step(name: str, resources: Resources | None, cluster: str = "small") -> ResolvedStep:
    step = ExecutorStep(name, None, {"name": name}, resources=resources, cluster=cluster)
    return resolve([step], "/prefix").of(step)


def check(*steps: ResolvedStep) -> None:
    refuse_missing_slice_types(steps, lambda each: each.cluster or "")


@pytest.mark.parametrize("given", ["v4-8, v4-16", ["v4-8", "v4-16"], "v4-8,v4-16,", ["v4-8", " v4-16 "]])
def test_connection_names_slice_types_as_list_or_text(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    connect(monkeypatch, "small", given)
    assert RayHook("small").slice_types() == ("v4-8", "v4-16")


def test_missing_slices_error_names_every_step_and_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "small", ["v4-8", "v4-16"])
    connect(monkeypatch, "other", "v6e-8")
    with pytest.raises(BadRequestError) as caught:
        check(step("fine", TpuSlice("v4-8")), step("train", TpuSlice("v4-32")), step("eval", TpuSlice("v4-8"), "other"))
    first, second = str(caught.value).splitlines()
    assert first.startswith(
        "Step 'train': resources.slice_type is 'v4-32', but cluster 'small' has only v4-8, v4-16. Use one of these"
    )
    assert second.startswith("Step 'eval': resources.slice_type is 'v4-8', but cluster 'other' has only v6e-8. Use")


@pytest.mark.parametrize("given", [None, "", []])
def test_cluster_without_declared_slices_accepts_any_slice(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    connect(monkeypatch, "small", given)
    check(step("train", TpuSlice("v4-32")), step("missing", TpuSlice("v4-32"), "no_such_connection"))


def test_connection_without_steps_on_slices_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "small", ["v4-17"])
    check(step("clean", Cpu()), step("plain", None))


@pytest.mark.parametrize("given", ["v4-8, v4-17", ["v4-17"], 8, {"v4-17": 1}])
def test_unknown_slice_type_on_connection_is_refused(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    connect(monkeypatch, "small", given)
    with pytest.raises(BadAddressError, match=r"Connection 'small': 'slice_types' is"):
        check(step("train", TpuSlice("v4-8")))
