"""Uses of the legacy API's classes while an experiment builds steps: inherit, replace, register, read."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from tradewind.marin.legacy import modules
from tradewind.marin.legacy.classes import Builder, builder
from tradewind.marin.legacy.table import ClassRow, ModuleRow, module_rows
from tradewind.steps.errors import ExperimentError

M = modules()


def test_class_is_one_object_under_all_its_names() -> None:
    adam = M["levanter.optim.config"].AdamConfig
    assert M["levanter.optim"].AdamConfig is adam is M["levanter"].optim.AdamConfig
    assert M["haliax"].Axis is M["haliax.axis"].Axis is M["levanter.models.llama"].Axis
    assert adam.__module__ == "levanter.optim.config"
    assert modules() is M and M["levanter.optim"] is M["levanter.optim"]


def test_a_name_that_holds_no_values_is_absent() -> None:
    with pytest.raises(AttributeError, match="'levanter.models.llama' has no attribute 'LlamaLMHeadModel'"):
        _ = M["levanter.models.llama"].LlamaLMHeadModel
    assert "levanter.models.nothing" not in M


def test_function_shadowing_module_shadows_it_in_stubs_too() -> None:
    with pytest.raises(AttributeError, match="tokenize"):
        _ = M["marin.processing.tokenize"].tokenize
    assert M["marin.processing.tokenize.tokenize"].TokenizeConfig is M["marin.processing.tokenize"].TokenizeConfig
    assert M["levanter"].data.text is M["levanter.data.text"]


def test_frozen_config_changes_only_by_replace_with_checks() -> None:
    llama = M["levanter.models.llama"].LlamaConfig(num_heads=8, num_kv_heads=4)
    assert dataclasses.replace(llama, num_layers=2).num_layers == 2
    with pytest.raises(AssertionError, match="num_heads=9 not divisible by num_kv_heads=4"):
        dataclasses.replace(llama, num_heads=9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        M["levanter.optim"].AdamConfig().learning_rate = 1.0


def test_defaults_that_are_lists_are_not_shared() -> None:
    tracker = M["levanter.tracker.wandb"].WandbConfig
    tracker().tags.append("mine")
    assert tracker().tags == []
    M["levanter.checkpoint"].CheckpointerConfig().keep.append({"every": 1})
    assert M["levanter.checkpoint"].CheckpointerConfig().keep == [{"every": 10000}]


@dataclass(frozen=True)
class OwnConfig(M["levanter.models.llama"].LlamaConfig):  # type: ignore[misc, name-defined]
    """A user's model config, as speedruns define them."""

    use_parallel_blocks: bool = True
    norm: Any = field(default_factory=M["levanter.layers"].RmsNormConfig)

    def flops_per_token(self, vocab_size: int) -> float:
        return 2 * float(super().flops_per_token(vocab_size))


def test_a_users_class_inherits_fields_methods_and_axes() -> None:
    own = OwnConfig(hidden_dim=512, num_heads=8, num_kv_heads=8)
    llama = M["levanter.models.llama"].LlamaConfig
    assert isinstance(own, llama)
    assert own.Embed == M["haliax"].Axis("embed", 512)
    assert own.flops_per_token(1000) == 2 * llama(hidden_dim=512, num_heads=8, num_kv_heads=8).flops_per_token(1000)
    shown = repr(own)
    assert shown.startswith("OwnConfig(cross_entropy_block_size=None, seq_len=2048, hidden_dim=512, ")
    assert shown.endswith(
        "tokenizer=None, use_parallel_blocks=True, norm=RmsNormConfig(eps=1e-06, use_weight=True, use_bias=False))"
    )
    config = M["levanter.models.lm_model"].LmConfig
    assert issubclass(type("Own", (config["OwnModel"],), {}), config)


def test_registry_replaces_choices_of_users_but_not_its_own() -> None:
    config = M["levanter.models.lm_model"].LmConfig
    first, second = (type("Own", (config,), {}) for _ in range(2))
    try:
        config.register_subclass("own_of_a_test")(first)
        config.register_subclass("own_of_a_test")(second)
        assert config.get_choice_class("own_of_a_test") is second
        assert config.get_choice_name(second) == "own_of_a_test"
    finally:
        config.get_known_choices().pop("own_of_a_test")
    with pytest.raises(ValueError, match="already registered as llama"):
        config.register_subclass("llama", OwnConfig)
    assert config.get_choice_class("llama") is M["levanter.models.llama"].LlamaConfig


def test_registry_lists_all_library_choices_from_the_start() -> None:
    optimizers = Builder(module_rows()).find("levanter.optim.config.OptimizerConfig")
    assert {"adam", "muon", "adamH", "cautious", "sophia-h"} <= set(optimizers.get_known_choices())
    models = Builder(module_rows()).find("levanter.models.lm_model.LmConfig")
    assert models.get_choice_class("qwen3").__name__ == "Qwen3Config"
    registry = type("Own", (M["draccus"].ChoiceRegistry,), {})
    assert registry.get_known_choices() == {}
    assert registry.default_choice_name() is None
    with pytest.raises(ValueError, match="Cannot find choice name"):
        registry.get_choice_name(int)


@pytest.mark.parametrize("name", ["hf_checkpoint_converter", "from_hf_config"])
def test_method_needing_real_library_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder(), "on_cluster", None)
    method = getattr(M["levanter.models.llama"].LlamaConfig(), name)
    with pytest.raises(ExperimentError, match=f"levanter.models.llama.LlamaConfig.{name} needs the real library"):
        method({})
    with pytest.raises(ExperimentError, match=r"LlamaConfig\.model_type needs the real library"):
        _ = M["levanter.models.llama"].LlamaConfig().model_type


def test_only_sizes_of_known_tokenizers_are_available() -> None:
    load = M["levanter.compat.hf_checkpoints"].load_tokenizer
    llama = load("meta-llama/Meta-Llama-3.1-8B")
    assert (llama.vocab_size, len(llama)) == (128000, 128256)
    with pytest.raises(ValueError, match="chat_template of the tokenizer meta-llama/Meta-Llama-3.1-8B is unknown"):
        _ = llama.chat_template
    for name, revision in (("a/b", None), ("Qwen/Qwen3-4B", "x")):
        with pytest.raises(ValueError, match=f"The sizes of the tokenizer {name}.* are unknown"):
            load(name, revision=revision)


def test_unimplemented_post_init_check_is_refused_not_skipped() -> None:
    row = ClassRow(dataclass="", fields=("size: int = 1",), methods=("__post_init__",))
    made = Builder({"lib": ModuleRow({"Checked": row})}).find("lib.Checked")
    with pytest.raises(ExperimentError, match="lib.Checked.__post_init__"):
        made()


def test_a_schedule_of_batch_sizes_counts_the_examples() -> None:
    part = M["levanter.schedule"].ScheduleStep
    schedule = M["levanter.schedule"].BatchSchedule([part(0, 10), part(100, 30)])
    assert [schedule.batch_size_at_step(step) for step in (0, 99, 100)] == [10, 10, 30]
    assert schedule.global_data_offset_by_step(110) == 100 * 10 + 10 * 30
    assert schedule.find_step_containing_offset(1030) == 101
    assert schedule.batch_indices_at_step(100) == range(1000, 1030)
    assert schedule.unique_batch_sizes() == {10, 30}
    assert M["levanter.schedule"].value_at_step(7, 3) == 7


def test_precisions_look_as_jax_shows_them() -> None:
    policy = M["jmp"].get_policy("p=f32,c=bfloat16")
    assert str(policy) == "p=full,c=bf16,o=bf16"
    assert repr(policy.compute_dtype) == "<class 'jax.numpy.bfloat16'>"
    assert policy.compute_dtype is M["jax.numpy"].bfloat16
    with pytest.raises(ValueError, match="'half'. means another"):
        M["jmp"].get_policy("half")
    with pytest.raises(ValueError, match="Unknown dtype 'f8'"):
        M["jmp"].get_policy("f8")


@pytest.mark.parametrize(("given", "size"), [("512MB", 512 * 10**6), ("1.5 GiB", 3 << 29), (7, 7), ("64k", 64000)])
def test_sizes_of_caches_are_bytes(given: str | int, size: int) -> None:
    assert M["levanter.store.cache"].CacheOptions(target_size_per_flush=given).target_bytes_per_flush == size


@pytest.mark.parametrize(
    ("weights", "others", "reason"),
    [
        ({"b": 1.0}, {}, "must be subset"),
        ([(0, {"a": 1.0}), (5, {"b": 1.0})], {}, "must be subset"),
        ("a", {}, "Invalid train_weights"),
        ({"a": 1.0}, {"max_train_batches": {"a": 1}, "target_budget": 5}, "cannot all be set"),
    ],
)
def test_a_mixture_that_does_not_fit_is_refused(weights: Any, others: dict[str, Any], reason: str) -> None:
    text = M["levanter.data.text"]
    with pytest.raises((ValueError, AssertionError), match=reason):
        text.LMMixtureDatasetConfig(configs={"a": text.UrlDatasetSourceConfig()}, train_weights=weights, **others)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from tradewind.marin.legacy import modules; modules()['levanter.main.train_lm'].TrainLmConfig();"
        "print([n for n in ('jax', 'levanter', 'haliax', 'ray', 'draccus', 'jmp', 'numpy') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
