"""Refuse a step on a cluster that lacks slices of the step's type: it would wait forever.

A cluster lists its types in the extra ``slice_types`` of its connection. Without that list it may have any type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.steps import ExecutorStep, ResolvedStep, TpuSlice


def refuse_missing_slice_types(steps: Iterable[ResolvedStep], cluster_of: Callable[[ExecutorStep], str]) -> None:
    """Refuse steps on slices that their clusters lack; each cluster's connection is read once.

    Raises:
        BadRequestError: There are such steps; the message names them all.
        BadAddressError: A connection names a slice type that does not exist.
    """
    types_of = functools.cache(lambda cluster: RayHook(cluster).slice_types())
    problems = []
    for step in steps:
        if isinstance(step.step.resources, TpuSlice):
            wanted, cluster = step.step.resources.slice_type, cluster_of(step.step)
            available = types_of(cluster)
            if available and wanted not in available:
                problems.append(
                    f"Step {step.name!r}: resources.slice_type is {wanted!r}, but cluster {cluster!r} has only "
                    f"{', '.join(available)}. Use one of these, or add it to 'slice_types' of the connection."
                )
    if problems:
        raise BadRequestError("\n".join(problems))
