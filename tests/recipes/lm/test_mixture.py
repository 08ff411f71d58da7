"""Steps that train on mixtures: what counts in the version, and what the DAG file's import refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind import ExecutorStep, run_param, versioned
from tradewind.recipes.lm.mixture import MixtureTrainConfig
from tradewind.recipes.lm.steps import train_mixture as train_mixture_of
from tradewind.recipes.lm.tokens import tokenize_files
from tradewind.recipes.speedruns.steps import leaderboard, speedrun
from tradewind.recipes.steps import clean, tokenize, train_tokenizer
from tradewind.steps import RunValues, resolve

RAW = ExecutorStep("raw", None, {"n": versioned(3)})
ONE, OTHER = train_tokenizer("one", RAW, vocab_size=300), train_tokenizer("other", RAW, vocab_size=400)
WEB, CODE = tokenize("web", RAW, ONE), tokenize("code", RAW, ONE)
BOTH = {"web": WEB, "code": CODE}
SETTINGS: dict[str, Any] = {"num_train_steps": 20, "learning_rate": 0.01, "batch_size": 8, "seq_len": 64}


def train_mixture(name: str, components: Any, model: Any = "tiny", **options: Any) -> ExecutorStep:
    return train_mixture_of(name, components, model, **{**SETTINGS, **options})


def version(step: ExecutorStep) -> dict[str, Any]:
    (found,) = [each for each in resolve([step], "/p").steps if each.name == "m"]
    config: dict[str, Any] = found.version["config"]
    return config


def test_version_covers_components_and_weights_not_eval_interval() -> None:
    given: dict[str, Any] = {"weights": {"web": 3, "code": 1}}
    step = train_mixture("m", BOTH, "tiny", **given, steps_per_eval=5)
    assert version(step) == {
        "caches.web": "DEP[0]", "caches.code": "DEP[1]", "tokenizer_path": "DEP[2]",
        "weights": {"web": 3, "code": 1}, "model_size": "tiny", **SETTINGS,
    }  # fmt: skip
    assert version(train_mixture("m", BOTH, "tiny", **given)) == version(step)
    assert "weights" not in version(train_mixture("m", BOTH, "tiny"))
    assert step.resumable == ("hf/**", "checkpoints/**", "metrics.jsonl", "tensorboard/**", "wandb/**")


def test_mixture_config_has_settings_and_caches() -> None:
    step = train_mixture("m", BOTH, "tiny", num_train_steps=run_param("steps"))
    experiment = resolve([step], "/p", RunValues(params={"steps": 7}))
    config = experiment.of(step).config
    assert isinstance(config, MixtureTrainConfig)
    assert config.settings().num_train_steps == 7 and config.settings().batch_size == 8
    assert [path.rpartition("/")[2][:4] for path in config.caches.values()] == ["web-", "code"]


def test_tokenizer_for_paths_from_argument_or_other_step() -> None:
    told = train_mixture("m", {"web": "gs://b/web"}, tokenizer=ONE).config.tokenizer_path
    assert told == train_mixture("m", {"web": "gs://b/web", "code": CODE}).config.tokenizer_path == ONE.as_input_name()
    files = tokenize_files("files", [RAW / "*.jsonl.gz"], ONE)
    assert train_mixture("m", {"web": WEB, "files": files}).config.tokenizer_path == ONE.as_input_name()
    assert train_mixture("m", BOTH, tokenizer=ONE).config.tokenizer_path == ONE.as_input_name()


@pytest.mark.parametrize(
    ("components", "options", "sentence"),
    [
        ({}, {}, "components is {}: give names and token caches, such as {'web': tokens}."),
        (BOTH, {"weights": {"web": 1, "wiki": 1}}, "weights has 'wiki', which is no component: there are web, code."),
        (BOTH, {"weights": {"web": 1}}, "weights has none for 'code': give it one, or 0 if it is only for validation."),
        (BOTH, {"weights": {"web": 1, "code": -0.1}}, "weights['code']=-0.1: give a number of at least 0."),
        (BOTH, {"weights": {"web": 1, "code": float("nan")}}, "weights['code']=nan: give a number of at least 0."),
        (BOTH, {"levanter": {"trainer.seed": 3}}, "levanter['trainer.seed'] is decided by seed of the config: set it"),
        (BOTH, {"weights": {"web": 0, "code": 0.0}}, "weights are all 0, so there is nothing to train on:"),
        (BOTH, {"weights": [1, 2]}, "weights=[1, 2]: give a mapping of components to numbers, such as {'web': 0.7}."),
        (
            {"web": WEB, "code": tokenize("c", RAW, OTHER)},
            {},
            "component 'web' has tokenizer one and component 'code' other, so the same number means two texts.",
        ),
        (BOTH, {"tokenizer": OTHER}, "component 'web' has tokenizer one and the argument other, so the same number"),
        (
            {"web": WEB, "files": tokenize_files("files", ["gs://b/*.jsonl"], OTHER)},
            {},
            "component 'web' has tokenizer one and component 'files' other, so the same",
        ),
        ({"web": tokenize_files("files", ["gs://b/*.jsonl"], "owner/name")}, {}, "tokenizer is missing"),
        ({"web": "gs://b/web"}, {}, "tokenizer is missing: no token cache is a step whose config says"),
        (
            {"web": clean("c", RAW)},
            {"tokenizer": ONE},
            "tokens is step 'c', which makes documents and not a token cache",
        ),
        ({"a/b": WEB}, {}, "give a mapping of names to token caches, such as {'web': tokens}."),
        (BOTH, {"num_train_steps": 0}, "num_train_steps=0: give a whole number of at least 1."),
        (BOTH, {"wandb": None}, "train_mixture(wandb=...) is no field of MixtureTrainConfig"),
        (BOTH, {"levanter": 3}, "levanter=3: give a mapping of settings"),
    ],
)
def test_invalid_input_refused_at_dag_parse(components: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        train_mixture("m", components, "tiny", **options)
    assert str(error.value).startswith("Step 'm': ") and sentence in str(error.value)


def test_mixture_can_be_speedrun_input_but_is_none() -> None:
    trained = train_mixture("m", BOTH, "tiny")
    leaderboard("board", {"m": speedrun("s", trained, author="Ada")})
    with pytest.raises(ValueError, match=r"runs\['m'\] is step 'm', which is a training"):
        leaderboard("board", {"m": trained})
