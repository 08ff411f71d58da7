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
ALWAYS_DECODE = ReplacementFunction(DECODE.name, always="it is so.")


def replace_function(monkeypatch: pytest.MonkeyPatch, name: str, ours: ReplacementFunction) -> None:
    monkeypatch.setitem(REPLACEMENTS, name, ours)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("ours", "module", "message"),
    [
        (DECODE, "marin.working.work", "runs from the checkout."),
        (
            ReplacementFunction(DECODE.name, always="it is so."),
            "tradewind.serialization.spec",
            f"is replaced by {DECODE.name}: it is so.",
        ),
    ],
)
def test_importable_checkout_function_runs_unless_replaced(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, ours: ReplacementFunction, module: str, message: str
) -> None:
    put(checkout / "marin/working/work.py", "def work(config): ...\n")
    replace_function(monkeypatch, THEIRS, ours)
    messages: list[str] = []
    assert spec_of(THEIRS, TpuSlice("v4-8")).load_function(messages.append).__module__ == module
    assert messages == [f"{THEIRS} {message}"]


def test_replacement_runs_where_checkout_import_fails(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(checkout / "marin/working/work.py", "from tradewind.steps import GoneSince\n")
    replace_function(monkeypatch, THEIRS, DECODE)
    tasks: list[object] = []
    call_and_await = run_function.call_and_await

    def noting(function: Any, args: Any, kwargs: Any, ray_task: Any, secrets: Any) -> Any:
        tasks.append(ray_task)
        return call_and_await(function, args, kwargs, None, secrets)

    monkeypatch.setattr(run_function, "call_and_await", noting)
    assert _call(spec_of(THEIRS)) == {"a": [1]}
    assert tasks == [None], "it runs in this process, without a Ray task"
    assert capsys.readouterr().out.startswith(
        "marin.working.work:work is replaced by tradewind.serialization.spec:decode: it cannot be imported "
        "(ImportError: cannot import name 'GoneSince' from 'tradewind.steps'"
    )


def test_replacement_runs_without_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_function(monkeypatch, "marin.nowhere:work", DECODE)
    messages: list[str] = []
    assert spec_of("marin.nowhere:work").load_function(messages.append)({"a": 1}) == {"a": 1}
    assert "(ModuleNotFoundError: No module named 'marin" in messages[0]


def test_function_that_neither_has_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FunctionImportError, match=r"'work' of module 'marin.nowhere' .* It is Marin's own and runs"):
        spec_of("marin.nowhere:work").load_function()
    replace_function(monkeypatch, "marin.nowhere:work", ReplacementFunction("tradewind.nowhere.work:work"))
    with pytest.raises(FunctionImportError, match="'work' of module 'marin.nowhere'"):
        spec_of("marin.nowhere:work").load_function()


def test_replacement_functions_load_and_resume_leftovers() -> None:
    assert {name for name, ours in REPLACEMENTS.items() if ours.always} >= {
        "marin.training.training:run_levanter_train_lm", "marin.speedrun.speedrun:speedrun_results"
    }  # fmt: skip
    for ours in REPLACEMENTS.values():
        assert callable(Reference.parse(ours.name).load())
        writes_one_file = ours.name.endswith(":report_marins_speedrun")
        assert ours.is_placed or writes_one_file or ours.resumable == ("**",)
