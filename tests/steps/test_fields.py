"""Rules for a config's fields: values they accept, values they refuse, and placeholders they defer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest

from tradewind import ExecutorStep, lazy, mirrored, night, output_path_of, run_param, this_output_path, versioned
from tradewind.steps import ParseTimeValues, RunValues, StepConfigError, resolve
from tradewind.steps.fields import (
    FLAG,
    PATH,
    SOME_TEXT,
    TEXT,
    TEXTS,
    FieldRule,
    check_fields,
    instance,
    integer,
    number,
    one_of,
)

RAW = ExecutorStep("raw", None, {})


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (integer(1), [1, 2**63 - 1], [0, -3, "1", 1.0, True, None, 2**63, 10**5000]),
        (integer(), [0, -7], ["0", 0.5]),
        (integer(1).or_none(), [None, 3], [0, "3"]),
        (number(above=0, below=1), [0.5, 1e-9], [0, 1, -3, "0.5", True, math.nan, math.inf, 10**400]),
        (number(minimum=0), [0, 0.1], [-0.1, math.inf, [1]]),
        (PATH, ["gs://b", PurePosixPath("a")], ["", None, 5, ["a"], b"a"]),
        (PATH, [RAW, RAW / "a", output_path_of(RAW), this_output_path(), mirrored("a")], []),
        (PATH.or_none(), [None, "a"], [""]),
        (TEXT, ["", "a"], [None, 5]),
        (SOME_TEXT, ["a"], ["", 5]),
        (TEXTS, [[], ["a"], ("a", run_param("tag"))], ["a", [5], None]),
        (FLAG, [True, False], ["no", 0, None]),
        (one_of(["tiny", "small"]), ["tiny"], ["huge", ["tiny"], None]),
        (instance("a mapping", dict), [{}], [[], "{}"]),
    ],
)
def test_rule_accepts_what_fits_plain_or_versioned(rule: FieldRule, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        rule.check("field", value)
    for value in [*(value for value in good if isinstance(value, (int, float))), run_param("x")]:
        rule.check("field", versioned(value))
    for value in bad:
        for given in (value, versioned(value)):
            with pytest.raises(ValueError, match=r"(?s)^field=.*: give .*\.$"):
                rule.check("field", given)


@pytest.mark.parametrize("rule", [integer(1), number(above=0), PATH, TEXT, TEXTS, FLAG, one_of(["a"])])
@pytest.mark.parametrize("value", [run_param("x"), night(), lazy("module:make")])
def test_value_known_later_passes_every_rule(rule: FieldRule, value: Any) -> None:
    rule.check("field", value)
    rule.check("field", versioned(value))


@pytest.mark.parametrize("value", [RAW, output_path_of(RAW), this_output_path(), mirrored("a")])
def test_path_known_later_is_no_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^steps=.*: give a whole number of at least 1\.$"):
        integer(1).check("steps", value)


@dataclass(frozen=True)
class Config:
    steps: Any
    output_path: Any = this_output_path()

    def __post_init__(self) -> None:
        check_fields(self, steps=integer(1), output_path=PATH)


def test_run_value_is_checked_once_the_run_has_it() -> None:
    step = ExecutorStep("s", None, Config(versioned(run_param("n"))))
    resolve([step], "/p", ParseTimeValues(frozenset({"n"})))
    assert resolve([step], "/p", RunValues(params={"n": 3})).of(step).config.steps == 3
    with pytest.raises(StepConfigError, match=r"Step 's': config \(Config\): steps='3': give a whole number"):
        resolve([step], "/p", RunValues(params={"n": "3"}))
