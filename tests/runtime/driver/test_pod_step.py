"""A step on slices: preflight check before the reservation, recorded progress and recorded error."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driven import REPOSITORY, claim_step
from tradewind.records.attempts import Attempt, AttemptError, attempt_folder
from tradewind.runtime.driver.child import read_error, write_error
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.pod_step import devices_of, give_up_error, newest_progress, preflight_error
from tradewind.runtime.pods.budgets import Budgets, History, PodGivenUpError
from tradewind.runtime.pods.verdicts import Evidence, determine_incident
from tradewind.serialization.spec import StepSpec
from tradewind.steps import ExecutorStep, Hosts, TpuSlice, this_output_path


@dataclass(frozen=True)
class Config:
    output_path: Any
    batch_size: int = 8


def train(config: Config) -> None: ...


def check_batch(config: Config, devices: int) -> None:
    print(f"checked on {os.environ['JAX_PLATFORMS']} with {os.environ['TOKEN']}")
    if config.batch_size % devices:
        raise ValueError(f"batch_size={config.batch_size} is not a multiple of the {devices} devices.")


train.preflight = check_batch  # type: ignore[attr-defined]


def unchecked(config: Config) -> None: ...


def counts_slices(config: Config) -> None: ...


def refuse_several(config: Config, devices: int, num_slices: int) -> None:
    if num_slices > 1:
        raise ValueError(f"{devices} devices on {num_slices} slices")


counts_slices.preflight = refuse_several  # type: ignore[attr-defined]


def dies_in_its_check(config: Config) -> None: ...


dies_in_its_check.preflight = lambda config, devices: os.abort()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))


def claim(fn: Any, store: Path, resources: Any, **config: Any) -> tuple[Attempt, StepSpec]:
    attempt = claim_step(ExecutorStep("s", fn, Config(this_output_path(), **config), resources=resources), store)
    return attempt, StepSpec.from_json(attempt.spec)


def run_check(fn: Any, store: Path, resources: Any, **config: Any) -> AttemptError | None:
    attempt, spec = claim(fn, store, resources, **config)
    return preflight_error(attempt, spec, resources, {"TOKEN": "s3cret-token"}, LeaseDeadline())


@pytest.mark.slow
def test_config_check_refusal_keeps_message_of_check(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refused = run_check(train, tmp_path, TpuSlice("v4-16", (2, 4)), batch_size=24)
    assert refused is not None
    assert (refused.type, refused.message) == ("ValueError", "batch_size=24 is not a multiple of the 16 devices.")
    assert "check_batch" in refused.traceback
    assert "checked on cpu with s3cret-token" in capfd.readouterr().out


@pytest.mark.slow
def test_config_is_checked_for_smallest_pod(tmp_path: Path) -> None:
    refused = run_check(train, tmp_path, TpuSlice("v4-16", (4, 3)), batch_size=48)
    assert refused is not None and refused.message == "batch_size=48 is not a multiple of the 32 devices."
    refused = run_check(counts_slices, tmp_path, TpuSlice("v4-16", (3, 1)))
    assert refused is not None and refused.message == "24 devices on 3 slices"


@pytest.mark.slow
def test_config_accepted_when_check_passes_dies_or_is_absent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_check(train, tmp_path, TpuSlice("v4-16"), batch_size=24) is None
    for fn in (unchecked, counts_slices, dies_in_its_check):
        assert run_check(fn, tmp_path, Hosts(2)) is None
    assert capfd.readouterr().out.count("the check of the config died") == 1


@pytest.mark.parametrize(
    ("resources", "devices"),
    [
        (TpuSlice("v4-8"), 4),
        (TpuSlice("v6e-8"), 8),
        (TpuSlice("v4-16", num_slices=3), 24),
        (TpuSlice("v4-16", num_slices=(4, 2)), 16),
        (Hosts(3), 3),
        (Hosts(2, gpus=8), 16),
    ],
)
def test_devices_are_those_of_smallest_pod(resources: Any, devices: int) -> None:
    assert devices_of(resources) == devices


# ---- progress


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


RESUMABLE = ("checkpoints/**", "metrics.jsonl")


def test_progress_is_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    progress = lambda: newest_progress(str(tmp_path), RESUMABLE)  # noqa: E731
    assert progress() is None
    put(tmp_path, "checkpoints/step-20/metadata.json", "checkpoints/step-20/model/0", "other/step-999/metadata.json")
    assert progress() == "checkpoints/step-20"
    put(tmp_path, "metrics.jsonl", "checkpoints/step-120/model/0")  # an incomplete checkpoint
    assert progress() == "checkpoints/step-20"
    put(tmp_path, "checkpoints/step-120/metadata.json")
    assert progress() == "checkpoints/step-120"


def test_progress_uses_resumed_files_without_checkpoints(tmp_path: Path) -> None:
    put(tmp_path, "shards/part-9.parquet", "shards/part-10.parquet", "log.txt", ".attempts/1/timeline.json")
    assert newest_progress(str(tmp_path), ("shards/*.parquet",)) == "shards/part-10.parquet, 2 in all"
    assert newest_progress(str(tmp_path), ("**",)) == "shards/part-10.parquet, 3 in all"
    assert newest_progress(str(tmp_path), ()) is None


# ---- recorded error


def test_error_comes_only_from_last_restart(tmp_path: Path) -> None:
    for restart, rank in [(0, 0), (0, 1), (2, 1), (10, 1), (10, 0)]:
        write_error(str(tmp_path), 1, AttemptError("E", f"{restart}/{rank}", f"of {restart}"), rank, restart)
    put(Path(attempt_folder(str(tmp_path), 1)), "host-0.log", "timeline.json")

    def message(restart: int, printed: str | None = None) -> str | None:
        error = read_error(str(tmp_path), 1, restart, printed)
        return error and error.message

    assert (message(10), message(2), message(0), message(1)) == ("10/0", "2/1", "0/0", None)
    write_error(str(tmp_path), 1, AttemptError("E", "its own", "Traceback (most recent call last):\n  …\n"), 7, 10)
    assert message(10, "Traceback (most recent call last):\n") == "its own"
    assert message(10, "cut off") == "10/0"


def give_up_after(error: AttemptError | None, exit_code: int = 1) -> PodGivenUpError:
    fields = None if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}
    incident = determine_incident(Evidence(0, "slice-1", "v4-16", 2, exit_code=exit_code, error=fields))
    history = History().after(incident, 0.0).after(incident, 60.0)
    why = history.end(Budgets(max_failures=1))
    assert why is not None
    return PodGivenUpError(why, incident, history)


def test_given_up_attempt_records_function_error_and_history(tmp_path: Path) -> None:
    attempt, spec = claim(train, tmp_path, TpuSlice("v4-16"))
    raised = AttemptError("ValueError", "no such column", "Traceback …")
    write_error(spec.output_path, attempt.number, raised, rank=1, restart=1)
    error = give_up_error(give_up_after(raised), attempt, spec, 1)
    assert (error.type, error.traceback) == ("ValueError", raised.traceback)
    assert error.message.startswith(
        "no such column (It failed 2 times, and max_failures=1. 0 preemptions, 2 failures: "
    )


def test_given_up_attempt_without_error_records_incident(tmp_path: Path) -> None:
    attempt, spec = claim(train, tmp_path, TpuSlice("v4-16"))
    write_error(spec.output_path, attempt.number, AttemptError("ValueError", "of the first start"))
    error = give_up_error(give_up_after(None, exit_code=-9), attempt, spec, 0)
    assert (error.type, error.traceback) == ("PodGivenUpError", "")
    assert "It failed 2 times, and max_failures=1" in error.message and "SIGKILL" in error.message
