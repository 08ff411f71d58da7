"""Tradewind refuses an experiment whose steps would write into each other's outputs, before any run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.records.test_found_files import work
from tradewind import experiment_dag
from tradewind.plans.output_locations import ExperimentError, check_output_places
from tradewind.steps import ExecutorStep, resolve
from tradewind.storage import Roots


def two(first: str, second: str, *, reads: bool = False) -> list[ExecutorStep]:
    outer = ExecutorStep("outer", work, {"version": 1}, override_output_path=first)
    config = {"reads": outer} if reads else {"version": 2}
    return [outer, ExecutorStep("inner", work, config, override_output_path=second)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x", "./x"), ("a/b", "a//b"), ("a/b", "a/./b/."), ("/data/x", "file:///data/x"), ("gs://b/x", "gcs://b/x"),
        ("s3://b/x/", "s3a://b//x"), ("x", "x/y"), ("x", "x/deep/er"), ("x/y", "./x"), ("gs://b/x", "gcs://b/x/y"),
    ],
)  # fmt: skip
def test_steps_with_same_or_nested_output_are_an_import_error(first: str, second: str) -> None:
    with pytest.raises(ExperimentError, match=r"'outer'.*'inner'|'inner'.*'outer'"):
        experiment_dag("both", two(first, second))


def test_plan_detects_link_between_two_outputs(tmp_path: Path) -> None:
    (tmp_path / "store" / "x").mkdir(parents=True)
    (tmp_path / "store" / "link").symlink_to("x")
    for second in ("link", "link/y"):
        steps = resolve(two("x", second), str(tmp_path / "store")).steps
        with pytest.raises(ExperimentError, match="'outer'"):
            check_output_places(steps, str(tmp_path / "store"), Roots)


def test_sibling_outputs_and_output_within_its_input_are_valid() -> None:
    experiment_dag("neighbours", two("x", "xy/x"))
    experiment_dag("within", two("x", "x/y", reads=True))
    experiment_dag("long", two("x" * 300, "y"))  # valid in a bucket, and the DAG file does not know the prefix
