"""Choice of the function that runs on a cluster when a step names one of Marin's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import put
from tradewind.marin.names.steps import REPLACEMENTS, ReplacementFunction
from tradewind.runtime.driver import run_function
from tradewind.runtime.driver.run_function import _call
from tradewind.serialization.errors import FunctionImportError
from tradewind.serialization.references import Reference
from tradewind.serialization.spec import StepSpec, encode_resources
from tradewind.steps import Cpu, Resources, TpuSlice

THEIRS = "marin.working.work:work"
ON_ONE_CPU = Cpu()
DECODE = ReplacementFunction("tradewind.serialization.spec:decode")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a checkout importable; restore this process afterwards."""
    for package in ("", "working/"):
        put(tmp_path / f"marin/{package}__init__.py", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "marin"]:
        del sys.modules[name]


def spec_of(function: str, resources: Resources = ON_ONE_CPU) -> StepSpec:
    return StepSpec(
        "made", "made-123456", "/out", function, {"num_cpus": 0.1}, {"a": [1]}, encode_resources(resources), True
    )


def test_the_checkouts_runs_where_it_can_be_imported(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(checkout / "marin/working/work.py", "def work(config): ...\n")
    monkeypatch.setitem(REPLACEMENTS, THEIRS, DECODE)  # type: ignore[arg-type]
    told: list[str] = []
    assert spec_of(THEIRS).load_function(told.append).__module__ == "marin.working.work"
    assert told == ["marin.working.work:work runs from the checkout."]


def test_ours_runs_where_the_checkouts_needs_what_is_gone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(checkout / "marin/working/work.py", "from tradewind.steps import GoneSince\n")
    monkeypatch.setitem(REPLACEMENTS, THEIRS, DECODE)  # type: ignore[arg-type]
    tasks: list[object] = []
    told_of_task = run_function.call_and_await

    def noting(function: Any, args: Any, kwargs: Any, ray_task: Any, secrets: Any) -> Any:
        tasks.append(ray_task)
        return told_of_task(function, args, kwargs, None, secrets)

    monkeypatch.setattr(run_function, "call_and_await", noting)
    assert _call(spec_of(THEIRS)) == {"a": [1]}
    assert tasks == [None], "it runs in this process, and Ray is asked for nothing"
    assert capsys.readouterr().out.startswith(
        "marin.working.work:work is replaced by tradewind.serialization.spec:decode: it cannot be imported "
        "(ImportError: cannot import name 'GoneSince' from 'tradewind.steps'"
    )


def test_ours_runs_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REPLACEMENTS, "marin.nowhere:work", DECODE)  # type: ignore[arg-type]
    told: list[str] = []
    assert spec_of("marin.nowhere:work").load_function(told.append)({"a": 1}) == {"a": 1}
    assert "(ModuleNotFoundError: No module named 'marin" in told[0]


def test_training_and_the_results_of_a_speedrun_are_always_ours(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(checkout / "marin/working/work.py", "def work(config): ...\n")
    monkeypatch.setitem(REPLACEMENTS, THEIRS, ReplacementFunction(DECODE.name, always="it is so."))  # type: ignore[arg-type]
    told: list[str] = []
    assert spec_of(THEIRS, TpuSlice("v4-8")).load_function(told.append)({"a": 1}) == {"a": 1}
    assert told == [f"{THEIRS} is replaced by {DECODE.name}: it is so."]
    assert {name for name, ours in REPLACEMENTS.items() if ours.always} >= {
        "marin.training.training:run_levanter_train_lm", "marin.speedrun.speedrun:speedrun_results"
    }  # fmt: skip


def test_what_neither_has_is_the_steps_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FunctionImportError, match=r"'work' of module 'marin.nowhere' .* It is Marin's own and runs"):
        spec_of("marin.nowhere:work").load_function()
    monkeypatch.setitem(REPLACEMENTS, "marin.nowhere:work", ReplacementFunction("tradewind.nowhere.work:work"))  # type: ignore[arg-type]
    with pytest.raises(FunctionImportError, match="'work' of module 'marin.nowhere'"):
        spec_of("marin.nowhere:work").load_function()


def test_replacement_functions_load_and_resume_leftovers() -> None:
    for ours in REPLACEMENTS.values():
        assert callable(Reference.parse(ours.name).load())
        writes_one_file = ours.name.endswith(":report_marins_speedrun")
        assert ours.is_placed or writes_one_file or ours.resumable == ("**",)
