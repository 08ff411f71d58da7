"""Commands of engines, and what is refused before one is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.serving import engines
from tradewind.serving.config import ServingConfig
from tradewind.serving.engines import check_engine, engine_command
from tradewind.steps.resources import Cpu, Gpu, TpuSlice


def made(engine: str = "vllm", model: str = "gs://bucket/llama-1b2c3d4e", **fields: Any) -> ServingConfig:
    return ServingConfig(model=model, engine=engine, **fields)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (made("levanter"), "--served-name llama-1b2c3d4e --port 81"),
        (made("levanter", engine_options={"max_seq_len": 2048}), "--max-seq-len 2048"),
        (made(), "--served-model-name llama-1b2c3d4e --host 127.0.0.1 --port 81"),
        (made(served_name="llama"), "--served-model-name llama "),
        (made(model="hub:org/name@" + "a" * 40), "--model /copy --served-model-name name "),
        (made(engine_options={"max_model_len": 2048, "dtype": "float16"}), "--max-model-len 2048 --dtype float16"),
        (made(engine_options={"enforce-eager": True, "log_stats": False}), "--enforce-eager --no-log-stats"),
        (made(engine_options={"override": {"a": 1}}), '--override {"a": 1}'),
        (made(resources=Gpu(2)), "--tensor-parallel-size 2"),
        (made(resources=TpuSlice("v4-8")), "--tensor-parallel-size 4"),
        (made(resources=Gpu(2), engine_options={"tensor_parallel_size": 1}), "--tensor-parallel-size 1"),
        (made("command", command=("serve", "{model}/x", "--at={port}")), "serve /copy/x --at=81"),
    ],
)
def test_engine_command_has_model_port_and_options(config: ServingConfig, words: str) -> None:
    command = engine_command(config, "/copy", 81)
    assert words in " ".join(command.argv) + " "
    assert "api-key" not in " ".join(command.argv)


def test_engines_read_no_hub_and_cache_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("MARIN_PREFIX", "gs://bucket/")
    for engine in ("levanter", "vllm"):
        env = engine_command(made(engine), "/copy", 81).env
        assert env["HF_HUB_OFFLINE"] == "1"
        assert env["JAX_COMPILATION_CACHE_DIR"] == "gs://bucket/compilation-cache"
    assert "VLLM_CPU_KVCACHE_SPACE" in engine_command(made(resources=Cpu(4)), "/copy", 81).env
    assert "VLLM_CPU_KVCACHE_SPACE" not in engine_command(made(resources=Gpu(1)), "/copy", 81).env


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (made(model="hub:org/name@main"), "give hub:ORG/NAME@COMMIT"),
        (made(), "needs the module absent, which this cluster lacks: install"),
    ],
)
def test_engine_refused_before_it_is_waited_for(
    config: ServingConfig, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engines._MODULES, "vllm", (("absent",), "install vllm"))
    with pytest.raises(ValueError, match=message):
        check_engine(config)


def test_engine_that_is_installed_passes() -> None:
    check_engine(made("levanter", engine_options={"max_seqs": 4, "max_seq_len": 512}))
    check_engine(made("command", command=("serve", "{port}")))
