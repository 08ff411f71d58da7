"""Values that a recipe reads from a config, whatever its class."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest

from tradewind.marin.names.resources import CpuOnlyConfig, TpuPodConfig
from tradewind.recipes.lm.config import LevanterTrainConfig, output_path_of, run_id_of, set_variables, variables_of


@dataclass
class Trainer:
    id: str | None = None


@dataclass
class Given:
    trainer: Trainer = field(default_factory=Trainer)


@dataclass
class OfMarins:
    """Fields of Marin's own class."""

    train_config: Given = field(default_factory=Given)
    resources: Any = field(default_factory=CpuOnlyConfig)
    output_path: str | None = "gs://b/checkpoints/llama-1a2b3c"
    env_vars: dict[str, str] | None = None


@pytest.fixture(autouse=True)
def no_run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUN_ID", raising=False)


def test_run_id_follows_marin_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_id_of(OfMarins()) == "llama-1a2b3c"
    monkeypatch.setenv("RUN_ID", "of-the-machine")
    assert run_id_of(OfMarins()) == "of-the-machine"
    assert run_id_of(OfMarins(env_vars={"RUN_ID": "of-the-step"})) == "of-the-step"
    assert run_id_of(OfMarins(Given(Trainer("own")), env_vars={"RUN_ID": "of-the-step"})) == "own"


def test_variables_come_from_config_and_resources() -> None:
    pod = TpuPodConfig("v4-8").with_env_vars({"A": "1", "B": "1"})
    assert variables_of(OfMarins(resources=pod, env_vars={"B": "2", "C": 3})) == {"A": "1", "B": "2", "C": "3"}  # type: ignore[dict-item]
    assert variables_of(OfMarins()) == {}, "what a process computes on is the step's"
    assert variables_of(LevanterTrainConfig(Given(), "out", env_vars={"A": "1"})) == {"A": "1"}


def test_variables_set_after_jax_import_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("JAX_SOMETHING", "LIBTPU_SOMETHING"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    config = LevanterTrainConfig(Given(), "out", env_vars={"JAX_SOMETHING": "1", "LIBTPU_SOMETHING": "1"})
    set_variables(config)
    assert (os.environ["JAX_SOMETHING"], os.environ["LIBTPU_SOMETHING"]) == ("1", "1")
    assert capsys.readouterr().out.startswith("JAX_SOMETHING of env_vars come too late")
    set_variables(config)
    assert capsys.readouterr().out == ""


def test_invalid_output_path_and_variables_refused() -> None:
    with pytest.raises(ValueError, match=r"output_path is missing: give this_output_path\(\)"):
        output_path_of(replace(OfMarins(), output_path=None))
    with pytest.raises(ValueError, match="output_path=''"):
        LevanterTrainConfig(Given(), "")
    with pytest.raises(ValueError, match="env_vars='A=1': give a mapping of variables"):
        LevanterTrainConfig(Given(), "out", env_vars="A=1")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["../../elsewhere", "a/b", "..", "a\x1b[2J", "x" * 256])
def test_run_id_outside_output_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"train_config\.trainer\.id=.*: give a name"):
        run_id_of(OfMarins(Given(Trainer(given))))
