"""Sweep the TPU hosts of a cluster: kill leftovers of killed jobs and report full disks.

A Ray job on the head runs it. On a free slice it reserves all chips of each host first, so that Ray gives them to no
other job meanwhile; a process that still holds chips then is an orphan. It changes nothing on a slice in use.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.runtime.pods.nodes import Node, free_resources, live_nodes, unresponsive_nodes
from tradewind.runtime.pods.on_host import orphans
from tradewind.runtime.pods.process_env import Accelerator

ANSWER_S: Final = 60.0
"""How long to wait for a host; a busy head may need some seconds to start a worker there."""
_CHIPS: Final = re.compile(r"TPU(-.*-head)?")


@dataclass(frozen=True)
class HostSweepResult:
    """State of one host, and what the sweep did.

    Attributes:
        host: Its address.
        slice: The slice that it belongs to.
        use: ``free``, ``in use``, ``does not answer``, or ``gone`` if it is dead.
        free_disk_percent: Of its root disk; None if it did not answer.
        done: What the sweep ended or removed, or would in a dry run.
        problem: What a user should look at; empty if nothing.
    """

    host: str
    slice: str
    use: str
    free_disk_percent: float | None = None
    done: tuple[str, ...] = ()
    problem: str = ""


def sweep_hosts(
    *, dry_run: bool = False, low_disk_percent: float = 5.0, answer_s: float = ANSWER_S
) -> list[dict[str, Any]]:
    """Sweep every TPU host of this job's cluster; return a table row for each, by slice and address.

    Args:
        dry_run: Only report what the sweep would do.
        low_disk_percent: A disk with less free space is a problem.
        answer_s: How long to wait for a host.
    """
    import ray

    ray.init(log_to_driver=False, ignore_reinit_error=True)
    hosts = [node for node in live_nodes() if node.chips]
    free, dead = free_slices(hosts, free_resources()), unresponsive_nodes(hosts)
    responsive = [node for node in hosts if node.id not in dead]
    tasks = {node: _task(node, node.slice_name in free, dry_run, low_disk_percent) for node in responsive}
    ready, late = ray.wait([*tasks.values()], num_returns=len(tasks), timeout=answer_s) if tasks else ([], [])
    for task in late:
        ray.cancel(task, force=True)
    answered = set(ready)
    results = [_result(node, task) if task in answered else _no_answer(node, answer_s) for node, task in tasks.items()]
    results += [HostSweepResult(node.ip, node.slice_name or "", "gone") for node in hosts if node.id in dead]
    return [asdict(result) for result in sorted(results, key=lambda result: (result.slice, result.host))]


def free_slices(hosts: Sequence[Node], free: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return the slices of which all chips and the head resource are free on all hosts."""
    in_use = {
        node.slice_name
        for node in hosts
        for name, amount in _chips_and_head(node).items()
        if free.get(node.id, {}).get(name, 0.0) != amount
    }
    return {node.slice_name for node in hosts if node.slice_name and node.slice_name not in in_use}


def _chips_and_head(node: Node) -> dict[str, float]:
    """Return the resources of the host's chips: ``TPU``, and ``TPU-v4-16-head`` on the first host of a slice."""
    return {name: amount for name, amount in node.resources.items() if _CHIPS.fullmatch(name)}


def _task(node: Node, is_free: bool, dry_run: bool, low_disk_percent: float) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node.id, soft=False)
    taken = _chips_and_head(node) if is_free else {}
    task = ray.remote(sweep_host).options(num_cpus=0, max_retries=0, scheduling_strategy=here, resources=taken)
    return task.remote(node.ip, node.slice_name or "", is_free, dry_run, low_disk_percent)


def _result(node: Node, task: Any) -> HostSweepResult:
    import ray

    try:
        result: HostSweepResult = ray.get(task)
    except ray.exceptions.RayError:  # the host, or only its worker, died: the next sweep sees what is left
        return HostSweepResult(node.ip, node.slice_name or "", "gone")
    return result


def _no_answer(node: Node, answer_s: float) -> HostSweepResult:
    """Return the result of a host where no task started: another job took its chips first, or it is stuck."""
    if free_resources().get(node.id, {}).get("TPU", 0.0) < (node.chips or 0.0):
        return HostSweepResult(node.ip, node.slice_name or "", "in use")
    problem = f"Ray calls it alive, but no task has started there for {answer_s:.0f} s: look at its slice"
    return HostSweepResult(node.ip, node.slice_name or "", "does not answer", problem=problem)


# ---- on the host


def sweep_host(ip: str, slice_name: str, is_free: bool, dry_run: bool, low_disk_percent: float) -> HostSweepResult:
    """Report the state of this host; on a free slice, also kill orphans, unless this is a dry run."""
    done, problems = _clear(ip, dry_run) if is_free else ([], [])
    disk = shutil.disk_usage("/")
    free_percent = round(100 * disk.free / disk.total, 1)
    if free_percent < low_disk_percent:
        problems.append(f"{free_percent} % of the disk are free ({disk.free / 1e9:.1f} GB)")
    use = "free" if is_free else "in use"
    return HostSweepResult(ip, slice_name, use, free_percent, tuple(done), "; ".join(problems))


def _clear(ip: str, dry_run: bool) -> tuple[list[str], list[str]]:
    """Return what the sweep ended and removed, or would; and the problems."""
    from tradewind.runtime.pods.on_host.host import accelerator

    has_chips = accelerator() is Accelerator.TPU
    names = {pid: _name(pid) for pid in orphans.find_orphans(ip, holds_chips=has_chips)}
    has_lockfile = has_chips and Path(orphans.LOCKFILE).exists()
    if dry_run:
        return [f"would end {name}" for name in names.values()] + ["would remove the lock file"] * has_lockfile, []
    if names:
        orphans.kill_orphans(ip, holds_chips=has_chips)
    survivors = orphans.find_orphans(ip, holds_chips=has_chips) if names else []
    lockfile_problem = orphans.remove_lockfile() if has_lockfile else None
    done = [f"ended {name}" for pid, name in names.items() if pid not in survivors]
    done += ["removed the lock file"] * (has_lockfile and lockfile_problem is None)
    problems = [f"{names[pid]} cannot be ended" for pid in survivors if pid in names]
    return done, [*problems, *([lockfile_problem] if lockfile_problem else [])]


def _name(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        command = "gone"
    return f"process {pid} ({command})"
