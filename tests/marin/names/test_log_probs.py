"""Marin's steps of log probabilities: names, places, and what their functions are given on the cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.marin.checkouts import run_text
from tradewind.evaluation.log_probs import LogProbsConfig, marins_config
from tradewind.evaluation.visualize import VisualizeConfig, marins_pages
from tradewind.marin.defaults import default_lm_log_probs, default_tokenize, mixture_for_evaluation
from tradewind.marin.legacy import modules
from tradewind.marin.names.resources import CpuOnlyConfig, TpuPodConfig
from tradewind.steps import Cpu, ExecutorStep, TpuSlice, resolve

LLAMA = modules()["levanter.models.llama"].LlamaConfig()
TRAINED = ExecutorStep("checkpoints/run", None, None)
FILE = """
from marin.evaluation.log_probs import default_lm_log_probs
from marin.evaluation.visualize import VizLmConfig, visualize_lm_log_probs
from marin.processing.tokenize.data_configs import mixture_for_evaluation
from marin.resources import TpuPodConfig
from levanter.models.llama import LlamaConfig
from marin.processing.tokenize import TokenizeConfig, tokenize
tokens = ExecutorStep("wiki", tokenize, TokenizeConfig([], ["gs://b/wiki"], this_output_path(), "gpt2"))
data = mixture_for_evaluation({"wiki": tokens})
path = "gs://b/checkpoints/run/checkpoints/step-9"
probs = default_lm_log_probs(path, LlamaConfig(), data, TpuPodConfig("v5p-8"), checkpoint_is_hf=False)
pages = ExecutorStep("analysis/viz", visualize_lm_log_probs, VizLmConfig(path, LlamaConfig(), data))
executor_main([probs, pages])
"""


def step(checkpoint: Any, resources: Any = None, **given: Any) -> ExecutorStep:
    data = mixture_for_evaluation({"wiki": default_tokenize("wiki", "gs://b/wiki", "gpt2", is_validation=True)})
    return default_lm_log_probs(checkpoint, LLAMA, data, resources, checkpoint_is_hf=True, **given)


@pytest.mark.parametrize(
    ("checkpoint", "given", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", {}, "Meta-Llama-3.1-8B"),
        ("gs://b/checkpoints/run-1a/checkpoints/step-730000/", {}, "run-1a-730000"),
        ("gs://b/gcsfuse_mount/models/org--model", {}, "org--model"),
        (TRAINED.as_input_name() / "checkpoints/step-99", {}, "run-99"),
        (TRAINED.as_input_name(), {}, "run"),
        ("gs://b/any", {"name": "mine"}, "mine"),
    ],
)
def test_a_step_is_called_by_its_checkpoint(checkpoint: Any, given: dict[str, Any], name: str) -> None:
    assert step(checkpoint, **given).name == f"analysis/log_probs/{name}"


@pytest.mark.parametrize("checkpoint", ["gs://b/run/latest", "step-3", TRAINED.as_input_name() / "hf"])
def test_a_checkpoint_without_a_name_is_refused(checkpoint: Any) -> None:
    with pytest.raises(ValueError, match="does not end with RUN/checkpoints/step-N, so it has no name: give name="):
        step(checkpoint)


@pytest.mark.parametrize(
    ("resources", "placed"),
    [
        (TpuPodConfig("v5p-8"), TpuSlice("v5p-8")),
        (CpuOnlyConfig(0.5), Cpu(0.5)),
        (SimpleNamespace(num_tpu=4, tpu_type="TPU-v6e-8"), TpuSlice("v6e-8")),
        (None, None),
    ],
)
def test_log_probs_run_on_their_resources(resources: Any, placed: Any) -> None:
    assert step("org/model", resources).resources == placed


@pytest.mark.slow
def test_a_file_without_a_checkout_has_both_steps(tmp_path: Path) -> None:
    probs, pages = run_text(tmp_path, FILE).calls[0].steps
    assert (probs.name, probs.resources, probs.resumable) == (
        "analysis/log_probs/run-9",
        TpuSlice("v5p-8"),
        ("sets/**",),
    )
    assert (pages.name, pages.resources) == ("analysis/viz", TpuSlice("v4-8"))
    assert list(resolve([probs], "gs://b").of(probs).version["config"]) == ["datasets.configs.wiki.cache_dir"]


def test_functions_read_marins_configs_of_today() -> None:
    """On the cluster, the mixture is one of components."""
    sets = {"a/b": SimpleNamespace(cache_dir="gs://b/cache"), "c": SimpleNamespace(cache_dir=None)}
    data = SimpleNamespace(components=sets, cache_dir="gs://b/all", tokenizer="gpt2")
    caches = {"a/b": "gs://b/cache", "c": "gs://b/all/c"}
    given: dict[str, Any] = {"checkpoint_path": "org/model", "model": 1, "datasets": data, "output_path": "gs://b/out"}
    of_probs = {"checkpoint_is_hf": True, "max_samples_per_dataset": 7, "per_device_batch_size": 2}
    assert marins_config(SimpleNamespace(**given, **of_probs)) == LogProbsConfig(
        "hub:org/model", caches, "gs://b/out", "gpt2", "export", max_sequences=7, per_device_batch_size=2
    )
    of_pages = {"comparison_model_path": "gs://b/other", "comparison_is_hf": False, "num_docs_per_dataset": 3}
    assert marins_pages(SimpleNamespace(**given, **of_pages, per_device_batch_size=2)) == VisualizeConfig(
        "org/model", caches, "gs://b/out", "gpt2", "checkpoint", num_docs_per_dataset=3,
        comparison_path="gs://b/other", comparison_weights="checkpoint", per_device_batch_size=2, model=1,
    )  # fmt: skip
    sets["c"].cache_dir = data.cache_dir = None
    with pytest.raises(ValueError, match="datasets: the set 'c' has no token cache"):
        marins_config(SimpleNamespace(**given, **of_probs))
