"""References to cluster values: the called function, its arguments, and the limits of decorators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import refusal, run_text
from tradewind.steps import (
    AttributeReference,
    CallReference,
    ClusterValue,
    ExecutorStep,
    ModuleReference,
    cluster_reference,
)

HEAD = "import dataclasses\nimport ray\nfrom heavy.library import Config, jit\n"
LLAMA = "from levanter.models.llama import LlamaConfig\nfrom transformers import AutoConfig\n"
MADE = "def plain(x): ...\n@jit\ndef done(x): ...\n@jit\n@jit\ndef twice(x): ...\n@ray.remote\ndef far(x): ...\n"


def reference_to(root: Path, text: str, value: str) -> Any:
    """Return the reference by which a cluster gets ``value``, an expression of a file."""
    (step,) = run_text(root, f"{HEAD}{text}executor_main([ExecutorStep('s', None, {value})])\n").calls[0].steps
    assert isinstance(step, ExecutorStep)
    return written(step.config)


def written(value: Any) -> Any:
    """Return a reference as nested tuples."""
    if not isinstance(value, ClusterValue):
        return getattr(getattr(value, "function", value), "__name__", value)
    found = cluster_reference(value)
    if isinstance(found, ModuleReference):
        return f"{found.module}:{found.path}"
    if isinstance(found, AttributeReference):
        return (written(found.of), f".{found.attribute}")
    assert isinstance(found, CallReference)
    arguments = [*map(written, found.args), *((name, written(given)) for name, given in found.kwargs.items())]
    return (written(found.of), arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Config(1, a=2)", ("heavy.library:Config", [1, ("a", 2)])),
        ("Config.load('x').inner", (("heavy.library:Config.load", ["x"]), ".inner")),
        ("Config(jit(3))", ("heavy.library:Config", [("heavy.library:jit", [3])])),
        ("Config(twice)", ("heavy.library:Config", ["experiments.a:twice"])),
        ("jit(Config)", ("heavy.library:jit", ["heavy.library:Config"])),
        ("jit(plain)", ("heavy.library:jit", ["plain"])),
        ("Config(plain)", ("heavy.library:Config", ["plain"])),
        ("Config(far)", ("heavy.library:Config", ["far"])),
        ("Config(Path)", ("heavy.library:Config", ["Path"])),
        ("jit(jit(plain))", ("heavy.library:jit", [("heavy.library:jit", ["plain"])])),
        ("done", "experiments.a:done"),
        ("twice", "experiments.a:twice"),
        ("Config(done)", ("heavy.library:Config", ["experiments.a:done"])),
        ("dataclasses.replace(Config(1), a=2)", ("dataclasses:replace", [("heavy.library:Config", [1]), ("a", 2)])),
    ],
)
def test_reference_repeats_how_the_file_made_the_value(tmp_path: Path, value: str, expected: Any) -> None:
    assert reference_to(tmp_path, f"from pathlib import Path\n{MADE}", value) == expected


def test_model_config_from_hub_is_made_on_the_cluster(tmp_path: Path) -> None:
    value = "dataclasses.replace(LlamaConfig.from_hf_config(AutoConfig.from_pretrained('org/llama')), seq_len=512)"
    of_hub = ("transformers:AutoConfig.from_pretrained", ["org/llama"])
    made = ("levanter.models.llama:LlamaConfig.from_hf_config", [of_hub])
    assert reference_to(tmp_path, LLAMA, value) == ("dataclasses:replace", [made, ("seq_len", 512)])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = str(LlamaConfig.from_hf_config(3).seq_len)", "it needs the text of levanter.models.llama.LlamaConfig"),
        ("class Own(LlamaConfig): ...\nOwn.from_hf_config(3)", "from_hf_config needs the real library"),
    ],
)
def test_model_config_from_hub_is_unknown_here(tmp_path: Path, text: str, reason: str) -> None:
    refusal(tmp_path, f"{HEAD}{LLAMA}{text}\nexecutor_main([])\n", f".*{reason}")
