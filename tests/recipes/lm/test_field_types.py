"""Checks of a Levanter config refuse values that do not fit their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

import pytest

from tradewind.recipes.lm.field_types import check_values


class Kind(StrEnum):
    LINE = "line"


@dataclass
class Inner:
    """Stands for a trainer config of Levanter."""

    num_train_steps: int = 10
    per_device_parallelism: int = -1
    sizes: int | list[Any] = 4
    lengths: list[int] = field(default_factory=list)
    save_interval: timedelta | None = None


@dataclass
class Outer:
    """Stands for a training config of Levanter."""

    trainer: Inner = field(default_factory=Inner)
    rate: float = 1e-3
    most: float = float("inf")
    seed: int | None = None
    flag: bool = False
    begin: bool | str = False
    shuffle: bool | Inner = True
    pack: Literal["pad"] | None = None
    kind: Kind | str = Kind.LINE
    weights: dict[str, float] | list[tuple[int, dict[str, float]]] | None = None
    pairs: Sequence[tuple[int, int]] = ()
    parts: Mapping[str, Inner] = field(default_factory=dict)
    z_loss_weight: float = 0.0


def inner(**fields: Any) -> Inner:
    """Return a config with these unchecked values."""
    return Inner(**fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rate": float("nan")}, "rate=nan: give a number."),
        ({"rate": 10**400}, "rate=1000"),
        ({"rate": "1e-3"}, "rate='1e-3': give a number."),
        ({"rate": True}, "rate=True: give a number."),
        ({"seed": 1.5}, "seed=1.5: give a whole number or None."),
        ({"flag": "no"}, "flag='no': give True or False."),
        ({"begin": 3}, "begin=3: give True or False or a text."),
        ({"pack": "all"}, "pack='all': give Literal['pad'] or None."),
        ({"weights": {"a": float("nan")}}, "weights={'a': nan}: give dict[str, float] or list["),
        ({"weights": [(0, {"a": "1"})]}, "weights=[(0, {'a': '1'})]: give dict[str, float] or list["),
        ({"z_loss_weight": -1}, "z_loss_weight=-1: give at least 0."),
        ({"trainer": Inner(num_train_steps=0)}, "trainer.num_train_steps=0: give at least 1."),
        ({"trainer": inner(num_train_steps=float("inf"))}, "trainer.num_train_steps=inf: give a whole number."),
        ({"trainer": Inner(per_device_parallelism=0)}, "trainer.per_device_parallelism=0: give at least 1, or -1."),
        ({"trainer": inner(sizes=4.0)}, "trainer.sizes=4.0: give a whole number or list["),
        ({"trainer": inner(lengths=["x"])}, "trainer.lengths=['x']: give list[int]."),
        ({"parts": {"web": inner(lengths=3)}}, "parts['web'].lengths=3: give list[int]."),
    ],
)
def test_value_of_wrong_type_refused_with_path(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_values(Outer(**fields))
    assert str(refused.value).startswith(f"train_config.{sentence}")


def test_valid_values_and_unknown_classes_pass() -> None:
    check_values(Outer())
    check_values(
        Outer(
            trainer=Inner(1, 4, [object()], [1, 2], timedelta(seconds=1)),
            rate=1,
            seed=-3,
            begin="a/b",
            shuffle=Inner(),
            pack="pad",
            kind="line",
            weights=[(0, {"a": 1}), (8, {"a": 0.5})],
            pairs=[(1, 2), (3, 4)],
            parts={"web": Inner()},
        )
    )
