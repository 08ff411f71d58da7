"""A function on every host of a slice: results, errors, and refusal before the reservation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from tests.support.shared_clusters import shared_cluster
from tradewind.cloud_tpu.slice_types import UnknownSliceTypeError
from tradewind.runtime.pods.functions import run_on_pod
from tradewind.steps import Hosts, TpuSlice


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
        (RayFunction(), "v4-8", {}, "give the plain function"),
        (threading.Lock().acquire, "v4-8", {}, "cannot be pickled"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_ray_is_asked(fn, slice, options, named):
    with pytest.raises(ValueError, match=named):
        run_on_pod(fn, slice, **options)


def test_an_unknown_slice_type_is_refused_before_ray_is_asked():
    with pytest.raises(UnknownSliceTypeError, match="v4-16"):
        run_on_pod(nothing, "v4-17")


DRIVER = """
import json, os, sys
from pathlib import Path
import ray
from tradewind.runtime.pods.budgets import PodGivenUpError
from tradewind.runtime.pods.functions import run_on_pod
from tradewind.runtime.pods.functions import run_on_pod_resumable

ray.init(log_to_driver=False)
marks = Path(sys.argv[1])

def who():
    return int(os.environ["TRADEWIND_PROCESS_ID"]), os.environ["GIVEN"], str(marks)

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

told = {"who": run_on_pod(who, "v4-16", env={"GIVEN": "value"})}
told["fails_once"] = run_on_pod_resumable(fails_once, "v4-16", max_retries_failure=1)
try:
    run_on_pod(always_fails, "v4-16")
except PodGivenUpError as error:
    told["message"], told["traceback"] = str(error), error.incident.traceback
    told["host"], told["failures"] = error.incident.host, error.history.failures
(marks / "told.json").write_text(json.dumps(told))
"""


@pytest.mark.ray
def test_results_come_back_and_errors_are_told(tmp_path):
    address = shared_cluster("pods").gcs_address
    env = {**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    marks = tmp_path / "marks"
    marks.mkdir()
    done = subprocess.run([sys.executable, "-c", DRIVER, str(marks)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((marks / "told.json").read_text())
    assert told["who"] == [[rank, "value", str(marks)] for rank in (0, 1)]
    assert told["fails_once"] == ["1", "1"]
    assert "raised KeyError: 'lr'" in told["message"] and "same traceback" in told["message"]
    assert (told["host"], told["failures"]) == (1, 2)
    assert "in always_fails" in told["traceback"] and "call_function" not in told["traceback"]


PUBLIC = """
import sys
import tradewind.runtime
names = {name: getattr(tradewind.runtime, name) for name in tradewind.runtime.__all__}
assert names["run_on_pod"].__module__ == "tradewind.runtime.pods.functions"
assert not hasattr(tradewind.runtime, "anything")
print(sorted({"ray", "jax", "airflow"} & set(sys.modules)))
"""


def test_the_public_names_load_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", PUBLIC], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
