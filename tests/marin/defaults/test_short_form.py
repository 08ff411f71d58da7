"""``default_train`` without a Marin config: its version, the values it passes on, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind import ExecutorStep, InputName, TpuSlice, lazy, output_path_of, run_param, this_output_path, versioned
from tradewind.marin.defaults import default_train
from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.recipes.steps import train_tokenizer
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.train_lm import RESUMABLE, train_lm
from tradewind.steps import RunValues, resolve

TOKENIZER = ExecutorStep("tokenizer", None, {"vocab_size": versioned(300)})
CACHE = TokenCacheConfig("gs://bucket/documents", output_path_of(TOKENIZER), this_output_path())
TOKENS = ExecutorStep("tokens", build_token_cache, CACHE)
OTHER = ExecutorStep("other", None, {"seed": versioned(1)})
TOKENIZED_BY = train_tokenizer("made", "gs://bucket/documents")
SETTINGS = {"num_train_steps": 60, "learning_rate": 1e-2, "batch_size": 8, "seq_len": 128}
LLAMA = "levanter.models.llama:LlamaConfig"


def path_of(model: Any = "tiny", tokenized: Any = TOKENS, **settings: Any) -> str:
    step = default_train("mine", tokenized, model, **{**SETTINGS, **settings})
    return resolve([step], "gs://bucket", RunValues(params={"lr": 0.01})).of(step).output_path


@pytest.mark.parametrize(
    "change",
    [
        {"model": "small"}, {"model": lazy(LLAMA, num_layers=2)}, {"num_train_steps": 61}, {"learning_rate": 0.02},
        {"batch_size": 16}, {"seq_len": 64}, {"weight_decay": 0.2}, {"seed": 1},
        {"levanter": {"optimizer.beta2": 0.95}}, {"initialize_from": "gs://bucket/other"}, {"initialize_from": OTHER},
    ],
)  # fmt: skip
def test_settings_that_affect_weights_count(change: dict[str, Any]) -> None:
    assert path_of(**change) != path_of()


@pytest.mark.parametrize(
    "change",
    [
        {"weight_decay": 0.1, "seed": 0},  # the defaults as explicit arguments
        {"learning_rate": run_param("lr")},
        {"steps_per_eval": 7, "checkpoint_seconds": 1.0, "steps_per_checkpoint": 3, "max_eval_batches": None},
        {"resources": TpuSlice("v4-16"), "tensorboard": True, "wandb": WandbOptions("project")},
        {"temporary_checkpoint_path": "gs://temporary/30-days", "tokenizer": TOKENIZER},
    ],
)
def test_settings_for_measuring_and_saving_do_not_count(change: dict[str, Any]) -> None:
    assert path_of(**change) == path_of()


def test_textual_token_cache_and_tokenizer_count_in_version() -> None:
    texts = [("gs://one", "gs://a"), ("gs://other", "gs://a"), ("gs://one", "gs://b")]
    assert len({path_of(tokenized=cache, tokenizer=tokenizer) for cache, tokenizer in texts}) == 3
    hardcoded = path_of(tokenized=InputName.hardcoded("gs://one"), tokenizer=InputName.hardcoded("gs://a"))
    assert path_of(tokenized="gs://one", tokenizer="gs://a") == hardcoded


def test_a_lazy_model_counts_with_its_class_and_fields() -> None:
    rope = "levanter.layers.rotary:Llama3RotaryEmbeddingsConfig"
    models = [lazy(name, num_layers=2) for name in (LLAMA, "levanter.models.qwen:QwenConfig")]
    models.append(lazy(LLAMA, num_layers=3))
    models += [lazy(LLAMA, num_layers=2, rope=lazy(rope, factor=factor)) for factor in (2, 4)]
    assert len(set(map(path_of, models))) == 5
    assert path_of(lazy(LLAMA, num_layers=versioned(2))) == path_of(lazy(LLAMA, num_layers=2))


def test_the_step_is_ready_to_run_on_a_slice() -> None:
    others: dict[str, Any] = {"wandb": WandbOptions("project", tags=("a",)), "tags": ("b",), "cluster": "far"}
    step = default_train("mine", TOKENS, "tiny", resources=TpuSlice("v4-16"), **others, **SETTINGS)
    assert (step.name, step.fn, step.resources) == ("checkpoints/mine", train_lm, TpuSlice("v4-16"))
    assert (step.cluster, step.config.num_train_steps.value) == ("far", 60)
    assert tuple(step.resumable) == RESUMABLE
    assert step.config.tokenizer_path == output_path_of(TOKENIZER)
    assert step.config.wandb.tags == ("a", "b")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": 3}, r"default_train\(num_steps=...\) is no field of LmTrainConfig; did you mean"),
        ({"cache_path": "x"}, r"default_train\(cache_path=...\) is no field"),
        ({"levanter": {"data.components": {}}}, r"levanter\['data.components'\] is decided by cache_path"),
        ({"levanter": {"data": {"tokenizer": "x"}}}, r"levanter\['data.tokenizer'\] is decided by tokenizer_path"),
        ({"levanter": {"data": "x"}}, r"levanter\['data'\] is given whole: give its fields"),
        ({"levanter": {"hf_upload": "me/it"}}, r"levanter\['hf_upload'\] is not taken: .* uploads nothing"),
        ({"levanter": {"adapter": {"type": "lora"}}}, r"levanter\['adapter'\] is not taken: .* whole models"),
        ({"levanter": {"adapter.r": 8}}, r"levanter\['adapter.r'\] is not taken"),
        ({"levanter": {"merged_hf_save_path": "gs://b/x"}}, "'merged_hf_save_path'.* trains no adapter"),
        ({"levanter": {"use_hf_model_config": True}}, "give its config as model"),
        ({"tokenized": TOKENIZED_BY}, "tokens is step 'made', which makes a tokenizer and not a token cache"),
        ({"tokenizer": TOKENS}, "tokenizer is step 'tokens', which makes a token cache and not a tokenizer"),
        ({"initialize_from": TOKENS}, "initialize_from is step 'tokens', which makes a token cache and not"),
        ({"learning_rate": "0.1"}, "^Step 'mine': learning_rate='0.1': give a number above 0"),
        ({"wandb": "yes", "tags": ["a"]}, "^Step 'mine': wandb='yes': give"),
        ({"wandb": WandbOptions("project"), "tags": "a"}, "^Step 'mine': tags='a': give a list of texts"),
    ],
)
def test_unknown_or_invalid_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        path_of(**settings)
