"""Run a Python function on every host of a pod and return its results, one per host.

The driver sends the pickled function to each host, which sends its result back, without a store or a shared file
system. Nothing heavy is imported before a call, since files that Airflow parses may name these functions.

The lower part has Marin's names for ``run_on_pod``, which a Marin file finds on a cluster where it imports them. The
documentation lists the differences: a pod that gives up raises ``PodGivenUpError`` instead of the function's own
exception, and its ``incident`` has the function's traceback.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar, overload

from tradewind.runtime.pods.on_host.orphans import remove_lockfile
from tradewind.serialization.references import uses_legacy_names
from tradewind.steps import Hosts, TpuSlice, plain_function, slices_of, task_options
from tradewind.text import truncated_repr

P = ParamSpec("P")
R = TypeVar("R")


def run_on_pod(
    fn: Callable[[], Any],
    slice: Any,
    *,
    num_slices: int | Sequence[int] | None = None,
    max_preemptions: int | None = None,
    max_failures: int | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call ``fn`` on every host at once, again after each loss, until all have returned.

    Args:
        fn: Takes no arguments. It and what it returns are pickled. Of a function under ``@ray.remote``, the variables
            of its ``runtime_env`` count, and its amounts do not: it has the whole host.
        slice: A slice type such as ``"v4-16"``, a step's resources, or a ``TpuPodConfig``.
        num_slices: How many slices; a list means as many of them as there are. 1 unless ``slice`` sets it.
        max_preemptions: How often the pod continues after a lost slice; 1,000,000 unless ``slice`` sets it.
        max_failures: How often it continues after a failure; 10 unless ``slice`` sets it.
        env: Further variables of the processes, before those of a ``runtime_env``.

    Returns:
        The results of ``fn``, slice by slice, in the order of the hosts.

    Raises:
        ValueError: The slice type, a number, or the function is invalid; raised before any reservation.
        PodGivenUpError: A budget is used up, or the same failure came twice.
    """
    from tradewind.runtime.pods.budgets import Budgets
    from tradewind.runtime.pods.capacity.slices import HostGroup
    from tradewind.runtime.pods.nodes import Stall
    from tradewind.runtime.pods.runner import run_pod

    wanted = _resources(
        slice, {"num_slices": num_slices, "max_preemptions": max_preemptions, "max_failures": max_failures}
    )
    decorated = fn.func if isinstance(fn, functools.partial) else fn
    env = {
        **_variables(getattr(slice, "runtime_env", None), f"slice={type(slice).__name__}(...)"),
        **_variables(task_options(decorated).get("runtime_env"), f"fn={truncated_repr(fn)}"),
        **_variables({"env_vars": env}, "env=..."),
    }
    results = run_pod(
        [sys.executable, "-u", "-m", "tradewind.runtime.pods.on_host.call_function"],
        HostGroup.of(wanted),
        num_slices=wanted.num_slices if isinstance(wanted, TpuSlice) else 1,
        budgets=Budgets(wanted.max_preemptions, wanted.max_failures),
        stall=Stall(wanted.frozen_s, wanted.stall_limit_s),
        env=env,
        call=pickle_call(fn),
        spare=wanted.spare if isinstance(wanted, TpuSlice) else None,
    )
    return [pickle.loads(result) for result in results]


def _resources(slice: str | TpuSlice | Hosts, given: Mapping[str, Any]) -> TpuSlice | Hosts:
    """Return the resources, with the fields that were given separately."""
    wanted = TpuSlice(slice) if isinstance(slice, str) else slices_of(slice) or slice
    if not isinstance(wanted, TpuSlice | Hosts):
        raise ValueError(
            f"run_on_pod(slice={truncated_repr(slice)}): give a slice type such as 'v4-16', a TpuSlice, Hosts or a "
            "TpuPodConfig."
        )
    changes = {name: value for name, value in given.items() if value is not None}
    if isinstance(wanted, Hosts) and "num_slices" in changes:
        raise ValueError(f"num_slices={changes['num_slices']!r}: Hosts has no slices; set its count instead.")
    return dataclasses.replace(wanted, **changes)


def _variables(runtime_env: Mapping[str, Any] | None, of: str) -> dict[str, str]:
    """Return the variables of a ``runtime_env``; refuse its other parts, which are a job's."""
    if not isinstance(runtime_env or {}, Mapping):
        raise ValueError(f"run_on_pod({of}): runtime_env={truncated_repr(runtime_env)} is no dictionary.")
    given = {str(name): value for name, value in (runtime_env or {}).items() if value}
    variables = given.pop("env_vars", {})
    others = sorted(name for name in given if name != "config" and not name.startswith("_"))
    if others:
        raise ValueError(
            f"run_on_pod({of}): its runtime_env has {', '.join(others)}, but the processes of a pod have the "
            "environment of their job, and env_vars. Name packages in the step's pip_dependency_groups."
        )
    texts = [part for pair in variables.items() for part in pair] if isinstance(variables, Mapping) else [None]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ValueError(f"run_on_pod({of}): env_vars must map names to texts without a NUL.")
    return dict(variables)


def pickle_call(fn: Callable[[], Any]) -> bytes:
    """Pickle the function, this machine's module search path, and whether it uses legacy names, for the hosts."""
    from ray import cloudpickle

    plain = plain_function(fn)
    if isinstance(fn, functools.partial):
        plain = functools.partial(plain_function(fn.func), *fn.args, **fn.keywords)
    if not callable(plain):
        raise ValueError(f"run_on_pod(fn={fn!r}): give a function without arguments.")
    if hasattr(plain, "remote") or isinstance(plain, type):
        raise ValueError(
            f"run_on_pod(fn={fn!r}): give a function without arguments, plain or under @ray.remote; an actor, a class "
            "or .options(...) of a function is none."
        )
    try:
        function = cloudpickle.dumps(plain)
    except (TypeError, pickle.PicklingError) as problem:
        raise ValueError(f"run_on_pod(fn={fn!r}): it cannot be pickled: {problem}.") from problem
    return pickle.dumps((function, [folder for folder in sys.path if folder], uses_legacy_names()))


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
    num_slices: int | Sequence[int] = 1,
    max_retries_preemption: int = 1_000_000,
    max_retries_failure: int = 10,
) -> list[Any]:
    """Run ``fn`` on several slices; a list of numbers makes their count flexible."""
    return run_on_pod(
        fn,
        tpu_type,
        num_slices=num_slices,
        max_preemptions=max_retries_preemption,
        max_failures=max_retries_failure,
    )


@overload
def remove_tpu_lockfile_on_exit(fn: None = None) -> AbstractContextManager[None]: ...
@overload
def remove_tpu_lockfile_on_exit(fn: Callable[P, R]) -> Callable[P, R]: ...
def remove_tpu_lockfile_on_exit(
    fn: Callable[P, R] | None = None,
) -> AbstractContextManager[None] | Callable[P, R]:
    """Remove libtpu's lock file at the end: ``with remove_tpu_lockfile_on_exit():``, or as a decorator.

    The pod runner does so before each start, so only code that uses the chips in its own process needs this.
    """
    if fn is None:
        return _removing_lockfile()

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _removing_lockfile():
            return fn(*args, **kwargs)

    return wrapped


@contextmanager
def _removing_lockfile() -> Iterator[None]:
    try:
        yield
    finally:
        remove_lockfile()
