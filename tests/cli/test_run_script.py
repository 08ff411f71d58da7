"""An experiment file run as a script: the same steps and records, and one clear sentence for each bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
from dataclasses import dataclass
from typing import Any
from tradewind import ExecutorStep, InputName, executor_main, output_path_of, run_param, this_output_path, versioned

@dataclass(frozen=True)
class Config:
    value: Any = None
    source: Any = None
    output_path: Any = None

def work(config):
    print("working on", config.value)
    if config.value == "bad":
        raise RuntimeError("this value is bad")
    return {"value": config.value}
"""


def run(folder: Path, body: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = folder / "experiment.py"
    script.write_text(HEAD + body)
    clean = {key: value for key, value in os.environ.items() if key not in ("TRADEWIND_PREFIX", "MARIN_PREFIX")}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, check=False)


TWO_STEPS = """
first = ExecutorStep("first", work, Config(versioned("one"), None, this_output_path()))
executor_main([ExecutorStep("second", work, Config(versioned("two"), output_path_of(first), this_output_path()))])
"""


def outputs(store: Path) -> dict[str, str]:
    return {path.parent.name.rpartition("-")[0]: path.read_text() for path in store.glob("*/.artifact.json")}


def test_steps_run_in_order_and_are_reused_the_second_time(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run(tmp_path, TWO_STEPS, "--prefix", str(store))
    assert first.returncode == 0, first.stderr
    assert first.stdout.index("working on one") < first.stdout.index("working on two")
    assert outputs(store) == {"first": '{"value": "one"}', "second": '{"value": "two"}'}
    second = run(tmp_path, TWO_STEPS, TRADEWIND_PREFIX=str(store))
    assert second.returncode == 0
    assert "2 steps: 2 REUSE" in second.stdout
    assert "working" not in second.stdout


def test_a_dry_run_only_plans(tmp_path: Path) -> None:
    done = run(tmp_path, TWO_STEPS, "--prefix", str(tmp_path / "store"), "--dry_run", "true")
    assert "2 steps: 2 RUN" in done.stdout
    assert not (tmp_path / "store").exists()


def test_a_failed_step_ends_the_script_and_runs_again_next_time(tmp_path: Path) -> None:
    body = 'executor_main([ExecutorStep("s", work, Config(versioned("bad")))])'
    for attempt in ("1", "2"):
        done = run(tmp_path, body, "--prefix", str(tmp_path / "store"))
        assert done.returncode == 1
        assert f"attempt {attempt}:" in done.stdout
        assert "Step 's' failed: RuntimeError: this value is bad" in done.stdout
    status = next((tmp_path / "store").glob("s-*/.executor_status"))
    assert status.read_text() == "FAILED"


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ('executor_main([ExecutorStep("s", work, Config(versioned(run_param("lr"))))])', 1, "Step 's': config.value"),
        (
            'executor_main([ExecutorStep("s", work, Config(versioned(work)))])',
            1,
            "Step 's': config.value is the function",
        ),
        ('executor_main([ExecutorStep("s", lambda c: 1, Config())])', 1, "Step 's': '<lambda>' cannot be imported"),
        (
            'executor_main([ExecutorStep("s", work, Config(InputName.hardcoded("o")), override_output_path="o")])',
            1,
            "Step 's' reads its own output: config.value",
        ),
        (
            'executor_main([ExecutorStep(n, work, Config(), override_output_path="o") for n in ("s", "t")])',
            1,
            "Steps 's' (version",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path: Path, body: str, code: int, message: str) -> None:
    done = run(tmp_path, body, "--prefix", str(tmp_path / "store"))
    assert done.returncode == code
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_a_relative_prefix_is_below_where_the_script_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(tmp_path, TWO_STEPS, "--prefix", "store").returncode == 0
    assert outputs(tmp_path / "elsewhere" / "store").keys() == {"first", "second"}
    done = run(tmp_path, TWO_STEPS, TRADEWIND_PREFIX="store")
    assert done.returncode == 2
    assert "is a relative path" in " ".join(done.stderr.split())


def test_a_missing_prefix_is_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, TWO_STEPS)
    assert done.returncode == 2
    assert "nothing says where outputs go: give --prefix, or set TRADEWIND_PREFIX" in done.stderr
