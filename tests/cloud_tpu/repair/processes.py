"""Run single repair passes, each in its own process.

Run as ``python -m tests.cloud_tpu.repair.processes URL FOLDER``.

For each line ``STEP SIGNAL`` on standard input, the process forks a child. The child makes one pass, one slice at a
time, and sends itself the signal at that step. A step is just before or after a file replacement, a file removal or a
request. The parent prints ``stopped PID`` or ``ended STATUS``; a status below zero is the signal that killed the child.

No check protects a process that freezes between its last check and its DELETE request: the API cannot make a deletion
conditional on the node's identity. So this step does not count for SIGSTOP.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import requests.adapters

from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import RepairLock, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope

HOLD_S, STALE_S = 0.4, 0.6
LABELS = {"cluster": "one"}


def main() -> None:
    """Serve lines until every writer has closed standard input."""
    url, folder = sys.argv[1:]
    TpuApi("rehearsal", "us-central2-b", endpoint=url).nodes()  # loads all modules before the forks
    print("ready", flush=True)
    for line in sys.stdin:
        step, name = line.split()
        pid = os.fork()
        if pid == 0:
            _one_pass(url, folder, int(step), signal.Signals[name])
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            print(f"stopped {pid}", flush=True)
            _, status = os.waitpid(pid, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def _one_pass(url: str, folder: str, step: int, what: signal.Signals) -> None:
    count, counting = itertools.count(1), threading.Lock()

    def reach() -> None:
        with counting:
            number = next(count)
        if number == step:
            signal.pthread_kill(threading.get_ident(), what)  # to this thread, which then stops at once

    def is_unguarded(*paths: Any) -> bool:
        """Skip steps that write the repair lock: on a local disk, a process frozen there blocks all others."""
        return what is signal.SIGKILL or not any(os.path.basename(str(path)).startswith("turn") for path in paths)

    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, _around(getattr(os, name), reach, is_unguarded, is_unguarded))
    adapter = requests.adapters.HTTPAdapter

    def counts_before(_: Any, request: Any) -> bool:
        return what is signal.SIGKILL or request.method != "DELETE"

    adapter.send = _around(adapter.send, reach, counts_before)  # type: ignore[method-assign]
    api = TpuApi(
        "rehearsal", "us-central2-b", endpoint=url, poll_s=0.01, retry_timeout_s=5.0, sleep=lambda _: time.sleep(0.01)
    )

    def hosts() -> dict[str, int]:
        return {node.name: node.hosts or 0 for node in api.nodes() if node.state == "READY"}

    settings = RepairSettings(start_grace_s=0.0, host_grace_s=0.0, stock_out_pause_s=0.1)
    lock = RepairLock(f"{folder}/turn", hold_s=HOLD_S, stale_s=STALE_S)
    try:
        SliceRepair(api, hosts, Scope(labels=LABELS), SliceRecords(folder), settings, lock=lock).run_once()
    finally:
        os._exit(0)


def _around(
    call: Callable[..., Any],
    reach: Callable[[], None],
    counts: Callable[..., bool],
    is_after_too: Callable[..., bool] = lambda *_: True,
) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        if counts(*args):
            reach()
        answer = call(*args, **options)
        if is_after_too(*args):
            reach()
        return answer

    return wrapped


if __name__ == "__main__":
    main()
