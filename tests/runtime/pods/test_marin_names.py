"""Names of Marin's legacy API keep their behavior."""

import inspect

import pytest

from tradewind.runtime.pods.functions import (
    TpuPodConfig,
    remove_tpu_lockfile_on_exit,
    run_on_pod_multislice_resumable,
    run_on_pod_resumable,
)
from tradewind.runtime.pods.on_host import orphans
from tradewind.steps import TpuSlice


@pytest.fixture
def lockfile(tmp_path, monkeypatch):
    file = tmp_path / "libtpu_lockfile"
    file.touch()
    monkeypatch.setattr(orphans, "LOCKFILE", str(file))
    return file


def test_context_manager_removes_lock_file_after_error(lockfile):
    with pytest.raises(KeyError), remove_tpu_lockfile_on_exit():
        assert lockfile.exists()
        raise KeyError
    assert not lockfile.exists()


def test_a_decorated_function_removes_the_lock_file_afterwards(lockfile):
    @remove_tpu_lockfile_on_exit
    def train(steps, *, rate):
        """Trains."""
        return steps, rate, lockfile.exists()

    assert train(2, rate=0.1) == (2, 0.1, True)
    assert not lockfile.exists()
    assert train.__doc__ == "Trains."
    assert train(2, rate=0.1) == (2, 0.1, False)  # the lock file is already gone


def test_a_tpu_pod_config_is_a_slice():
    assert TpuPodConfig("v4-128") == TpuSlice("v4-128")
    assert TpuPodConfig(tpu_type="v4-16", slice_count=[1, 4, 2]) == TpuSlice("v4-16", num_slices=(4, 2, 1))


@pytest.mark.parametrize("function", [run_on_pod_resumable, run_on_pod_multislice_resumable])
def test_the_budgets_have_marins_names_and_sizes(function):
    defaults = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    assert defaults["max_retries_preemption"] == 1_000_000
    assert defaults["max_retries_failure"] == 10
