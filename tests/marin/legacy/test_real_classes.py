"""The light classes describe themselves as the real ones did, which wrote ``real_classes.json``."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.marin.legacy.classes import Builder
from tradewind.marin.legacy.table import module_rows

REAL = json.loads((Path(__file__).parent / "real_classes.json").read_text())
CLASSES: dict[str, dict[str, Any]] = REAL["classes"]
SIZES: dict[str, list[dict[str, Any]]] = REAL["sizes"]
VOCAB = 128256
ONLY_ON_DEVICES = {("levanter.trainer.TrainerConfig", "EvalBatch")}
"""Axes whose length is a number of devices; light classes refuse them."""


@pytest.fixture(scope="module")
def made() -> Builder:
    return Builder(module_rows())


def having(fact: str) -> list[str]:
    return sorted(name for name, facts in CLASSES.items() if fact in facts)


def test_nearly_every_class_of_the_tables_was_compared() -> None:
    in_tables = {f"{module}.{name}" for module, row in module_rows().items() for name in row.classes}
    uncompared = {name for name in in_tables - set(CLASSES) if name.startswith(("levanter.", "haliax."))}
    assert uncompared == {
        "levanter.inference.openai.InferenceRequest",
        "levanter.inference.openai.InferenceResponse",
        "levanter.inference.openai.InferenceServerConfig",
        "levanter.main.inference_repl.InferenceReplConfig",
    }
    assert (len(having("fields")), len(having("text")), len(having("members"))) == (149, 75, 7)


def test_fields_have_the_order_of_the_real_class(made: Builder) -> None:
    def facts_of(name: str) -> tuple[str, bool]:
        light = made.find(name)
        fields = " ".join(spec.name + ("*" if spec.kw_only else "") for spec in dataclasses.fields(light))
        return fields, light.__dataclass_params__.frozen

    real = {name: (CLASSES[name]["fields"], CLASSES[name]["frozen"]) for name in having("fields")}
    assert {name: facts_of(name) for name in real} == real


def test_defaults_have_the_text_of_the_real_ones(made: Builder) -> None:
    real = {name: CLASSES[name]["text"] for name in having("text")}
    assert {name: repr(made.find(name)()) for name in real} == real


def test_axes_are_called_and_sized_as_the_real_ones(made: Builder) -> None:
    real = {
        name: {axis: text for axis, text in CLASSES[name]["axes"].items() if (name, axis) not in ONLY_ON_DEVICES}
        for name in having("axes")
    }
    configs = {name: made.find(name)() for name, axes in real.items() if axes}
    assert configs
    for name, config in configs.items():
        assert (name, {axis: repr(getattr(config, axis)) for axis in real[name]}) == (name, real[name])


def test_members_of_enums_look_like_the_real_ones(made: Builder) -> None:
    for name in having("members"):
        members = made.find(name)
        assert issubclass(members, enum.Enum), name
        shown = [[member.name, repr(member), str(member)] for member in members]
        assert (name, shown) == (name, CLASSES[name]["members"])


def test_registries_know_the_real_choices(made: Builder) -> None:
    real = {name: CLASSES[name]["choices"] for name in having("choices")}
    known = {name: made.find(name).get_known_choices() for name in real}
    assert {
        name: {key: f"{choice.__module__}.{choice.__qualname__}" for key, choice in choices.items()}
        for name, choices in known.items()
    } == real


def test_models_cost_and_weigh_what_the_real_ones_do(made: Builder, subtests: pytest.Subtests) -> None:
    for name, row in [(each, row) for each in sorted(SIZES) for row in SIZES[each]]:
        with subtests.test(f"{name} {row['given']}"):
            model = made.find(name)(**row["given"])
            for method in ("flops_per_token", "total_trainable_params"):
                if row[method] == "TypeError":
                    with pytest.raises(TypeError):
                        getattr(model, method)(VOCAB)
                else:
                    assert (method, repr(getattr(model, method)(VOCAB))) == (method, repr(row[method]))
            if "attention" in row:
                assert repr(model) == row["text"]
                assert repr(model.attention_config()) == row["attention"]
