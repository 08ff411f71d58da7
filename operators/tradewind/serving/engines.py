"""How each engine is started on a worker, and what must be there for it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.plans.prefixes import cluster_prefix
from tradewind.serving.config import ServingConfig
from tradewind.serving.weights import check_model
from tradewind.steps.resources import Cpu, Gpu, TpuSlice

_MODULES: Final = {
    "levanter": (
        ("levanter", "aiohttp"),
        "install airflow-provider-tradewind[train], or take the image tradewind_cluster",
    ),
    "vllm": (("vllm",), "install airflow-provider-tradewind[vllm], or take the image tradewind_vllm"),
}


@dataclass(frozen=True)
class EngineCommand:
    """The process of an engine.

    Attributes:
        argv: The program and its arguments.
        env: Variables that it needs besides its worker's.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


def engine_command(config: ServingConfig, model_dir: str, port: int) -> EngineCommand:
    """Return the command of the engine that serves the model in a folder of this worker at a port of 127.0.0.1."""
    commands: dict[str, Callable[[ServingConfig, str, int], EngineCommand]] = {
        "levanter": _levanter,
        "vllm": _vllm,
        "command": _own,
    }
    return commands[config.engine](config, model_dir, port)


def check_engine(config: ServingConfig) -> None:
    """Refuse a model of no commit, and an engine whose modules this environment lacks.

    Raises:
        ValueError: The message names the model or the module.
    """
    check_model(config.model)
    modules, remedy = _MODULES.get(config.engine, ((), ""))
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"engine={config.engine!r} needs the module {module}, which this cluster lacks: {remedy}.")


def needs_model(config: ServingConfig) -> bool:
    """Whether the engine reads the model's folder; a command may do without."""
    return config.engine != "command" or any("{model}" in word for word in config.command)


def _levanter(config: ServingConfig, model_dir: str, port: int) -> EngineCommand:
    arguments = ["--model", model_dir, "--served-name", config.name_in_api, "--port", str(port)]
    for name, value in config.engine_options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    argv = (sys.executable, "-m", "tradewind.serving.levanter_server", *arguments)
    return EngineCommand(argv, {"HF_HUB_OFFLINE": "1", **_compilations()})


def _vllm(config: ServingConfig, model_dir: str, port: int) -> EngineCommand:
    given = {name.replace("-", "_"): value for name, value in config.engine_options.items()}
    chips = _chips(config.resources)
    options = {"tensor_parallel_size": chips, **given} if chips > 1 else given
    ours = {"model": model_dir, "served_model_name": config.name_in_api, "host": "127.0.0.1", "port": port}
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in {**options, **ours}.items():
        argv += _argument(name, value)
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **_compilations()}
    if isinstance(config.resources, Cpu):  # else it takes all memory, and binds itself to cores that it was not given
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return EngineCommand(tuple(argv), env)


def _argument(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, value if isinstance(value, str) else json.dumps(value)]


def _chips(resources: Cpu | Gpu | TpuSlice) -> int:
    if isinstance(resources, TpuSlice):
        return slice_type(resources.slice_type).chips_per_host
    return int(resources.count) if isinstance(resources, Gpu) else 1


def _compilations() -> dict[str, str]:
    """Return the variable of JAX's compilation cache, below the cluster's prefix, where other workers find it."""
    prefix = cluster_prefix()
    if prefix is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    return {"JAX_COMPILATION_CACHE_DIR": f"{prefix.rstrip('/')}/compilation-cache"}


def _own(config: ServingConfig, model_dir: str, port: int) -> EngineCommand:
    program, *words = (word.replace("{port}", str(port)).replace("{model}", model_dir) for word in config.command)
    return EngineCommand((sys.executable if program == "python" else program, *words))
