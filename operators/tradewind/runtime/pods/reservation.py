"""A slice is reserved as a whole or not at all, and given back when the block ends, however it ends.

Two rules come from measured hazards of ``ray.util.tpu``. Every bundle carries the pod type as a label selector, or a
request for one v4-8 host could land on a host of a v4-16 slice. And the head reservation is held as long as the slice
itself: released earlier, another driver's reservation can land on the busy slice and wait there for ever.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.tpu import SlicePlacementGroup, slice_placement_group

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.runtime.pod_env import POD_TYPE_LABEL, waiting_text

_SAY_EVERY_SECONDS: Final = 60.0


class NoFreeSliceError(RuntimeError):
    """No slice became free within the time that was given."""


class _Attempt:
    """The reservation, made in a thread because Ray blocks until the slice's first host is free."""

    def __init__(self, shape: SliceType, timeout_s: float | None) -> None:
        self._shape = shape
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._given_up = False
        self.done = threading.Event()
        self.placement: SlicePlacementGroup | None = None
        self.error: Exception | None = None
        threading.Thread(target=self._run, daemon=True, name="reserve-slice").start()

    def give_up(self) -> None:
        """Give the slice back now, or as soon as the thread gets it."""
        with self._lock:
            self._given_up = True
            if self.placement is not None:
                self.placement.shutdown()

    def _run(self) -> None:
        try:
            self._reserve()
        except Exception as problem:
            self.error = problem
        finally:
            self.done.set()

    def _reserve(self) -> None:
        shape = self._shape
        placement = slice_placement_group(
            topology=shape.topology,
            accelerator_version=shape.generation,
            chips_per_vm=shape.chips_per_host,
            head_reservation_timeout_s=self._left(),
            bundle_label_selector=[{POD_TYPE_LABEL: shape.name}] * shape.hosts,
        )
        with self._lock:
            self.placement = placement
            if self._given_up:
                placement.shutdown()
                return
        group = placement.placement_group
        assert group is not None
        while not group.wait(timeout_seconds=min(5.0, self._left() or 5.0)):
            if self._given_up:
                return
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise TimeoutError

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


@contextmanager
def reserved_slice(shape: SliceType, timeout_s: float | None, say: Callable[[str], None]) -> Iterator[PlacementGroup]:
    """One slice of this shape, for the length of the block. Raises NoFreeSliceError after ``timeout_s``."""
    if shape.topology is None:
        raise ValueError(f"Ray cannot reserve a {shape.name} slice: ray.util.tpu knows no topology for it.")
    started = time.monotonic()
    attempt = _Attempt(shape, timeout_s)
    try:
        say(waiting_text(shape.name, 0, _live_hosts()))
        while not attempt.done.wait(_SAY_EVERY_SECONDS):
            say(waiting_text(shape.name, time.monotonic() - started, _live_hosts()))
        if isinstance(attempt.error, TimeoutError):
            raise NoFreeSliceError(f"No {shape.name} slice was free within {timeout_s:.0f} s.")
        if attempt.error is not None:
            raise attempt.error
        assert attempt.placement is not None and attempt.placement.placement_group is not None
        say(f"reserved a {shape.name} slice after {time.monotonic() - started:.1f} s")
        yield attempt.placement.placement_group
    finally:
        attempt.give_up()


def _live_hosts() -> Counter[str]:
    labels = (node.get("Labels") or {} for node in ray.nodes() if node.get("Alive"))
    return Counter(pod_type for each in labels if (pod_type := each.get(POD_TYPE_LABEL)))
