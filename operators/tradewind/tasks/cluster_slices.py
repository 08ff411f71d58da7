"""A step is not started on a cluster that says it has no slices of the step's type: it would wait for ever.

A cluster says which types it has in the extra ``slice_types`` of its connection. One that says nothing may have any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.steps import ExecutorStep, ResolvedStep, TpuSlice


def refuse_missing_slice_types(steps: Iterable[ResolvedStep], cluster_of: Callable[[ExecutorStep], str]) -> None:
    """Refuse steps on slices that their clusters do not have; each cluster's connection is read once.

    Raises:
        BadRequestError: There are such steps; it names them all.
        BadAddressError: A connection names a slice type that does not exist.
    """
    types_of = functools.cache(lambda cluster: RayHook(cluster).slice_types())
    problems = []
    for step in steps:
        if isinstance(step.step.resources, TpuSlice):
            wanted, cluster = step.step.resources.slice_type, cluster_of(step.step)
            has = types_of(cluster)
            if has and wanted not in has:
                problems.append(
                    f"Step {step.name!r}: resources.slice_type is {wanted!r}, but cluster {cluster!r} has only "
                    f"{', '.join(has)}: take one of these, or add it to 'slice_types' of the connection."
                )
    if problems:
        raise BadRequestError("\n".join(problems))
