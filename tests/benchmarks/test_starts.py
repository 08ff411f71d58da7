"""Every benchmark runs at its smallest size and refuses an unknown part before it measures."""

from __future__ import annotations

import logging
import runpy
import subprocess
import sys

import pytest

from tests.fleet.fleets import REPOSITORY

JOBS = "--providers ours --parts latency lines"
STARTS = {
    "benchmarks": ("", ["plain+root", "lattice 1,000", "reuse: a run"]),
    "benchmarks.fleet": ("", ["repair: one round", "jobs lost", "update-configs"]),
    "benchmarks.jobs": (JOBS, ["jobs: goals"]),
    "benchmarks.plans": ("", [" 100 get, 100 read\n", "one bare call", "a check in each task, gs"]),
    "benchmarks.pods": ("", ["detection of a lost slice", "overhead of the runner"]),
    "benchmarks.train": ("", ["4 files, beside huggingface_hub", "100 finished files", "steps, beside"]),
}


@pytest.mark.long
@pytest.mark.airflow
@pytest.mark.ray
@pytest.mark.parametrize("module", STARTS)
def test_benchmark_prints_its_figures_at_the_smallest_size(module: str) -> None:
    options, figures = STARTS[module]
    command = [sys.executable, "-m", module, "--quick", *options.split()]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode == 0 and all(figure in ended.stdout for figure in figures), ended.stdout + ended.stderr


@pytest.mark.parametrize("module", STARTS)
def test_unknown_part_is_refused_by_every_benchmark(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "sprase"])
    with pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__")
    logging.disable(logging.NOTSET)
    assert "there is no part sprase; there are " in capsys.readouterr().err
