"""Load DAG files as Airflow does; call their functions as a cluster without Airflow does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tradewind.serialization.callables import Call, describe_call
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.shipping import CALL_VARIABLE, decode_result, result_marker

REPOSITORY = Path(__file__).parents[2]
HERE = CodeFolder(REPOSITORY)
NO_AIRFLOW = Path(__file__).with_name("no_airflow")
MARKER = result_marker("job-1")


def load_dag_file(folder: Path, text: str, name: str = "nightly") -> ModuleType:
    """Load the file under a made-up module name, as Airflow does."""
    file = folder / f"{name}.py"
    file.write_text(text)
    made_up = f"unusual_prefix_{abs(hash((str(file), text))):x}_{name}"
    spec = importlib.util.spec_from_file_location(made_up, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[made_up] = module
    spec.loader.exec_module(module)
    return module


def run(call: Call, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program as a cluster without Airflow does, with ``folder`` as working directory."""
    env = {**os.environ, "PYTHONPATH": f"{NO_AIRFLOW}:{folder}", CALL_VARIABLE: call.to_json()}
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_callable"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def result_of(call: Call, folder: Path) -> Any:
    done = run(call, folder)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(MARKER)
    return decode_result(last.removeprefix(MARKER), "job-1")


def call_to(function: Any, *args: Any, code: CodeFolder = HERE, **kwargs: Any) -> Call:
    return Call.from_json(describe_call(function, args, kwargs, code, MARKER).to_json())
