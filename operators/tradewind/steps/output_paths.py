"""Checks across steps: no two steps write to one place, and none reads its own output through hard-coded paths."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tradewind.steps.errors import CyclicPathsError, OutputPathConflictError
from tradewind.steps.paths import self_and_parents

if TYPE_CHECKING:
    from tradewind.steps.resolution import ResolvedStep

logger = logging.getLogger(__name__)

_CREDENTIALS = re.compile(r"//[^/]*@")


def check_output_paths(
    steps: Sequence[ResolvedStep], hardcoded: Mapping[ResolvedStep, Sequence[tuple[str, str]]]
) -> None:
    """Refuse experiments whose paths contradict each other.

    ``hardcoded`` gives, for each step, the hard-coded paths it reads as (config path, path below the prefix).

    Raises:
        OutputPathConflictError: Two different steps share an output path.
        CyclicPathsError: A step's output is read, directly or through other steps, by the step itself.
    """
    owners: dict[str, ResolvedStep] = {}
    for step in steps:
        path = step.output_path.rstrip("/")
        other = owners.setdefault(path, step)
        if other is not step:
            why = (
                ", since their short hashes are equal by chance"
                if (other.name, other.hash) == (step.name, step.hash)
                else ""
            )
            raise OutputPathConflictError(
                f"Steps {other.name!r} (version {other.hash}) and {step.name!r} (version {step.hash}) would both write "
                f"to {path}{why}: give one of them another name or another override_output_path."
            )
    reads = {step: _hardcoded_inputs(hardcoded.get(step, ()), owners) for step in steps}
    if any(reads.values()):
        _check_acyclic(steps, reads)


def warn_about_odd_name(name: str) -> None:
    """Say so when a name makes a path that people will stumble over; it is not refused, since Marin has such names."""
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or name != name.strip() or "" in parts[1:]:
        logger.warning("The step name %r makes an unusual output path.", _CREDENTIALS.sub("//(not shown)@", name))


def _hardcoded_inputs(
    paths: Iterable[tuple[str, str]], owners: Mapping[str, ResolvedStep]
) -> list[tuple[str, ResolvedStep]]:
    """The steps that make the given paths, with the config path that reads each."""
    return [
        (config_path, owners[candidate])
        for config_path, path in paths
        for candidate in self_and_parents(path)
        if candidate in owners
    ]


def _check_acyclic(steps: Sequence[ResolvedStep], reads: Mapping[ResolvedStep, list[tuple[str, ResolvedStep]]]) -> None:
    """Depth-first search over dependencies and hard-coded reads, without recursion."""
    done: set[ResolvedStep] = set()
    for root in steps:
        trail: dict[ResolvedStep, None] = {}
        stack = [(root, False)]
        while stack:
            step, leaving = stack.pop()
            if leaving:
                del trail[step]
                done.add(step)
            elif step in trail:
                _raise_cycle([*trail][[*trail].index(step) :], reads)
            elif step not in done:
                trail[step] = None
                stack.append((step, True))
                stack.extend((input_step, False) for input_step in step.dependencies if input_step not in done)
                stack.extend((input_step, False) for _, input_step in reads[step] if input_step not in done)


def _raise_cycle(cycle: list[ResolvedStep], reads: Mapping[ResolvedStep, list[tuple[str, ResolvedStep]]]) -> None:
    step, config_path, read = next(
        (step, config_path, read) for step in cycle for config_path, read in reads[step] if read in cycle
    )
    way = " → ".join(repr(member.name) for member in [*cycle, cycle[0]])
    raise CyclicPathsError(
        f"Step {step.name!r} reads its own output: config.{config_path} is the hard-coded path of {read.name!r} "
        f"({read.output_path}), which closes the cycle {way}. Refer to the step with output_path_of() instead, or read "
        "another path."
    )
