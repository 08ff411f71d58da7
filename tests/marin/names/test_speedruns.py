"""Cost of a speedrun, and the inputs of its results step."""

from __future__ import annotations

import dataclasses
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tradewind.marin.legacy import modules

S = modules()["marin.speedrun.speedrun"]
LLAMA = modules()["levanter.models.llama"].LlamaConfig(hidden_dim=512, num_heads=8, num_kv_heads=8, seq_len=1024)


@dataclasses.dataclass(frozen=True)
class SimpleTrainConfig:
    resources: Any
    train_batch_size: Any
    num_train_steps: int


@pytest.fixture
def users_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the two modules of a user's checkout that a speedrun reads."""
    for name, values in (
        ("experiments", {}),
        ("experiments.llama", {"llama3_tokenizer_vocab_size": 128256}),
        ("experiments.speedrun", {}),
        ("experiments.speedrun.prebuilt_caches", {"fineweb_edu_subcache_10B": "his own step"}),
    ):
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    yield


def speedrun(batch: Any = 128, **others: Any) -> Any:
    training = SimpleTrainConfig(modules()["marin.resources"].TpuPodConfig("v4-128"), batch, 100)
    author = S.Author(name="A", affiliation="B")
    return S.SpeedrunConfig(author=author, description="c", model_config=LLAMA, train_config=training, **others)


@pytest.mark.usefixtures("users_files")
def test_a_speedrun_costs_three_forward_passes_of_every_token() -> None:
    assert speedrun().compute_model_flops() == LLAMA.flops_per_token(128256) * 3 * 128 * 1024 * 100
    assert (speedrun().num_devices, speedrun().device_flops) == (64, 275e12)
    part = modules()["levanter.schedule"].ScheduleStep
    grown = speedrun([part(0, 64), part(50, 192)])
    assert grown.compute_model_flops() == speedrun(128).compute_model_flops()


@pytest.mark.usefixtures("users_files")
def test_the_data_set_is_the_users_own_unless_another_is_given() -> None:
    assert speedrun().tokenized_dataset == "his own step"
    assert speedrun(tokenized_dataset="other").tokenized_dataset == "other"


@pytest.mark.usefixtures("users_files")
def test_speedrun_config_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        speedrun().print_run_info()
    assert "64 devices of 2.75e+14 FLOP/s" in caplog.text
    assert '"tpu_type": "v4-128"' in caplog.text
    assert "runtime_env" not in caplog.text
