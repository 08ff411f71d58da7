"""Devices of a Marin config place the step and do not count in its version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, run_text, write_checkout
from tradewind.marin import marin_experiment
from tradewind.plans.decisions import make_plan
from tradewind.plans.table import plan_table
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import Cpu, ExecutorStep, Gpu, ResolvedStep, TpuSlice, resolve

FILE = """
from dataclasses import dataclass, replace
import ray
from marin.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig
from marin.training.training import TrainLmOnPodConfig, run_levanter_train_lm
from tradewind import Cpu
from levanter.main.train_lm import TrainLmConfig

@ray.remote(num_cpus=2)
def own(config): ...

def step(name, resources):
    config = TrainLmOnPodConfig(train_config=TrainLmConfig(), resources=resources, output_path=this_output_path())
    return ExecutorStep(name, run_levanter_train_lm, config)

pod = step("pod", TpuPodConfig("v4-128"))
"""


def steps_of(root: Path, text: str) -> dict[str, ResolvedStep]:
    return {step.name: step for step in resolve(run_text(root, FILE + text).calls[0].steps, "gs://b").steps}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "placed"),
    [
        ('TpuPodConfig("v4-128")', TpuSlice("v4-128")),
        ('TpuPodConfig(tpu_type=versioned("v6e-8"), slice_count=2)', TpuSlice("v6e-8", 2)),
        ('TpuPodConfig("v4-8", slice_count=[1, 4])', TpuSlice("v4-8", (4, 1))),
        ('GpuConfig(gpu_count=8, accelerator_type="h100")', Gpu(8, "H100")),
        ("GpuConfig()", Gpu(1)),
        ("CpuOnlyConfig(num_cpus=0.5)", Cpu(0.5)),
        ("CpuOnlyConfig()", Cpu()),
    ],
)
def test_marins_training_runs_on_the_devices_of_its_config(tmp_path: Path, written: str, placed: Any) -> None:
    step = steps_of(tmp_path, f"executor_main([step('s', {written})])\n")["s"]
    assert step.step.resources == placed
    assert "resources" not in step.version["config"], "except versioned values in them"
    spec = step_spec(step, CodeFolder(tmp_path))
    assert spec.load_resources() == placed and "checkpoints/**" in spec.resumable


def test_only_resources_marin_training_requests_place_a_step(tmp_path: Path) -> None:
    steps = steps_of(
        tmp_path,
        """
executor_main([
    pod,
    replace(pod, name="smaller", config=replace(pod.config, resources=TpuPodConfig("v4-8"))),
    replace(pod, name="given", resources=Cpu(3)),
    replace(pod, name="own", fn=own),
    ExecutorStep("given first", run_levanter_train_lm, pod.config, resources=Cpu(4)),
])
""",
    )
    assert {name: step.step.resources for name, step in steps.items()} == {
        "pod": TpuSlice("v4-128"),
        "smaller": TpuSlice("v4-8"),
        "given": Cpu(3),
        "own": None,
        "given first": Cpu(4),
    }
    assert step_spec(steps["own"], CodeFolder(tmp_path)).ray_task == {"num_cpus": 2}


def test_placement_is_in_plan_but_not_in_step_version(tmp_path: Path) -> None:
    text = "executor_main([pod, replace(pod, name='here', resources=Cpu(2)), ExecutorStep('plain', own, {})])\n"
    steps = list(steps_of(tmp_path, text).values())
    assert steps[0].version["config"] == steps[1].version["config"]
    tasks = [(step.name, step) for step in steps]
    plan = make_plan("gs://b", tasks, {step.name for step in steps}, {})
    assert [step.place for step in plan.steps] == ["v4-128", "2 CPUs", None]
    head, first, *_ = plan_table(plan).splitlines()
    assert "runs on" in head and " v4-128 " in first


def test_a_dag_has_the_placed_steps(tmp_path: Path) -> None:
    write_checkout(tmp_path, a=EXECUTOR + FILE + "executor_main([pod])\n")
    (dag,) = marin_experiment(tmp_path / "experiments/a.py", pools={"v4-128": "large"})
    assert dag.get_task("pod").pool == "large"
    step: ExecutorStep = dag.get_task("pod").step  # type: ignore[attr-defined]
    assert step.resources == TpuSlice("v4-128")
