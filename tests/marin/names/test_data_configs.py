"""Mixtures of data sets from tokenizing steps, as Marin makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tradewind.marin.legacy import modules
from tradewind.steps import ExecutorStep, InputName, output_path_of, this_output_path, versioned

T = modules()["marin.processing.tokenize.tokenize"]
D = modules()["marin.processing.tokenize.data_configs"]
RAW = ExecutorStep("raw/web", None, None)


def tokenized(name: str, tokenizer: Any = "llama", **others: Any) -> ExecutorStep:
    given = {"train_paths": [RAW / "train"], "validation_paths": versioned([]), **others}
    return ExecutorStep(name, None, T.TokenizeConfig(**given, cache_path=this_output_path(), tokenizer=tokenizer))


PARTS = {"a": tokenized("a"), "b": tokenized("b")}


def test_mixture_component_has_step_output_and_text_paths() -> None:
    step = tokenized("tokenized/web", tags=["a"])
    source = D.step_to_lm_mixture_component(step, include_raw_paths=True)
    assert isinstance(source, modules()["levanter.data.text"].UrlDatasetSourceConfig)
    assert (source.cache_dir, source.train_urls) == (output_path_of(step), [RAW / "train"])
    assert (source.validation_urls, source.tags) == (versioned([]), ["a"])
    without = D.step_to_lm_mixture_component(step, include_raw_paths=False)
    assert (without.train_urls, without.validation_urls) == ([], [])


def test_config_without_step_and_hub_set_become_sources() -> None:
    config = T.TokenizeConfig(["gs://a/b"], [], "gs://a/cache", "llama")
    assert D.step_to_lm_mixture_component(config, include_raw_paths=True).cache_dir == "gs://a/cache"
    step = ExecutorStep("t", None, T.HfTokenizeConfig("org/set", this_output_path(), "llama", name="part"))
    source = D.as_single_lm_data_source(step)
    assert (source.id, source.name, source.stream, source.cache_dir) == ("org/set", "part", True, output_path_of(step))


def test_one_set_is_called_by_the_end_of_its_steps_name() -> None:
    mixture = D.lm_data_config(tokenized("tokenized/web"), validation_sets={"v": tokenized("tokenized/v")})
    assert list(mixture.configs) == ["web", "v"]
    assert mixture.train_weights == {"web": 1.0, "v": 0.0}
    assert (mixture.tokenizer, mixture.cache_dir, mixture.shuffle) == ("llama", None, True)
    assert mixture.permutation_type == "feistel"


def test_unweighted_sets_become_validation_unless_disabled() -> None:
    assert D.lm_mixture_data_config(PARTS, {"a": 2.0}).train_weights == {"a": 2.0, "b": 0.0}
    bare = D.lm_mixture_data_config(PARTS, {"a": 2.0}, missing_weights_are_validation=False)
    assert bare.train_weights == {"a": 2.0}


def test_weights_may_change_from_a_sequence_on() -> None:
    mixture = D.lm_varying_mixture_data_config(PARTS, [(0, {"a": 1.0}), (9, {"b": 1.0})])
    assert mixture.train_weights == [(0, {"a": 1.0, "b": 0.0}), (9, {"b": 1.0, "a": 0.0})]
    assert mixture.mixture_block_size == 2048
    assert D.lm_varying_mixture_data_config(PARTS, [(0, {})], mixture_block_size=8).mixture_block_size == 8


def test_evaluation_mixture_has_no_weights_and_no_shuffling() -> None:
    mixture = D.mixture_for_evaluation({"a": tokenized("a")})
    assert (mixture.train_weights, mixture.shuffle, mixture.permutation_type) == ({"a": 0.0}, False, "linear")


def test_validation_sets_are_added_and_what_is_there_stays() -> None:
    mixture = D.lm_data_config(tokenized("tokenized/web"))
    more = D.add_validation_sets_to_mixture(mixture, {"web": tokenized("other"), "v": tokenized("v")})
    assert list(more.configs) == ["web", "v"]
    assert more.configs["web"] is mixture.configs["web"]
    assert more.train_weights == {"web": 1.0, "v": 0.0}
    mixture = D.lm_varying_mixture_data_config({"a": tokenized("a")}, [(0, {"a": 1.0}), (4, {"a": 2.0})])
    more = D.add_validation_sets_to_mixture(mixture, {"v": tokenized("v")})
    assert more.train_weights == [(0, {"a": 1.0, "v": 0.0}), (4, {"a": 2.0, "v": 0.0})]


def test_mixtures_are_averaged_after_each_adds_up_to_one() -> None:
    one = D.lm_mixture_data_config(PARTS, {"a": 3.0, "b": 1.0})
    other = D.lm_mixture_data_config({"b": tokenized("b2")}, {"b": 5.0})
    mean = D.interpolate_mixture_configs([one, other], [0.5, 0.5])
    assert mean.train_weights == {"a": 0.375, "b": 0.625}
    assert mean.configs["b"] is one.configs["b"]


ONE, OTHER = D.lm_data_config(PARTS["a"]), D.lm_data_config(PARTS["a"], shuffle=5)
MIXED = {"a": tokenized("a", versioned("one")), "b": tokenized("b", "two")}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: D.lm_varying_mixture_data_config(PARTS, []), "cannot be empty"),
        (lambda: D.lm_varying_mixture_data_config(PARTS, [(3, {})]), "must start at index 0"),
        (lambda: D.interpolate_mixture_weights([{"a": 1.0}, {"b": 1.0}], [1.0]), "same length"),
        (lambda: D.interpolate_mixture_weights([{"a": 1.0}, {"b": 1.0}], [0.5, 0.4]), "sum to 1.0"),
        (lambda: D.interpolate_mixture_weights([{"a": 1.0}, {"b": 1.0}], ["a", 1.0]), "numeric"),
        (lambda: D.interpolate_mixture_configs([ONE, OTHER], [0.5, 0.5]), "same shuffle"),
        (lambda: D.interpolate_mixture_configs([ONE, {}], [0.5, 0.5]), "must be LMMixtureDatasetConfig"),
        (lambda: D.lm_mixture_data_config(MIXED, {"a": 1.0}), "tokenizer of b is two and that of the first is one"),
        (lambda: D.lm_data_config(MIXED["a"], validation_sets={"b": MIXED["b"]}), "must have same tokenizer"),
        (lambda: tokenized("a", train_paths=[], validation_paths=[]), "At least one"),
        (lambda: tokenized("a", train_paths="gs://a"), "must be a list of paths"),
        (lambda: tokenized("a", validation_paths=["/"]), "don't use the entire fs"),
    ],
)
def test_invalid_weights_shares_or_paths_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError, AssertionError), match=reason):
        make()


@pytest.mark.parametrize("path", ["gs://a/x_test_1", "gs://a/my-validation", InputName.hardcoded("a/test/b")])
def test_training_files_that_look_like_test_data_are_refused(path: Any) -> None:
    with pytest.raises(ValueError, match="forbidden pattern"):
        tokenized("a", train_paths=[path])
    assert tokenized("a", train_paths=[path], allow_test_in_train=True).config.train_paths == [path]
    assert tokenized("a", train_paths=["gs://a/latest/contest-data"])
