"""Looks after the TPU hosts of a cluster: what killed jobs left behind there is ended, and full disks are told.

A Ray job on the head does it. On a slice that nobody uses it takes all chips of each host first, so that nobody is
given them meanwhile, and whoever still holds them then is a leftover. In a slice that is in use nothing is touched.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.runtime.pods.nodes import Node, free_resources, live_nodes, unresponsive_nodes
from tradewind.runtime.pods.on_host import orphans
from tradewind.runtime.pods.process_env import Accelerator

ANSWER_S: Final = 60.0
"""For how long a host is waited for; a busy head may need some seconds to start a worker there."""
_CHIPS: Final = re.compile(r"TPU(-.*-head)?")


@dataclass(frozen=True)
class HostSweepResult:
    """What was found on one host, and done about it.

    Attributes:
        host: Its address.
        slice: The slice that it belongs to.
        use: ``free``, ``in use``, ``does not answer``, or ``gone`` if it is dead.
        free_disk_percent: Of its root disk; None if it did not answer.
        done: What was ended or removed, or would be in a dry run.
        problem: What a person should look at; empty if nothing.
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
    """Look after every TPU host of the cluster of this job; a table row for each, by slice and address.

    Args:
        dry_run: Only say what would be done.
        low_disk_percent: A disk with less free space than that is a problem.
        answer_s: For how long a host is waited for.
    """
    import ray

    ray.init(log_to_driver=False, ignore_reinit_error=True)
    hosts = [node for node in live_nodes() if node.chips]
    free, dead = free_slices(hosts, free_resources()), unresponsive_nodes(hosts)
    asked = [node for node in hosts if node.id not in dead]
    tasks = {node: _task(node, node.slice_name in free, dry_run, low_disk_percent) for node in asked}
    ready, late = ray.wait([*tasks.values()], num_returns=len(tasks), timeout=answer_s) if tasks else ([], [])
    for task in late:
        ray.cancel(task, force=True)
    answered = set(ready)
    found = [_answer(node, task) if task in answered else _silent(node, answer_s) for node, task in tasks.items()]
    found += [HostSweepResult(node.ip, node.slice_name or "", "gone") for node in hosts if node.id in dead]
    return [asdict(care) for care in sorted(found, key=lambda care: (care.slice, care.host))]


def free_slices(hosts: Sequence[Node], free: Mapping[str, Mapping[str, float]]) -> set[str]:
    """The slices of which nobody has taken anything on any host: neither chips, nor the slice by its head."""
    by_slice: dict[str, list[Node]] = defaultdict(list)
    for node in hosts:
        if node.slice_name:
            by_slice[node.slice_name].append(node)
    return {name for name, nodes in by_slice.items() if all(_is_unused(node, free.get(node.id, {})) for node in nodes)}


def _is_unused(node: Node, free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) == amount for name, amount in _chips_and_head(node).items())


def _chips_and_head(node: Node) -> dict[str, float]:
    """What stands for the host itself: ``TPU``, and ``TPU-v4-16-head`` on the first host of a slice."""
    return {name: amount for name, amount in node.resources.items() if _CHIPS.fullmatch(name)}


def _task(node: Node, is_free: bool, dry_run: bool, low_disk_percent: float) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node.id, soft=False)
    taken = _chips_and_head(node) if is_free else {}
    task = ray.remote(sweep_host).options(num_cpus=0, max_retries=0, scheduling_strategy=here, resources=taken)
    return task.remote(node.ip, node.slice_name or "", is_free, dry_run, low_disk_percent)


def _answer(node: Node, task: Any) -> HostSweepResult:
    import ray

    try:
        care: HostSweepResult = ray.get(task)
    except ray.exceptions.RayError:  # the host, or only its worker, died: the next sweep sees what is left
        return HostSweepResult(node.ip, node.slice_name or "", "gone")
    return care


def _silent(node: Node, answer_s: float) -> HostSweepResult:
    """Nothing started there: somebody was faster and has its chips now, or it is stuck."""
    if free_resources().get(node.id, {}).get("TPU", 0.0) < (node.chips or 0.0):
        return HostSweepResult(node.ip, node.slice_name or "", "in use")
    problem = f"Ray calls it alive, but no task has started there for {answer_s:.0f} s: look at its slice"
    return HostSweepResult(node.ip, node.slice_name or "", "does not answer", problem=problem)


# ---- on the host


def sweep_host(ip: str, slice_name: str, is_free: bool, dry_run: bool, low_disk_percent: float) -> HostSweepResult:
    """What there is on this host; what nobody can need any more goes, if the slice is free and no dry run."""
    done, problems = _clear(ip, dry_run) if is_free else ([], [])
    disk = shutil.disk_usage("/")
    free_percent = round(100 * disk.free / disk.total, 1)
    if free_percent < low_disk_percent:
        problems.append(f"{free_percent} % of the disk are free ({disk.free / 1e9:.1f} GB)")
    use = "free" if is_free else "in use"
    return HostSweepResult(ip, slice_name, use, free_percent, tuple(done), "; ".join(problems))


def _clear(ip: str, dry_run: bool) -> tuple[list[str], list[str]]:
    """What was, or would be, ended and removed; and what cannot be."""
    from tradewind.runtime.pods.on_host.host import accelerator

    has_chips = accelerator() is Accelerator.TPU
    left = {pid: _name(pid) for pid in orphans.find_orphans(ip, holds_chips=has_chips)}
    has_lockfile = has_chips and Path(orphans.LOCKFILE).exists()
    if dry_run:
        return [f"would end {name}" for name in left.values()] + ["would remove the lock file"] * has_lockfile, []
    if left:
        orphans.kill_orphans(ip, holds_chips=has_chips)
    stay = orphans.find_orphans(ip, holds_chips=has_chips) if left else []
    kept = orphans.remove_lockfile() if has_lockfile else None
    done = [f"ended {name}" for pid, name in left.items() if pid not in stay]
    done += ["removed the lock file"] * (has_lockfile and kept is None)
    problems = [f"{left[pid]} cannot be ended" for pid in stay if pid in left]
    return done, [*problems, *([kept] if kept else [])]


def _name(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        command = "gone"
    return f"process {pid} ({command})"
