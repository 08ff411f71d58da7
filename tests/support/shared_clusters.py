"""Ray clusters that several files share: one of each kind per process, until its scope's last test.

The files of a kind are one scope (``scheduling.SHARED``), so one process runs them in sequence. Each job has its own
submission ID. A test that changes the cluster itself starts a separate one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import pytest

from tests.support.scheduling import scope_of
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

TOKEN: Final = "t0ken-of-the-test-0123456789abcdef"
NODE_SECRET: Final = "s3cr3t-of-the-node"
REPOSITORY: Final = str(Path(__file__).parents[2])
POD_SLICES: Final = (LocalSlice("a", "v4-16"), LocalSlice("b", "v4-16"), LocalSlice("single", "v4-8"))
TWO_SLICES: Final = (LocalSlice("a", "v4-8"), LocalSlice("b", "v4-8"))

KINDS: Final[dict[str, Callable[[LocalStack], LocalRay]]] = {
    "open": lambda stack: LocalRay(stack, token="", num_cpus=2, env={"ON_THE_NODE": NODE_SECRET}),
    "guarded": lambda stack: LocalRay(stack, token=TOKEN, num_cpus=2),
    "pods": lambda stack: LocalRay(stack, token="", num_cpus=8, slices=POD_SLICES, env={"MEGASCALE_SLICE_ID": "1"}),
    "slices": lambda stack: LocalRay(stack, token="", num_cpus=2, slices=TWO_SLICES, env={"PYTHONPATH": REPOSITORY}),
}
_started: Final[dict[str, tuple[LocalRay, Path]]] = {}


def shared_cluster(kind: str) -> LocalRay:
    """Return the running cluster of this kind; start it if this process has none."""
    if kind not in _started:
        root = Path(tempfile.mkdtemp(prefix=f"tradewind-{kind}-"))
        ray = KINDS[kind](LocalStack(root))
        ray.start()
        _started[kind] = ray, root
    return _started[kind][0]


def stop_shared_clusters() -> None:
    while _started:
        ray, root = _started.popitem()[1]
        ray.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Stop the clusters after the last test of their scope, once pytest has torn down its fixtures."""
    try:
        yield
    finally:
        if nextitem is None or scope_of(nextitem.nodeid) != scope_of(item.nodeid):
            stop_shared_clusters()


def pytest_unconfigure() -> None:
    """Stop the clusters that an interrupted run has left."""
    stop_shared_clusters()
