"""The experiment's file has E20's fields, and each experiment has one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tradewind.records.info_files import step_info, write_experiment_info, write_step_info
from tradewind.steps import ExecutorStep, resolve, this_output_path, versioned
from tradewind.storage.files import read_text


@dataclass(frozen=True)
class Config:
    size: Any
    output_path: Any = this_output_path()
    transform: Any = len


class Named:
    """An object whose only text is its address."""


def infos(prefix: str, size: int = 1, **config: Any) -> list[dict[str, Any]]:
    step = ExecutorStep("made", None, Config(versioned(size), **config))
    resolved = resolve([step], prefix).of(step)
    write_step_info(resolved, "pipeline.make")
    return [step_info(resolved, "pipeline.make")]


def test_info_file_has_marin_fields_and_steps_equal_to_records(tmp_path: Path) -> None:
    steps = infos(str(tmp_path))
    path = write_experiment_info(str(tmp_path), "nightly", steps, "/repo/dags/nightly.py", "c0ffee")
    written = json.loads(Path(path).read_text())
    assert [*written] == ["worker_id", "git_commit", "caller_path", "created_date", "user", "prefix", "steps"]
    known = {"git_commit": "c0ffee", "caller_path": "/repo/dags/nightly.py", "prefix": str(tmp_path)}
    assert known.items() <= written.items()
    [step] = written["steps"]
    assert step == json.loads(Path(step["output_path"], ".executor_info").read_text())
    assert step["fn_name"] == "pipeline.make"


def test_same_experiment_writes_one_file_naming_first_run(local_prefix: str) -> None:
    prefix = local_prefix
    first = write_experiment_info(prefix, "nightly", infos(prefix), "here.py", "aaa")
    second = write_experiment_info(prefix, "nightly", infos(prefix), "elsewhere.py", None)
    other = write_experiment_info(prefix, "nightly", infos(prefix, size=2), "here.py", "aaa")
    assert first == second != other
    assert first.startswith(f"{prefix}/experiments/nightly-") and len(first.rpartition("-")[2]) == len("abcdef.json")
    assert json.loads(read_text(first) or "")["git_commit"] == "aaa"


HASHED = """
import functools, sys
from tests.records.test_experiment_info import Config, Named, infos
from tradewind.records.info_files import write_experiment_info
steps = infos(sys.argv[1], transform=[infos, functools.partial(infos, "x"), Named(), Config(1).__eq__, len])
print(write_experiment_info(sys.argv[1], "nightly", steps, "here.py", None))
"""


@pytest.mark.slow
def test_info_path_stable_across_processes_with_functions(tmp_path: Path) -> None:
    def path_in_process(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", HASHED, str(tmp_path)]
        root = Path(__file__).parents[2]
        return subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    path = path_in_process("1")
    assert path_in_process("2") == path
    config = json.loads(Path(path).read_text())["steps"][0]["config"]
    assert config["transform"][0] == "tests.records.test_experiment_info.infos"
    assert config["transform"][4] == "builtins.len"
