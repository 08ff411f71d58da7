"""A function on every host of a slice: results, errors, and refusal before the reservation."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading

import pytest

from tests.support.shared_clusters import shared_cluster
from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError
from tradewind.runtime import TpuPodConfig
from tradewind.runtime.pods.functions import (
    remove_tpu_lockfile_on_exit,
    run_on_pod,
    run_on_pod_multislice_resumable,
    run_on_pod_resumable,
)
from tradewind.runtime.pods.on_host import orphans
from tradewind.steps import ExecutorStep, ExperimentError, Hosts, TpuSlice, remote


def nothing():
    return None


class RayFunction:
    remote = None

    def __call__(self):
        return None


@pytest.mark.parametrize(
    ("fn", "slice", "options", "named"),
    [
        (nothing, "v4-8", {"num_slices": 0}, "num_slices=0"),
        (nothing, "v4-8", {"num_slices": []}, r"num_slices=\[\]"),
        (nothing, "v4-8", {"max_preemptions": -1}, "max_preemptions=-1"),
        (nothing, TpuSlice("v4-8"), {"max_failures": 1.5}, "max_failures=1.5"),
        (nothing, Hosts(2), {"num_slices": 2}, "num_slices=2.*set its count"),
        ("train", "v4-8", {}, "fn='train'"),
        (RayFunction(), "v4-8", {}, r"an actor, a class or \.options"),
        (RayFunction, "v4-8", {}, "plain or under @ray.remote"),
        (remote(runtime_env={"pip": ["scipy"]})(nothing), "v4-8", {}, r"fn=<.*: its runtime_env has pip, but"),
        (nothing, TpuPodConfig("v4-8", runtime_env={"working_dir": "."}), {}, r"slice=TpuPodConfig.*has working_dir"),
        (nothing, 8, {}, "slice=8.*a TpuPodConfig"),
        (nothing, "v4-8", {"env": {"A": 1}}, r"env=...\): env_vars must map names to texts"),
        (remote(runtime_env="pip.txt")(nothing), "v4-8", {}, r"fn=<.*\): runtime_env='pip.txt' is no"),
        (threading.Lock().acquire, "v4-8", {}, "cannot be pickled"),
    ],
)
def test_invalid_argument_is_refused_before_ray_starts(fn, slice, options, named):
    with pytest.raises(ValueError, match=named):
        run_on_pod(fn, slice, **options)


def test_unknown_slice_type_is_refused_before_ray_starts():
    with pytest.raises(UnknownSliceTypeError, match="v4-16"):
        run_on_pod(nothing, "v4-17")


DRIVER = """
import json, os, sys
from functools import partial
from pathlib import Path
import ray
from tradewind.runtime import PodGivenUpError, TpuPodConfig, run_on_pod, run_on_pod_resumable

ray.init(log_to_driver=False)
marks = Path(sys.argv[1])

def who(given):
    return int(os.environ["TRADEWIND_PROCESS_ID"]), [os.environ[name] for name in ("A", "B", "C")], given

def fails_once():
    if os.environ["TRADEWIND_PROCESS_ID"] == "0" and not (marks / "failed").exists():
        (marks / "failed").touch()
        raise ValueError("the first time")
    return os.environ["TRADEWIND_RESTARTS"]

def always_fails():
    if os.environ["TRADEWIND_PROCESS_ID"] == "1":
        raise KeyError("lr")
    import threading
    threading.Event().wait()

pod = TpuPodConfig("v4-16").with_env_vars(A="of the slice", B="of the slice", C="of the slice")
task = ray.remote(max_calls=1, runtime_env={"env_vars": {"B": "of $HOME", "C": "of the function"}})(who)
report = {"who": run_on_pod(partial(task, str(marks)), pod, env={"C": "of the call"})}
report["fails_once"] = run_on_pod_resumable(fails_once, "v4-16", max_retries_failure=1)
try:
    run_on_pod(always_fails, "v4-16")
except PodGivenUpError as error:
    report["message"], report["traceback"] = str(error), error.incident.traceback
    report["host"], report["failures"] = error.incident.host, error.history.failures
(marks / "report.json").write_text(json.dumps(report))
"""


@pytest.mark.ray
def test_pod_functions_return_results_and_raise_errors(tmp_path):
    address = shared_cluster("pods").gcs_address
    env = {**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    marks = tmp_path / "marks"
    marks.mkdir()
    done = subprocess.run([sys.executable, "-c", DRIVER, str(marks)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((marks / "report.json").read_text())
    variables = ["of the slice", "of $HOME", "of the call"]
    assert report["who"] == [[rank, variables, str(marks)] for rank in (0, 1)]
    assert report["fails_once"] == ["1", "1"]
    assert "raised KeyError: 'lr'" in report["message"] and "same traceback" in report["message"]
    assert (report["host"], report["failures"]) == (1, 2)
    assert "in always_fails" in report["traceback"] and "call_function" not in report["traceback"]


PUBLIC = """
import sys
import tradewind.runtime
names = {name: getattr(tradewind.runtime, name) for name in tradewind.runtime.__all__}
assert names["run_on_pod"].__module__ == "tradewind.runtime.pods.functions"
assert not hasattr(tradewind.runtime, "anything")
print(sorted({"ray", "jax", "airflow"} & set(sys.modules)))
"""


def test_public_names_import_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", PUBLIC], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# ---- legacy API


@pytest.fixture
def lockfile(tmp_path, monkeypatch):
    file = tmp_path / "libtpu_lockfile"
    file.touch()
    monkeypatch.setattr(orphans, "LOCKFILE", str(file))
    return file


def test_lock_file_is_removed_after_block_or_function(lockfile):
    with pytest.raises(KeyError), remove_tpu_lockfile_on_exit():
        assert lockfile.exists()
        raise KeyError
    assert not lockfile.exists()

    @remove_tpu_lockfile_on_exit
    def train(steps, *, rate):
        """Trains."""
        return steps, rate, lockfile.exists()

    assert train(2, rate=0.1) == (2, 0.1, False)  # the lock file is already gone
    lockfile.touch()
    assert train(2, rate=0.1) == (2, 0.1, True)
    assert not lockfile.exists() and train.__doc__ == "Trains."


def test_step_runs_on_slices_of_tpu_pod_config():
    def step(**pod):
        return ExecutorStep("s", None, None, resources=TpuPodConfig(**pod))

    assert step(tpu_type="v4-128").resources == TpuSlice("v4-128")
    assert step(tpu_type="v4-16", slice_count=[1, 4, 2]).resources == TpuSlice("v4-16", num_slices=(4, 2, 1))
    with pytest.raises(ExperimentError, match=r"'s': resources=TpuPodConfig\(runtime_env=...\) has no effect"):
        step(tpu_type="v4-8", runtime_env={"env_vars": {"A": "b"}})


@pytest.mark.parametrize("function", [run_on_pod_resumable, run_on_pod_multislice_resumable])
def test_budgets_have_names_and_sizes_of_marin(function):
    defaults = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    assert defaults["max_retries_preemption"] == 1_000_000
    assert defaults["max_retries_failure"] == 10
