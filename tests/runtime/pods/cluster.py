"""Helpers for tests of pods on real Ray: host programs, pods in a thread, and drivers."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from tests.runtime.marked import marked
from tests.support.waiting import limit_s, until
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.runtime.pods.capacity.slices import HostGroup
from tradewind.runtime.pods.timeline import Timeline, TimelineEvent

MARK = "POD_TEST"


@contextmanager
def driver_on(cluster: LocalRay) -> Iterator[None]:
    """Connect this process to the cluster's head as a Ray driver."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        ray.init(
            address=cluster.gcs_address,
            _node_ip_address=cluster.gcs_address.partition(":")[0],
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield
        ray.shutdown()


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-u", "-c", code, *arguments]


class RunningPod:
    """``run_pod`` in a thread of this process."""

    running: ClassVar[list[RunningPod]] = []

    def __init__(self, command: Sequence[str], group: str | HostGroup, mark: str = "", **options: Any) -> None:
        self.timeline = options.pop("timeline", None) or Timeline(None)
        self.mark = mark
        self.error: BaseException | None = None
        options["env"] = {MARK: mark, **options.get("env", {})}
        wanted = HostGroup.of_slice(group) if isinstance(group, str) else group
        self._thread = threading.Thread(target=self._run, args=(command, wanted, options), daemon=True)
        self._thread.start()
        self.running.append(self)

    def _run(self, command: Sequence[str], group: HostGroup, options: dict[str, Any]) -> None:
        from tradewind.runtime.pods.runner import run_pod

        try:
            run_pod(command, group, timeline=self.timeline, **options)
        except BaseException as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> BaseException | None:
        self._thread.join(limit_s())
        assert not self._thread.is_alive(), f"The pod runs on: {self.timeline.events}"
        return self.error

    def stop(self) -> None:
        """Interrupt the pod as a driver does on a stop request; a finished pod does not change."""
        ident = self._thread.ident
        assert ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))
        self._thread.join(limit_s())
        assert not self._thread.is_alive()

    def events(self, name: str) -> list[TimelineEvent]:
        return [event for event in self.timeline.events if event.name == name]

    def processes(self, *command: str) -> list[psutil.Process]:
        """Return the pod's live processes without guards, limited to command lines with this prefix."""
        return [one for one in marked(MARK, self.mark) if _runs(one, command)]

    def wait_for(self, event: str, count: int = 1) -> list[TimelineEvent]:
        def reached() -> list[TimelineEvent]:
            found = self.events(event)
            assert self._thread.is_alive() or len(found) >= count, f"The pod is over: {self.error!r}"
            return found if len(found) >= count else []

        return until(reached, f"{count} times {event!r}")


def _runs(process: psutil.Process, command: Sequence[str]) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return words[: len(command)] == list(command) and not any("process_guard" in word for word in words)


def printed_envs(folder: Path, count: int, name: str = "host-{}.log") -> list[dict[str, str]]:
    """Return the output of ``PRINT_ENV`` in each of ``count`` hosts' logs."""
    logs = [(folder / name.format(rank)).read_text().splitlines() for rank in range(count)]
    return [json.loads(next(line for line in log if line.startswith("ENV "))[4:]) for log in logs]


PRINT_ENV = """
import json, os, sys
names = ("TRADEWIND_", "TPU_WORKER_ID", "TPU_NAME", "MEGASCALE_", "JAX_", "OMP_", "CUDA_", "GIVEN")
print("ENV", json.dumps({"pid": os.getpid(), **{k: v for k, v in os.environ.items() if k.startswith(names)}}))
"""
STAYS_ONCE = (
    PRINT_ENV
    + """
import time
from tradewind.runtime.pods.on_host.heartbeat import beat
beat(0)
if os.environ["TRADEWIND_RESTARTS"] == "0":
    time.sleep(600)
"""
)
"""The first start runs until it is lost; the second start exits normally."""
PSUM = """
import os
import jax
jax.distributed.initialize(
    os.environ["TRADEWIND_COORDINATOR"],
    int(os.environ["TRADEWIND_NUM_PROCESSES"]),
    int(os.environ["TRADEWIND_PROCESS_ID"]),
)
import jax.numpy as jnp
mine = jnp.array([10.0 ** jax.process_index()])
total = jax.pmap(lambda x: jax.lax.psum(x, "hosts"), axis_name="hosts")(mine)
print(f"PSUM {jax.process_index()} of {jax.process_count()} on {jax.default_backend()}: {float(total[0])}")
"""
ONE_RAISES = """
import os, sys, time
print("host", os.environ["TRADEWIND_PROCESS_ID"], "says hello")
if os.environ["TRADEWIND_PROCESS_ID"] == sys.argv[1]:
    time.sleep(2)
    raise ValueError("it is wrong")
time.sleep(600)
"""
FIRST_SLICE_FAILS = """
import os, sys
try:
    with open(sys.argv[1], "x") as file:
        file.write(os.environ["TPU_NAME"])
except FileExistsError:
    pass
if os.environ["TPU_NAME"] in (open(sys.argv[1]).read(), ""):
    raise RuntimeError("no chip answers")
"""
SAVES_AND_RAISES = """
import os, sys
from tradewind.runtime.pods.on_host.heartbeat import saved
restarts = os.environ["TRADEWIND_RESTARTS"]
if restarts in sys.argv[1:]:
    saved(10 * (1 + int(restarts)))
raise ValueError("it is wrong")
"""
BEATS = """
import itertools, time
from tradewind.runtime.pods.on_host.heartbeat import beat
for step in itertools.count():
    beat(step)
    time.sleep(0.1)
"""
SAVES_ON_NOTICE = """
import os, sys, time
from tradewind.runtime import preemption_notice
print("up")
while preemption_notice() is None:
    if os.environ["TRADEWIND_NUM_SLICES"] in sys.argv[1:]:
        raise SystemExit(0)
    time.sleep(0.05)
print("saved")
raise SystemExit(76)
"""
"""Exits with 0 on as many slices as its argument says."""
WORKERS_WAIT = """
import os, sys, time
while any("default_worker" in one for one in sys.orig_argv) and os.path.exists(os.environ["WORKERS_WAIT_WHILE"]):
    time.sleep(0.1)
"""
"""A ``sitecustomize`` that delays the start of Ray's workers while a file exists."""
WAIT_FOR = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
DRIVER = """
import json, logging, sys
import ray
from tradewind.runtime.pods.capacity.slices import HostGroup
from tradewind.runtime.pods.runner import run_pod
address, command, slice_type, env = json.loads(sys.argv[1])
ip = address.partition(":")[0]
ray.init(address=address, _node_ip_address=ip, log_to_driver=False, logging_level=logging.ERROR)
run_pod(command, HostGroup.of_slice(slice_type), env=env)
"""


def start_driver(cluster: LocalRay, command: list[str], slice_type: str, mark: str) -> subprocess.Popen[bytes]:
    """Start a driver in its own process, so that its death affects no other test."""
    given = json.dumps([cluster.gcs_address, command, slice_type, {MARK: mark}])
    return subprocess.Popen([sys.executable, "-c", DRIVER, given], env={**os.environ, "RAY_AUTH_MODE": "disabled"})


def drain(cluster: LocalRay, node_id: str, seconds: float) -> None:
    """Ask Ray to drain the node, with a preemption as the reason."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    deadline = int((time.time() + seconds) * 1000)
    GcsClient(address=cluster.gcs_address).drain_node(node_id, reason, "a test", deadline)
