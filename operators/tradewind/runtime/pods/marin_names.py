"""Marin's names for what ``run_on_pod`` does, so that a file that uses them needs its import lines changed only.

The differences are those of the machinery, and listed in the documentation: a pod that is given up raises
``PodGivenUpError``, whose ``incident`` has the function's traceback, in place of the function's own exception.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar, overload

from tradewind.runtime.pods.functions import run_on_pod
from tradewind.runtime.pods.on_host.strays import remove_lockfile
from tradewind.steps import TpuSlice

P = ParamSpec("P")
R = TypeVar("R")


def run_on_pod_resumable(
    fn: Callable[[], Any],
    tpu_type: str,
    max_retries_preemption: int = 1_000_000,
    max_retries_failure: int = 10,
) -> list[Any]:
    """Run ``fn`` on every host of one slice until it has returned on all of them; see ``run_on_pod``."""
    return run_on_pod_multislice_resumable(fn, tpu_type, 1, max_retries_preemption, max_retries_failure)


def run_on_pod_multislice_resumable(
    fn: Callable[[], Any],
    tpu_type: str,
    num_slices: int | Sequence[int],
    max_retries_preemption: int = 1_000_000,
    max_retries_failure: int = 10,
) -> list[Any]:
    """The same on several slices; a list of numbers makes it flexible."""
    return run_on_pod(
        fn,
        tpu_type,
        num_slices=num_slices,
        max_preemptions=max_retries_preemption,
        max_failures=max_retries_failure,
    )


def TpuPodConfig(tpu_type: str, slice_count: int | Sequence[int] = 1) -> TpuSlice:
    """The resources of a training on TPUs, as Marin's experiments name them."""
    return TpuSlice(tpu_type, num_slices=slice_count if isinstance(slice_count, int) else tuple(slice_count))


@overload
def remove_tpu_lockfile_on_exit(fn: None = None) -> AbstractContextManager[None]: ...
@overload
def remove_tpu_lockfile_on_exit(fn: Callable[P, R]) -> Callable[P, R]: ...
def remove_tpu_lockfile_on_exit(
    fn: Callable[P, R] | None = None,
) -> AbstractContextManager[None] | Callable[P, R]:
    """Remove libtpu's lock file afterwards: ``with remove_tpu_lockfile_on_exit():``, or as a decorator.

    The pod runner does so before each start, so only code that uses the chips in a process of its own needs this.
    """
    if fn is None:
        return _without_lockfile_afterwards()

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _without_lockfile_afterwards():
            return fn(*args, **kwargs)

    return wrapped


@contextmanager
def _without_lockfile_afterwards() -> Iterator[None]:
    try:
        yield
    finally:
        remove_lockfile()
