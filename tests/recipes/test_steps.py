"""Functions that make a pipeline's steps: what counts, what steps pass on, and what they refuse."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tradewind import (
    ExecutorStep,
    InputName,
    TpuSlice,
    lazy,
    mirrored,
    output_path_of,
    run_param,
    this_output_path,
    versioned,
)
from tradewind.datasets.clean import CleanAndShardConfig, clean_and_shard
from tradewind.marin.defaults.models import llama
from tradewind.recipes.evaluate_lm import LmEvalConfig, evaluate_lm
from tradewind.recipes.lm.steps import train_mixture
from tradewind.recipes.report import ReportConfig, write_report
from tradewind.recipes.steps import clean, evaluate, report, tokenize, train_tokenizer
from tradewind.recipes.steps import train as train_of
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
from tradewind.recipes.train_lm import RESUMABLE, LmTrainConfig, train_lm
from tradewind.steps import ParseTimeValues, ResolvedStep, RunValues, StepConfigError, resolve

OUT = this_output_path()
RAW = ExecutorStep("raw", None, {"n": versioned(3)})
SETTINGS: Any = {"learning_rate": 0.01, "batch_size": 8, "seq_len": 128}
CLEANED = clean("clean", RAW, validation_fraction=0.05)
TOKENIZER = train_tokenizer("tokenizer", RAW, vocab_size=300)
TOKENS = tokenize("tokens", CLEANED, TOKENIZER)


def train(name: str, tokens: Any, model: Any = "small", **options: Any) -> ExecutorStep:
    return train_of(name, tokens, model, **{"num_train_steps": 7, **SETTINGS, **options})


def in_a_mixture(name: str, tokens: Any, **options: Any) -> ExecutorStep:
    return train_mixture(name, {"all": tokens}, "small", num_train_steps=7, **SETTINGS, **options)


def with_rope(kind: str) -> Any:
    rope = lazy(f"levanter.layers.rotary:{kind}EmbeddingsConfig", theta=10_000)
    return lazy("levanter.models.llama:LlamaConfig", max_seq_len=128, rope=rope)


def sized(**sizes: Any) -> Any:
    return lazy("levanter.models.llama:LlamaConfig", **sizes)


TRAINED = train("train", TOKENS, run_param("size"), num_train_steps=7, checkpoint_seconds=2.0)
EVALUATED = evaluate("evaluate", TRAINED)
REPORTED = report("report", EVALUATED, title="Mine")

_clean, _tokens, _train, _evaluate = (output_path_of(step) for step in (CLEANED, TOKENS, TRAINED, EVALUATED))
_raw, _tokenizer, _size = output_path_of(RAW), output_path_of(TOKENIZER), versioned(run_param("size"))
_GIVEN: Any = {name: versioned(value) for name, value in SETTINGS.items()}
WRITTEN_OUT = [
    (CLEANED, clean_and_shard, CleanAndShardConfig(_raw, OUT, validation_fraction=versioned(0.05))),
    (TOKENIZER, train_bpe_tokenizer, BpeTokenizerConfig(_raw, OUT, versioned(300))),
    (TOKENS, build_token_cache, TokenCacheConfig(_clean, _tokenizer, OUT)),
    (
        TRAINED,
        train_lm,
        LmTrainConfig(_tokens, _tokenizer, OUT, _size, num_train_steps=versioned(7), checkpoint_seconds=2.0, **_GIVEN),
    ),
    (EVALUATED, evaluate_lm, LmEvalConfig(_train, _tokens, _tokenizer, OUT, model_size=_size, seq_len=versioned(128))),
    (REPORTED, write_report, ReportConfig(_train, _evaluate, OUT, "Mine")),
]

NIGHTLY = """
import datetime, os, sys
os.environ["TRADEWIND_STEP"] = "makes no DAG"
sys.path.insert(0, sys.argv[1])
import nightly_code_lm
from tradewind.steps import RunValues, resolve
params = {"sample_percent": 40, "model_size": "small", "train_steps": 200, "learning_rate": 0.005}
last = nightly_code_lm.report("code_lm/report", nightly_code_lm.evaluated)
for step in resolve([last], "gs://b", RunValues(params=params, night=datetime.date(2026, 3, 1))).steps:
    print(step.name.removeprefix("code_lm/"), step.hash)
"""


def resolved(step: ExecutorStep) -> ResolvedStep:
    return resolve([step], "gs://bucket", RunValues(params={"size": "tiny"})).of(step)


@pytest.mark.parametrize(("made", "fn", "config"), WRITTEN_OUT, ids=lambda value: getattr(value, "name", ""))
def test_step_equals_explicit_step(made: ExecutorStep, fn: Any, config: Any) -> None:
    written = ExecutorStep(made.name, fn, config)
    assert made.fn is fn
    assert (resolved(made).version, resolved(made).config) == (resolved(written).version, resolved(written).config)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the collection's version names the Python that it is of")
def test_nightly_pipeline_versions_match_explicit_configs() -> None:
    dags = str(Path(__file__).parents[2] / "dags")
    done = subprocess.run([sys.executable, "-c", NIGHTLY, dags], check=True, capture_output=True, text=True)
    assert dict(line.split() for line in done.stdout.splitlines()) == {
        "collection": "54a72f",
        "sample": "a80dfd",
        "clean": "6f4762",
        "tokenizer": "8f1199",
        "tokens": "c0ded4",
        "train": "64787e",
        "evaluate": "6ce3c6",
        "report": "dcf2aa",
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (clean("a", "gs://one"), clean("a", "gs://other")),
        (clean("a", RAW), clean("a", RAW / "part")),
        (clean("a", RAW), clean("a", RAW, min_chars=64)),
        (tokenize("a", CLEANED, "gs://one"), tokenize("a", CLEANED, "gs://other")),
        (train("a", TOKENS), train("a", TOKENS, "tiny")),
        (train("a", TOKENS), train("a", TOKENS, seed=0)),
        (train("a", TOKENS), train("a", TOKENS, levanter={"optimizer.beta2": 0.95})),
        (train("a", TOKENS), train("a", TOKENS, initialize_from="gs://one")),
        (train("a", TOKENS, with_rope("DefaultRotary")), train("a", TOKENS, with_rope("Llama3Rotary"))),
        (evaluate("a", TRAINED), evaluate("a", TRAINED, prompt="class ")),
        (evaluate("a", TRAINED), evaluate("a", TRAINED, tokens="gs://one")),
    ],
)
def test_version_covers_inputs_and_settings(one: ExecutorStep, other: ExecutorStep) -> None:
    assert resolved(one).hash != resolved(other).hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (train("a", TOKENS), train("a", TOKENS, steps_per_eval=3, tensorboard=True, checkpoint_seconds=1.0)),
        (train("a", TOKENS), train("a", TOKENS, resources=TpuSlice("v4-16"), description="Mine.", cluster="far")),
        (train("a", TOKENS, seed=1), train("a", TOKENS, seed=versioned(1))),
        (evaluate("a", TRAINED), evaluate("a", TRAINED, batch_size=4)),
        (report("a", EVALUATED), report("a", EVALUATED, title="Mine")),
    ],
)
def test_version_omits_measuring_saving_and_placement(one: ExecutorStep, other: ExecutorStep) -> None:
    assert resolved(one).hash == resolved(other).hash


def test_relative_text_path_resolved_below_prefix() -> None:
    assert resolved(clean("a", "raw/wiki")).config.input_path == "gs://bucket/raw/wiki"
    assert resolved(clean("a", "gs://other/wiki")).config.input_path == "gs://other/wiki"
    for make in (train, in_a_mixture):
        for given, read in (("wiki/base", "gs://bucket/wiki/base"), ("gs://other/base", "gs://other/base")):
            assert resolved(make("a", TOKENS, initialize_from=given)).config.initialize_from == read


def test_evaluation_takes_inputs_and_model_of_training() -> None:
    model = lazy("levanter.models.llama:LlamaConfig", num_layers=2)
    trained = train("a", TOKENS / "corpus", model, tokenizer=TOKENIZER, seq_len=32)
    config = evaluate("b", trained).config
    expected = (trained.config.cache_path, trained.config.tokenizer_path, trained.config.model, versioned(32))
    assert (config.cache_path, config.tokenizer_path, config.model, config.seq_len) == expected
    assert evaluate("b", trained, seq_len=64).config.seq_len == versioned(64)
    assert evaluate("b", trained, model="tiny").config.model is None
    assert evaluate("b", output_path_of(trained)).config == config


def test_evaluation_and_report_of_paths_take_arguments() -> None:
    config = evaluate("b", "gs://trained", tokens="gs://tokens", tokenizer=TOKENIZER, model="tiny", seq_len=8).config
    assert config.train_path == InputName.hardcoded("gs://trained")
    assert (config.cache_path, config.tokenizer_path) == (InputName.hardcoded("gs://tokens"), _tokenizer)
    assert report("c", "gs://evaluated", trained="gs://trained").config.train_path == config.train_path


def test_step_takes_resources_secrets_and_description() -> None:
    step = train("a", TOKENS, resources=TpuSlice("v4-16"), secrets={"WANDB_API_KEY": "env:KEY"}, cluster="far")
    assert (step.resources, step.cluster, step.secrets) == (TpuSlice("v4-16"), "far", {"WANDB_API_KEY": "env:KEY"})
    assert tuple(step.resumable) == RESUMABLE
    assert CLEANED.description is not None and CLEANED.description.startswith("Cleaned, deduplicated")
    assert clean("a", RAW, description="Mine.").description == "Mine."


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clean("a", RAW, min_char=3), r"clean\(min_char=...\) is no field of CleanAndShardConfig; did you"),
        (lambda: clean("a", RAW, resource=TpuSlice("v4-16")), "did you mean resources"),
        (lambda: train("a", TOKENS, levanter={"hf_save_steps": 10}), "'hf_save_steps'. is not taken"),
        (lambda: train("a", TOKENS, levanter={"optimizer": lazy("m:Adam")}), "whose class would not count in the vers"),
        (lambda: train("a", TOKENS, levanter={"trainer": object()}), r"levanter\['trainer'\] is given whole: give its"),
        (lambda: train("a", "gs://tokens"), "tokenizer is missing"),
        (
            lambda: train_of("a", TOKENS, "tiny", batch_size=8),
            "^Step 'a': train has no default for num_train_steps, learning_rate, seq_len: give a value for each.$",
        ),
        (lambda: evaluate("a", "gs://x"), "tokens is missing: what is evaluated is no step of train"),
        (lambda: evaluate("a", "gs://x", tokens=TOKENS, tokenizer=TOKENIZER), "model is missing"),
        (lambda: report("a", "gs://x"), "trained is missing"),
        (lambda: clean("a", None), "documents is None, which is no input: give a step"),
        (lambda: tokenize("a", CLEANED, 5), "tokenizer is 5, which is no input"),
        (lambda: tokenize("a", CLEANED, TOKENIZER, vocab_size=3), "the fields are description"),
        (lambda: train("a", TOKENS, "huge"), "^Step 'a': model_size='huge': give one of tiny, small, 125m"),
        (lambda: train("a", TOKENS, versioned("huge")), "model_size=.*'huge'.*: give one of tiny, small, 125m"),
        (lambda: train("a", TOKENS, versioned(5)), "which is no model"),
        (lambda: train("a", TOKENS, TOKENIZER), r"model is ExecutorStep\('tokenizer'\), which is no model"),
        (lambda: train("a", TOKENS, llama("llama_150m")), "^Step 'a': model is a LlamaConfig of Marin's, which only"),
        (lambda: train("a", TOKENS, sized(num_layers=0)), "^Step 'a': model.num_layers=0: give a whole number"),
        (lambda: train("a", TOKENS, sized(hidden_dim=versioned(-8))), "model.hidden_dim=-8: give a whole number"),
        (lambda: train("a", TOKENS, sized(head_dim=0)), "model.head_dim=0: give a whole number of at least 1, or None"),
        (lambda: train("a", TOKENS, sized(max_seq_len=64)), "'a': seq_len=128 is longer than .*, max_seq_len=64.$"),
        (lambda: evaluate("a", train("b", TOKENS, sized(max_seq_len=128)), seq_len=256), "seq_len=256 is longer than"),
        (lambda: train("a", TOKENS, model_size="small"), "train fills it in from its arguments"),
        (lambda: train("a", TOKENS, levanter=run_param("levanter")), "is no mapping of settings, such as"),
        (lambda: train("a", TOKENS, resources="v4-16"), "Step 'a': resources must be .* but is 'v4-16'"),
        (lambda: train("a", TOKENS, cluster=run_param("cluster")), "Step 'a': cluster must be"),
        (lambda: train("a", TOKENS, pip_dependency_groups="tpu"), "Step 'a': pip_dependency_groups .* must be a list"),
        (lambda: evaluate("a", TRAINED, cache_path="gs://x"), "evaluate fills it in"),
        (lambda: clean("a", RAW, validation_fraction=-3), "^Step 'a': validation_fraction=-3: give a number above 0"),
        (lambda: clean("a", RAW, min_chars=versioned(0)), "^Step 'a': min_chars=0: give a whole number of at least 1"),
        (lambda: train("a", TOKENS, num_train_steps=1e4), r"^Step 'a': num_train_steps=10000.0: give a whole number"),
        (lambda: evaluate("a", TRAINED, prompt=""), "^Step 'a': prompt='': give a text of at least one character"),
        (lambda: evaluate("a", TRAINED, seq_len=1), "^Step 'a': seq_len=1: give a whole number of at least 2"),
        (lambda: train_tokenizer("a", TOKENS), "^Step 'a': documents is step 'tokens', which makes a token cache and"),
        (lambda: tokenize("a", TOKENIZER, CLEANED), "documents is step 'tokenizer', which makes a tokenizer and not"),
        (lambda: tokenize("a", CLEANED, output_path_of(CLEANED)), "tokenizer is step 'clean', which makes documents"),
        (lambda: train("a", CLEANED), "^Step 'a': tokens is step 'clean', which makes documents and not a token cache"),
        (lambda: train("a", mirrored(RAW / "x"), tokenizer=mirrored(output_path_of(TOKENS))), "tokenizer is step"),
        *(
            (partial(make, "a", TOKENS, initialize_from=CLEANED), "^Step 'a': initialize_from is step 'clean', which")
            for make in (train, in_a_mixture)
        ),
        (lambda: evaluate("a", TOKENS), "trained is step 'tokens', which makes a token cache and not a trained model"),
        (lambda: evaluate("a", REPORTED), "trained is step 'report', which makes a report and not a trained model"),
        (lambda: report("a", TRAINED), "evaluated is step 'train', which makes a trained model and not an evaluation"),
    ],
)
def test_invalid_arguments_refused_at_step_creation(make: Callable[[], ExecutorStep], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("config", [config for _, _, config in WRITTEN_OUT], ids=lambda config: type(config).__name__)
def test_every_config_field_refuses_arbitrary_object(config: Any) -> None:
    for field in dataclasses.fields(config):
        if field.name != "model":  # only the cluster, which has Levanter, checks the model
            with pytest.raises(ValueError, match=f"^{field.name}=<object object at .*: give "):
                dataclasses.replace(config, **{field.name: object()})


def test_file_of_any_output_is_accepted_as_input() -> None:
    assert train("a", TOKENS / "corpus", tokenizer=TRAINED / "hf").config.tokenizer_path == TRAINED / "hf"
    assert tokenize("a", EVALUATED / "samples", TOKENIZER).config.input_path == EVALUATED / "samples"


def test_run_values_allowed_in_every_setting_checked_by_plan() -> None:
    step = train("a", TOKENS, num_train_steps=run_param("steps"), seed=run_param("steps"), tensorboard=run_param("on"))
    resolve([step], "gs://bucket", ParseTimeValues(frozenset({"steps", "on"})))
    resolve([step], "gs://bucket", RunValues(params={"steps": 3, "on": True}))
    with pytest.raises(StepConfigError, match="Step 'a': config .LmTrainConfig.: num_train_steps=0: give"):
        resolve([step], "gs://bucket", RunValues(params={"steps": 0, "on": True}))
