"""Decoding of written configs with invented libraries: the installed version decides the translation."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import pytest

from tests.marin.written import written
from tradewind.marin.legacy import modules
from tradewind.marin.legacy.classes import builder
from tradewind.serialization.errors import FunctionImportError, TranslationError
from tradewind.serialization.spec import decode


def install(monkeypatch: pytest.MonkeyPatch, name: str, *fields: Any, bases: tuple[type, ...] = ()) -> Any:
    """Install a class of a library, with the modules above it."""
    module, _, last = name.rpartition(".")
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if part not in sys.modules or getattr(sys.modules[part], "__file__", None):
            made = types.ModuleType(part)
            made.__path__ = []
            monkeypatch.setitem(sys.modules, part, made)
    kind = dataclasses.make_dataclass(last, fields, bases=bases)
    kind.__module__ = module
    setattr(sys.modules[module], last, kind)
    return kind


def test_legacy_levanter_gets_unchanged_values(monkeypatch: pytest.MonkeyPatch) -> None:
    light = modules()["levanter.store.cache"].CacheOptions(num_shard_groups=7)
    fields = ("num_shard_groups", "target_size_per_flush", "batch_size")
    kind = install(monkeypatch, "levanter.store.cache.CacheOptions", *fields)
    assert decode(written(light)) == kind(7, "512MB", 128)


@pytest.mark.slow
def test_removed_field_is_dropped_only_at_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = install(monkeypatch, "levanter.optim.config.AdamConfig", "learning_rate", "beta1")
    adam = modules()["levanter.optim"].AdamConfig
    assert decode(written(adam(beta1=0.5))) == kind(6e-4, 0.5)
    with pytest.raises(
        TranslationError, match=r"^config\.nesterov is True, a value for levanter\.optim\.config\.AdamConfig "
    ):
        decode(written(adam(nesterov=True)))


@pytest.mark.slow
def test_legacy_object_equal_to_default_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    training = modules()["levanter.main.eval_lm"].EvalLmConfig
    install(monkeypatch, "levanter.main.eval_lm.EvalLmConfig", "checkpoint_path")
    light = training(checkpoint_path="gs://b/c")
    assert decode(written(light)).checkpoint_path == "gs://b/c"
    longer = dataclasses.replace(light, model=modules()["levanter.models.llama"].LlamaConfig(seq_len=1))
    with pytest.raises(TranslationError, match=r"^config\.model is levanter\.models\.llama:LlamaConfig, a value for "):
        decode(written(longer))


@pytest.mark.slow
def test_an_unknown_field_and_an_unknown_class_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = written({"a": [modules()["marin.resources"].TpuPodConfig("v4-8")]})
    given["a"][0]["fields"]["tpu_color"] = "red"
    with pytest.raises(TranslationError, match=r"^config\.a\.\[0\]\.tpu_color is red, a value for marin\.resources"):
        decode(given)
    install(monkeypatch, "levanter.optim.config.AdamConfig")
    sophia = modules()["levanter.optim"].SophiaHConfig
    with pytest.raises(TranslationError, match=r"^config is a levanter\.optim\.sophia\.SophiaHConfig of levanter 1\.2"):
        decode(written(sophia()))


def test_refusal_by_installed_class_names_position(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict:
        def __post_init__(self) -> None:
            raise ValueError("no batches")

    install(monkeypatch, "levanter.store.cache.CacheOptions", "batch_size", bases=(Strict,))
    with pytest.raises(
        TranslationError, match=r"^config\.b is a levanter\.store\..*: it raises ValueError: no batches\.$"
    ):
        decode(written({"b": modules()["levanter.store.cache"].CacheOptions()}))


def test_marin_class_decodes_to_checkout_class_or_else_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    light = modules()["marin.resources"].GpuConfig(gpu_count=2)
    assert decode(written(light)) == light
    fields = ("gpu_count", "runtime_env", "accelerator_type", "device_flops_override")
    kind = install(monkeypatch, "marin.resources.GpuConfig", *fields)
    assert type(decode(written(light))) is kind


def test_unimportable_user_class_is_named() -> None:
    given = written(modules()["marin.resources"].TpuPodConfig("v4-8"))
    given["class"] = "experiments.gone:Config"
    with pytest.raises(FunctionImportError, match="experiments.gone"):
        decode(given)


def test_stub_configs_are_encoded_with_legacy_translation() -> None:
    for light, of in (
        (modules()["levanter.store.cache"].CacheOptions(), "levanter.store.cache:CacheOptions"),
        (modules()["marin.resources"].CpuOnlyConfig(num_cpus=1), "marin.resources:CpuOnlyConfig"),
    ):
        given = written(light)
        assert (given["$translated"], given["class"], given["of"]) == ("tradewind.marin.translation:rebuilt", of, of)
    assert "$translated" in written(builder().find("levanter.models.llama.LlamaConfig")())
