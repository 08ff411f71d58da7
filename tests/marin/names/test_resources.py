"""Resources of a job in Marin's configs, their speed, and TPU slices that Levanter names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tradewind.marin.legacy import modules

R = modules()["marin.resources"]
U = modules()["marin.resources_utils"]
RAY_TPU = modules()["levanter.infra.ray_tpu"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (R.TpuPodConfig("v4-128", 2), "TpuPodConfig(tpu_type='v4-128', slice_count=2, runtime_env={}, "),
        (R.GpuConfig(8, accelerator_type="h100"), "GpuConfig(gpu_count=8, runtime_env={}, accelerator_type='H100', "),
        (R.CpuOnlyConfig(4), "CpuOnlyConfig(num_cpus=4, runtime_env={'env_vars': {'JAX_PLATFORMS': 'cpu'}}, "),
    ],
)
def test_resources_look_as_marins(config: Any, reason: str) -> None:
    assert repr(config) == reason + "device_flops_override=None)"
    assert isinstance(config, R.ResourceConfig)
    assert type(config).__module__ == "marin.resources"


@pytest.mark.parametrize(
    ("config", "kind", "count", "flops"),
    [
        (R.TpuPodConfig("v4-128"), "v4-128", 64, 275e12),
        (R.TpuPodConfig("v5litepod-256", [4, 2]), "v5litepod-256", 1024, 197e12),
        (R.TpuPodConfig("v5p-64"), "v5p-64", 64, 459e12),
        (R.TpuPodConfig("v6e-8", device_flops_override=5.0), "v6e-8", 8, 5.0),
        (R.GpuConfig(8, accelerator_type="H200"), "H200", 8, 989.5e12),
        (R.GpuConfig(2, accelerator_type="a100-80g"), "A100-80G", 2, 312e12),
        (R.CpuOnlyConfig(4, device_flops_override=1e12), None, 1, 1e12),
    ],
)
def test_devices_are_counted_and_their_speed_is_known(config: Any, kind: str | None, count: int, flops: float) -> None:
    assert (config.accelerator_descriptor(), config.total_device_count(), config.device_flops()) == (kind, count, flops)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (R.GpuConfig(1), "No FLOPs data available for accelerator type: None"),
        (R.GpuConfig(1, accelerator_type="L4"), "No FLOPs data available for accelerator type: L4"),
        (R.TpuPodConfig("v6e-8"), "Unknown TPU type: v6e"),
        (R.CpuOnlyConfig(1), "give device_flops_override"),
    ],
)
def test_unknown_device_speed_is_an_error(config: Any, reason: str) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=reason):
        config.device_flops()


@pytest.mark.parametrize("name", ["v4", "v4-", "v4-x", "v4-8-8"])
def test_a_slice_without_a_size_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Invalid TPU name format"):
        U.get_tpu_type_and_chips(name)


def test_arguments_for_ray_hold_what_the_job_needs() -> None:
    assert R.TpuPodConfig("v4-8").as_remote_kwargs() == {
        "num_cpus": 8, "num_gpus": 0, "resources": {}, "runtime_env": {},
    }  # fmt: skip
    gpus = {"num_gpus": 4, "runtime_env": {}}
    assert R.GpuConfig(4).as_remote_kwargs() == gpus
    assert R.GpuConfig(4, accelerator_type="t4").as_remote_kwargs() == {**gpus, "accelerator_type": "T4"}
    assert R.GpuConfig(1, accelerator_type="T4").as_ray_resources().to_resource_dict()["accelerator_type:T4"] == 0.001


def test_environment_variables_are_added() -> None:
    before = R.CpuOnlyConfig(2)
    after = before.with_env_vars({"A": "1"}, B="2")
    assert after.runtime_env == {"env_vars": {"JAX_PLATFORMS": "cpu", "A": "1", "B": "2"}}
    assert before.runtime_env == {"env_vars": {"JAX_PLATFORMS": "cpu"}}
    assert dataclasses.replace(after, runtime_env=before.runtime_env) == before


@pytest.mark.parametrize(
    "expected",
    [
        ("v4-8", 4, 1, 1, 4), ("v4-4096", 2048, 512, 512, 4),
        ("v5litepod-1", 1, 1, 1, 1), ("v5litepod-8", 8, 1, 1, 8),
        ("v5litepod-16", 16, 2, 4, 4), ("v5litepod-256", 256, 32, 64, 4),
        ("v5p-8", 4, 1, 1, 4), ("v5p-12288", 6144, 1536, 1536, 4),
        ("v6e-8", 8, 1, 1, 8), ("v6e-16", 16, 4, 4, 4),
    ],
)  # fmt: skip
def test_slice_has_chips_hosts_machines_and_chips_per_machine(expected: tuple[str, int, int, int, int]) -> None:
    found = RAY_TPU.get_tpu_config(expected[0])
    assert isinstance(found, RAY_TPU.TPUConfig) and dataclasses.astuple(found) == expected


def test_slice_types_are_unique_and_others_unknown() -> None:
    listed = [config.name for config in RAY_TPU.TPU_CONFIGS]
    assert len(set(listed)) == len(listed) == 39
    with pytest.raises(ValueError, match="Unknown TPU type: v4-12"):
        RAY_TPU.get_tpu_config("v4-12")
