"""Requirements of Marin's own ``test_step_runner.py``, for the parts that Tradewind has."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import parts
from tests.acceptance.parts import CODE, Config, calls, ran, run, step
from tradewind.local.run import ExperimentFailedError
from tradewind.local.step import FunctionFailedError, LocalStepFailedError
from tradewind.serialization.spec import encode_resources, step_spec
from tradewind.steps import Cpu, ExecutorStep, TpuSlice, output_path_of, remote, resolve, this_output_path, versioned

pytestmark = pytest.mark.slow


@remote(num_cpus=4, resources={"head": 1})
def with_options(config: Config) -> None: ...


@remote
def without_options(config: Config) -> None: ...


def spec_of(wanted: ExecutorStep) -> Any:
    return step_spec(resolve([wanted], "/p").of(wanted), CODE)


def artifact(output: str) -> Path:
    return Path(output, ".artifact.json")


def test_remote_options_hold_unless_step_names_resources() -> None:
    options = spec_of(step("a", with_options))
    assert options.ray_task == {"num_cpus": 4, "resources": {"head": 1}}
    assert options.resources == encode_resources(Cpu())
    assert [spec_of(step("a", fn)).ray_task for fn in (without_options, parts.work)] == [{}, None]
    explicit = dataclasses.replace(step("a", with_options), resources=TpuSlice("v4-8"))
    assert spec_of(explicit).load_resources() == TpuSlice("v4-8")


def test_returned_artifact_is_saved_with_nested_dataclass(store: Path, log: str) -> None:
    steps = [step("typed", parts.report), step("untyped", n=7, log=log), step("none", parts.note, log=log)]
    paths = run(steps, store)
    saved = [json.loads(artifact(paths[each]).read_text()) for each in steps]
    assert saved == [{"name": "accuracy", "score": {"value": 0.5}}, {"n": 7}, None]


def chain(log: str) -> list[ExecutorStep]:
    first = step("first", n=1, log=log)
    second = step("second", n=2, log=log, input_path=output_path_of(first))
    return [first, second, step("third", n=3, log=log, input_path=output_path_of(second))]


def test_a_pipeline_runs_in_order_and_finished_steps_are_skipped(store: Path, log: str) -> None:
    """The run adds inputs of terminal steps, ignores their given order, and works with one step at a time."""
    first, second, third = chain(log)
    paths = run([third, first], store, max_concurrent=1)
    assert ran(log) == [1, 2, 3]
    written = {path: artifact(path).stat().st_mtime_ns for path in paths.values()}

    run([first, second, third], store)
    assert ran(log) == [1, 2, 3]
    assert written == {path: artifact(path).stat().st_mtime_ns for path in written}

    fourth = step("fourth", n=4, log=log, input_path=output_path_of(second))
    run([fourth], store)
    assert ran(log) == [1, 2, 3, 4], "what it depends on is found"


def test_a_dry_run_creates_no_folder(store: Path, log: str, capsys: pytest.CaptureFixture[str]) -> None:
    paths = run(chain(log), store, dry_run=True, caller="pipeline.py")
    assert len(paths) == 3
    assert "3 RUN" in capsys.readouterr().out
    assert not store.exists()


def test_failure_names_causes_and_stops_only_readers(store: Path, log: str) -> None:
    bad = step("bad", parts.fail_until_allowed, n="bad", log=log)
    reader = step("reader", n="reader", log=log, input_path=output_path_of(bad))
    last = step("last", n="last", log=log, input_path=output_path_of(reader))
    other = step("other", n="other", log=log)
    with pytest.raises(ExperimentFailedError, match=r"^1 step\(s\) failed: bad-") as caught:
        run([last, other], store)
    assert sorted(ran(log)) == ["bad", "other"]
    failed = caught.value.__cause__
    assert isinstance(failed, LocalStepFailedError) and str(failed).startswith("Step failed: bad-")
    original = failed.__cause__
    assert isinstance(original, FunctionFailedError) and str(original) == "ValueError: not allowed yet"
    assert "in fail_until_allowed" in original.__notes__[0]


def test_dead_driver_fails_step_without_delaying_next_run(store: Path, log: str) -> None:
    kill = ExecutorStep("kill", parts.kill_the_driver, Config(None, this_output_path(), versioned(1), None, log))
    for attempt in (1, 2):
        with pytest.raises(ExperimentFailedError) as caught:
            run([kill], store)
        assert "its driver ended with signal SIGKILL" in str(caught.value.__cause__)
        assert len(calls(log)) == attempt
