"""How each engine is started on a worker, and what must be there for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.serving.config import ServingConfig


@dataclass(frozen=True)
class EngineCommand:
    """The process of an engine.

    Attributes:
        argv: The program and its arguments.
        env: Variables that it needs besides its worker's.
        health_path: Path that answers with 200 once the engine serves.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    health_path: str = "/health"


def engine_command(config: ServingConfig, model_dir: str, port: int) -> EngineCommand:
    """Return the command of the engine that serves the model in a folder at a port of 127.0.0.1."""
    if config.engine == "command":
        named = {"{model}": model_dir, "{port}": str(port)}
        return EngineCommand(tuple(_filled(word, named) for word in config.command))
    raise NotImplementedError(config.engine)


def check_engine(config: ServingConfig) -> None:
    """Refuse an engine whose program this environment lacks.

    Raises:
        ValueError: A module is missing; the message names it.
    """


def needs_model(config: ServingConfig) -> bool:
    """Whether the engine reads the model's folder; a command may do without."""
    return config.engine != "command" or any("{model}" in word for word in config.command)


def _filled(word: str, named: Mapping[str, str]) -> str:
    for mark, value in named.items():
        word = word.replace(mark, value)
    return word
