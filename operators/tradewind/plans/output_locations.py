"""Where steps may write: below their run's prefix, or where a deployment explicitly allows it.

``resolve`` computes Marin's paths, unusual ones too, since old outputs exist there. Paths refused here are never
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tradewind.steps import ExecutorStep, ExperimentError, ResolvedStep
from tradewind.steps.paths import OWN_FOLDERS, is_absolute
from tradewind.storage import (
    Location,
    ResolvedLocation,
    Roots,
    StorageError,
    named_path,
    problem_of_text,
    resolve_location,
)
from tradewind.text import escape_control_characters


def check_given_places(steps: Iterable[ExecutorStep]) -> None:
    """Refuse names and paths that are invalid under any prefix, when a DAG file is loaded.

    Raises:
        ExperimentError: One could leave the prefix, is the prefix, or is not a path.
    """
    for step in steps:
        _check(step.name, "A step's name", _problem_of_name, "give the step another name")
        if step.override_output_path is not None:
            where = f"Step {step.name!r}: override_output_path"
            advice = "give a path below the prefix, such as 'data/raw', or an absolute one"
            _check(step.override_output_path, where, _problem_of_override, advice)


def check_no_overlap(steps: Sequence[ResolvedStep]) -> None:
    """Refuse two steps with the same output path in two spellings, or one inside the other's output.

    A step refuses to start at an output that contains other outputs. So nesting is valid only if the outer step always
    runs first.

    Raises:
        ExperimentError: Two do.
    """
    writers: dict[ResolvedLocation, ResolvedStep] = {}
    for step in steps:
        try:
            other = writers.setdefault(resolve_location(step.output_path), step)
        except StorageError:
            continue  # no prefix is known when a DAG file loads; the plan checks again with its own
        if other is not step:
            raise ExperimentError(
                f"Steps {other.name!r} and {step.name!r} would both write to {other.output_path}, which is "
                f"{step.output_path} too: give one of them another name or another override_output_path."
            )
    for place, step in writers.items():
        for folder in place.folders():
            outer = writers.get(folder)
            if outer is not None and not _comes_first(outer, step):
                raise ExperimentError(
                    f"Step {step.name!r} would write to {step.output_path}, within the output of step "
                    f"{outer.name!r}, {outer.output_path}, which it does not read: give one of them another "
                    "override_output_path."
                )


def _comes_first(step: ResolvedStep, other: ResolvedStep) -> bool:
    """Whether ``other`` is made from ``step``, directly or indirectly."""
    seen: set[int] = set()
    pending = [other]
    while pending:
        made = pending.pop()
        if made is step:
            return True
        if id(made) not in seen:
            seen.add(id(made))
            pending.extend(made.dependencies)
    return False


def check_output_places(
    steps: Sequence[ResolvedStep], prefix: str, find_roots: Callable[[], Roots], outside: Sequence[str] = ()
) -> Roots:
    """Refuse outputs that are outside the prefix, the roots and what ``outside`` names.

    Args:
        find_roots: Called only if an output is outside the prefix.
        outside: Names of steps whose absolute ``override_output_path`` may be anywhere, and paths below which any
            step's may be.

    Returns:
        The prefix, and each output outside it.

    Raises:
        ExperimentError: An output is elsewhere.
    """
    check_given_places(step.step for step in steps)
    for step in steps:
        try:
            Location.of(step.output_path, f"Step {step.name!r}: {_named_output(step)}")
        except StorageError as error:
            raise ExperimentError(str(error)) from error
    check_no_overlap(steps)
    top, text_top = resolve_location(prefix), resolve_location(prefix, follows_links=False)
    elsewhere = []
    for step in steps:
        where = f"Step {step.name!r}: {_named_output(step)}"
        place = resolve_location(step.output_path)
        if top.is_or_is_below(place):
            raise ExperimentError(
                f"{named_path(step.output_path, where)} is the prefix of the run, or above it, and would contain the "
                "outputs of all steps: give the step its own folder."
            )
        if not resolve_location(step.output_path, follows_links=False).is_below(text_top):
            elsewhere.append(step)
    if elsewhere:
        _check_elsewhere(elsewhere, prefix, find_roots(), outside)
    return Roots.of([prefix, *(step.output_path for step in elsewhere)])


def _check_elsewhere(steps: Sequence[ResolvedStep], prefix: str, roots: Roots, outside: Sequence[str]) -> None:
    permitted = Roots.of([path for path in outside if is_absolute(path)], "allow_outside")
    for step in steps:
        if step.name in outside or roots.allow(step.output_path) or permitted.allow(step.output_path):
            continue
        named = named_path(step.output_path, f"Step {step.name!r}: {_named_output(step)}")
        raise ExperimentError(
            f"{named} is neither below the prefix {prefix} nor below an allowed root: allow it with "
            f"experiment_dag(allow_outside=({step.name!r},)), which takes step names and paths, or have an "
            "administrator add it to allowed_roots in the [tradewind] section of airflow.cfg."
        )


def _named_output(step: ResolvedStep) -> str:
    return "its output" if step.step.override_output_path is None else "override_output_path"


def _check(path: Any, where: str, problem_of: Callable[[str], str], advice: str) -> None:
    if not isinstance(path, str):
        raise ExperimentError(f"{where} should be text, not {type(path).__name__}: {advice}.")
    if problem := (problem_of_text(path) if path else "") or problem_of(path):
        raise ExperimentError(f"{named_path(path, where)} {problem}: {advice}.")


def _problem_of_name(name: str) -> str:
    if name.startswith("/") or "://" in name:
        return "is an absolute path, which would leave the prefix"
    return _problem_of_parts(name)


def _problem_of_override(path: str) -> str:
    if problem := _problem_of_parts(path):
        return problem
    if not is_absolute(path):
        return "" if path.strip("/. ") else "is the prefix itself, which contains the outputs of all steps"
    try:
        if not Location.of(path).is_absolute:
            return "is neither a path below the prefix nor an absolute one"
    except StorageError:
        return "is in no store that Tradewind supports, or is not a valid path there"
    is_store = resolve_location(path, follows_links=False).name == "/"
    return "is a whole store, which contains the outputs of all steps" if is_store else ""


def _problem_of_parts(path: str) -> str:
    if escape_control_characters(path) != path or "\n" in path or "\t" in path:
        return "holds a control character, which would garble logs"
    parts = path.split("/")
    if ".." in parts:
        return "has '..' as a part, which could leave the prefix"
    own = sorted(OWN_FOLDERS.intersection(parts))
    return f"has {own[0]!r} as a part, where Tradewind keeps its own records" if own else ""
