"""A training task in a hand-written DAG behaves as any step."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG

from tradewind import run_param, this_output_path, versioned
from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError
from tradewind.operators.tpu_pod_train import TpuPodTrainOperator
from tradewind.recipes.train_lm import LmTrainConfig
from tradewind.steps import RunValues, TpuSlice, resolve
from tradewind.tasks.context import DAG_TAG
from tradewind.tasks.errors import BadInputError

CONFIG = LmTrainConfig(
    "/tokens",
    "/tokenizer",
    this_output_path(),
    "tiny",
    num_train_steps=60,
    learning_rate=versioned(run_param("lr")),  # type: ignore[arg-type]
    batch_size=8,
    seq_len=128,
)


def operator(**options: Any) -> TpuPodTrainOperator:
    fields: dict[str, Any] = {"name": "runs/llama", "config": CONFIG, "slice_type": "v4-16", **options}
    with DAG("by_hand", params={"slice": "v4-8"}):
        return TpuPodTrainOperator(task_id="train", **fields)


def test_tpu_pod_step_has_slices_budgets_and_checkpoints() -> None:
    train = operator(num_slices=[1, 2], max_preemptions=7, max_failures=0, secrets={"KEY": "env:KEY"})
    assert train.step.resources == TpuSlice("v4-16", (2, 1), max_preemptions=7, max_failures=0)
    assert "checkpoints/**" in train.step.resumable
    assert train.step.secrets == {"KEY": "env:KEY"}
    assert operator().step.resources == TpuSlice("v4-16")
    assert operator().dag.tags == {DAG_TAG}


def test_version_is_independent_of_slices_and_limits() -> None:
    values = RunValues(params={"lr": 0.01})
    steps = [operator().step, operator(slice_type="v4-8", max_failures=0).step]
    versions = {resolve([step], "/prefix", values).of(step).hash for step in steps}
    assert len(versions) == 1
    other = replace(operator().step, config=replace(CONFIG, learning_rate=versioned(0.5)))
    assert resolve([other], "/prefix").of(other).hash not in versions


def test_templates_set_slices_cluster_and_prefix() -> None:
    train = operator(slice_type="{{ params.slice }}", ray_conn_id="ray_{{ params.slice }}", prefix="/{{ ds }}")
    train.render_template_fields({"params": {"slice": "v4-8"}, "ds": "2026-01-01"})  # type: ignore[typeddict-item]
    assert train.step.resources == TpuSlice("v4-8")
    assert (train.settings.cluster, train.settings.prefix) == ("ray_v4-8", "/2026-01-01")


def test_unknown_slice_type_is_refused_at_parse_or_render() -> None:
    with pytest.raises(UnknownSliceTypeError, match="v4-17"):
        operator(slice_type="v4-17")
    with pytest.raises(BadInputError, match="v4-17"):
        operator(slice_type="{{ x }}").render_template_fields({"x": "v4-17"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ValueError, match="num_slices"):
        operator(num_slices=[])


@pytest.mark.slow
def test_import_loads_no_heavy_library() -> None:
    code = (
        "import sys, tradewind.operators.tpu_pod_train; "
        "print({'ray', 'jax', 'levanter', 'numpy'} & {name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
