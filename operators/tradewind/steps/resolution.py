"""Resolve an experiment: from wanted steps to all steps' versions, output paths and filled-in configs.

The version is the E20 recipe: the MD5 of a JSON text of the step's name, the versioned part of its config, and the
version of every referenced step. A dependency of depth 4 or less appears whole, a deeper one as ``name-hash``, so the
hashed text stays bounded. Each text is made once and inserted where it is needed: the cost is proportional to steps,
references and hashed text, and depth needs no recursion.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.steps.config_walk import ConfigIdentity, PlaceholderResolver, describe, identify, instantiate
from tradewind.steps.errors import ExperimentError, MissingPrefixError, OutputPathConflictError, StepConfigError
from tradewind.steps.paths import below, computed_output_path, self_and_parents, version_name
from tradewind.steps.placeholders import InputName, Mirror
from tradewind.steps.run_values import RunValues, RunValueSource
from tradewind.steps.stable_json import encode
from tradewind.steps.step import ExecutorStep, Recipe
from tradewind.text import truncated_repr

logger = logging.getLogger(__name__)

_CREDENTIALS: Final = re.compile(r"//[^/]*@")
_MAX_VERSION_CHARS: Final = 64 << 20
_MAX_CYCLE_NAMES: Final = 10


def check_output_paths(
    steps: Sequence[ResolvedStep], hardcoded: Mapping[ResolvedStep, Sequence[tuple[str, str]]]
) -> None:
    """Refuse experiments with conflicting paths.

    Raises:
        OutputPathConflictError: Two different steps share an output path.
        ExperimentError: A step's output is read, directly or through other steps, by the step itself.
    """
    owners: dict[str, ResolvedStep] = {}
    for step in steps:
        path = step.output_path.rstrip("/")
        other = owners.setdefault(path, step)
        if other is not step:
            is_chance = (other.name, other.hash) == (step.name, step.hash)
            why = ", since their short hashes are equal by chance" if is_chance else ""
            raise OutputPathConflictError(
                f"Steps {other.name!r} (version {other.hash}) and {step.name!r} (version {step.hash}) would both write "
                f"to {path}{why}: give one of them another name or another override_output_path."
            )
    reads = {step: _hardcoded_inputs(hardcoded.get(step, ()), owners) for step in steps}
    if any(reads.values()):
        _check_acyclic(steps, reads)


def warn_about_unusual_name(name: str) -> None:
    """Warn of a name that makes an error-prone path; it is not refused, since Marin has such names."""
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or name != name.strip() or "" in parts[1:]:
        logger.warning("The step name %r makes an unusual output path.", _CREDENTIALS.sub("//(not shown)@", name))


def _hardcoded_inputs(
    paths: Iterable[tuple[str, str]], owners: Mapping[str, ResolvedStep]
) -> list[tuple[str, ResolvedStep]]:
    """Return the steps that make the given paths, with the config path that reads each."""
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
    names = " → ".join(repr(member.name) for member in [*cycle, cycle[0]])
    raise ExperimentError(
        f"Step {step.name!r} reads its own output: config.{config_path} is the hard-coded path of {read.name!r} "
        f"({read.output_path}), which closes the cycle {names}. Refer to the step with output_path_of() instead, or "
        "read another path."
    )


@dataclass(eq=False)
class ResolvedStep:
    """A step with its version and output path.

    Attributes:
        step: The first step object with this version.
        version_json: The text that is hashed.
        digest: Its MD5, in hexadecimal digits.
        config: The config with every placeholder filled in.
        dependencies: The steps it waits for, one entry per reference.
        pseudo_dependencies: The steps it refers to without waiting.
        dispensable: The dependencies whose end it awaits but whose result it does not require.
        is_blocking: As in E20: False for a step that was reached only below nonblocking references. A step that is
            promoted later does not promote its own dependencies here; ``ResolvedExperiment.needed`` does.
        depth: Length of the longest chain of dependencies below it.
        mirrors: The mirrored paths in its config.
        run_paths: Paths in its config that are given by the run, with their config paths.
    """

    step: ExecutorStep
    version_json: str
    digest: str
    output_path: str
    dependencies: tuple[ResolvedStep, ...]
    pseudo_dependencies: tuple[ResolvedStep, ...]
    is_blocking: bool
    depth: int
    dispensable: frozenset[ResolvedStep] = frozenset()
    config: Any = None
    mirrors: tuple[Mirror, ...] = ()
    run_paths: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def hash(self) -> str:
        """The first six digits of the digest, which are part of the output path."""
        return self.digest[:6]

    @property
    def needed(self) -> tuple[ResolvedStep, ...]:
        """The dependencies whose results it requires."""
        return tuple(each for each in self.dependencies if each not in self.dispensable)

    @property
    def version_name(self) -> str:
        """Name and hash of the step as shown to users: ``name-hash``."""
        return version_name(self.name, self.hash)

    @property
    def version(self) -> dict[str, Any]:
        """The hashed content as data."""
        return dict(json.loads(self.version_json))

    def __repr__(self) -> str:
        return f"ResolvedStep({self.version_name})"


@dataclass(frozen=True)
class ResolvedExperiment:
    """The wanted steps and everything below them, each version once, in execution order."""

    prefix: str
    steps: tuple[ResolvedStep, ...]
    by_object: Mapping[ExecutorStep, ResolvedStep] = field(repr=False)

    def of(self, step: ExecutorStep) -> ResolvedStep:
        """Return the resolved form of ``step``, or of the first equal one."""
        return self.by_object[step]

    def needed(self, wanted: Iterable[ExecutorStep]) -> tuple[ResolvedStep, ...]:
        """The wanted steps and all that they wait for, directly or indirectly, in execution order."""
        found: set[int] = set()
        pending = [self.of(step) for step in wanted]
        while pending:
            step = pending.pop()
            if id(step) not in found:
                found.add(id(step))
                pending.extend(step.dependencies)
        return tuple(step for step in self.steps if id(step) in found)


def resolve(
    steps: Sequence[ExecutorStep | InputName], prefix: str | None, binding: RunValueSource | None = None
) -> ResolvedExperiment:
    """Resolve ``steps`` and everything they refer to, with outputs below ``prefix``.

    ``binding`` gives the values of the experiment's run; without it there are none.

    Raises:
        MissingPrefixError: ``prefix`` is empty.
        StepConfigError: A config has a value without a stable identity or one that the run lacks.
        OutputPathConflictError: Two different steps share an output path.
        ExperimentError: A step's config refers to the step itself, directly or indirectly.
        ExperimentError: Hard-coded paths make a step read its own output.
    """
    if not prefix:
        raise MissingPrefixError(
            "No source sets the prefix of outputs: give prefix=, set TRADEWIND_PREFIX, or set prefix in the "
            "[tradewind] section of airflow.cfg."
        )
    resolution = _Resolution(prefix, binding or RunValues())
    for root in wanted_steps(steps):
        resolution.visit(root)
    return resolution.finish()


def wanted_steps(steps: Sequence[ExecutorStep | InputName]) -> list[ExecutorStep]:
    """Return the steps in a list that may also hold paths inside outputs; hard-coded paths have no step.

    Raises:
        ExperimentError: The list holds something else.
    """
    found = []
    for wanted in steps:
        if not isinstance(wanted, ExecutorStep | InputName):  # at once: a range may have a billion items
            raise ExperimentError(f"An experiment is made of ExecutorSteps, but got {truncated_repr(wanted)}.")
        step = wanted.step if isinstance(wanted, InputName) else wanted
        if step is not None:
            found.append(step)
    return found


@dataclass
class _Visit:
    """A step on the stack of the depth-first walk."""

    step: ExecutorStep
    is_pseudo: bool
    identity: ConfigIdentity
    children: Iterator[tuple[ExecutorStep, bool]]


class _Resolution:
    def __init__(self, prefix: str, binding: RunValueSource) -> None:
        self.prefix = prefix
        self.binding = binding
        self.by_object: dict[ExecutorStep, ResolvedStep] = {}
        self.by_version: dict[str, ResolvedStep] = {}
        self.begun: set[ExecutorStep] = set()
        self.output_paths: dict[ExecutorStep, str] = {}
        self.hardcoded: dict[ResolvedStep, list[tuple[str, str]]] = {}

    def visit(self, root: ExecutorStep) -> None:
        """Resolve ``root`` and what it refers to, dependencies first, in E20's order."""
        stack = [self._enter(root, is_pseudo=False)] if not self._seen(root, is_pseudo=False) else []
        while stack:
            for child, is_pseudo in stack[-1].children:
                if not self._seen(child, is_pseudo):
                    if child in self.begun:
                        raise _cycle([visit.step for visit in stack], child, stack[-1].identity)
                    stack.append(self._enter(child, is_pseudo))
                    break
            else:
                self._leave(stack.pop())

    def finish(self) -> ResolvedExperiment:
        """Check paths across steps, then fill in the configs."""
        steps = tuple(self.by_version.values())
        check_output_paths(steps, self.hardcoded)
        for resolved in steps:
            filling = PlaceholderResolver(
                self.prefix, resolved.output_path, self.output_paths.__getitem__, self.binding, resolved.step.recipe
            )
            try:
                resolved.config = instantiate(resolved.step.config, filling)
            except StepConfigError as error:
                raise _naming(resolved.step, error) from error
            resolved.mirrors = tuple(filling.mirrors)
        return ResolvedExperiment(self.prefix, steps, self.by_object)

    def _seen(self, step: ExecutorStep, is_pseudo: bool) -> bool:
        resolved = self.by_object.get(step)
        if resolved is not None and not is_pseudo:
            resolved.is_blocking = True
        return resolved is not None

    def _enter(self, step: ExecutorStep, is_pseudo: bool) -> _Visit:
        if not isinstance(step.name, str):
            raise ExperimentError(f"A step's name should be text, not {type(step.name).__name__}.")
        if not isinstance(step.override_output_path, (str, type(None))):
            kind = type(step.override_output_path).__name__
            raise ExperimentError(f"Step {step.name!r}: override_output_path should be text, not {kind}.")
        self.begun.add(step)
        try:
            identity = identify(step.config, self.binding, step.recipe)
        except StepConfigError as error:
            raise _naming(step, error) from error
        children = [(child, is_pseudo) for child in identity.dependencies]
        children += [(child, True) for child in identity.pseudo_dependencies]
        return _Visit(step, is_pseudo, identity, iter(children))

    def _leave(self, visit: _Visit) -> None:
        step, identity = visit.step, visit.identity
        dependencies = tuple(self.by_object[child] for child in identity.dependencies)
        pseudo_dependencies = tuple(self.by_object[child] for child in identity.pseudo_dependencies)
        needed = {self.by_object[child] for child in identity.needed}
        dispensable = frozenset(dependencies) - needed
        version_json = _version_json(step, identity.version, dependencies, pseudo_dependencies)
        digest = hashlib.md5(version_json.encode(), usedforsecurity=False).hexdigest()
        if step.override_output_path is None:
            output_path = computed_output_path(self.prefix, step.name, digest[:6])
        else:
            output_path = below(self.prefix, step.override_output_path)
        self.output_paths[step] = output_path
        first = self.by_version.get(version_json)
        if first is None:
            warn_about_unusual_name(step.name)
            first = ResolvedStep(
                step=step,
                version_json=version_json,
                digest=digest,
                output_path=output_path,
                dependencies=dependencies,
                pseudo_dependencies=pseudo_dependencies,
                is_blocking=not visit.is_pseudo,
                depth=1 + max((dependency.depth for dependency in dependencies), default=-1),
                dispensable=dispensable,
            )
            self.by_version[version_json] = first
            self.hardcoded[first] = [(path, below(self.prefix, name)) for path, name in identity.hardcoded_paths]
            first.run_paths = tuple((path, below(self.prefix, name)) for path, name in identity.run_paths)
        else:
            first.is_blocking |= not visit.is_pseudo
            first.dispensable &= dispensable
        self.by_object[step] = first


def _version_json(
    step: ExecutorStep,
    config: dict[str, str],
    dependencies: Sequence[ResolvedStep],
    pseudo_dependencies: Sequence[ResolvedStep],
) -> str:
    """Build the version text from texts that are already JSON (keys sorted, default separators)."""
    inner = [other for other in (*dependencies, *pseudo_dependencies) if _is_nested(other, step.recipe)]
    if sum(len(other.version_json) for other in inner) > _MAX_VERSION_CHARS:
        raise ExperimentError(
            f"Step {step.name!r}: its version would be made from more than {_MAX_VERSION_CHARS >> 20} MiB of text, "
            "since it refers to many steps which refer to many more: put steps in between, or refer to each step once."
        )
    config_json = ", ".join(f"{encode(path)}: {config[path]}" for path in sorted(config))
    blocking, pseudo = (
        ", ".join(_as_dependency(other, step.recipe) for other in others)
        for others in (dependencies, pseudo_dependencies)
    )
    parts = [f'"config": {{{config_json}}}', f'"dependencies": [{blocking}]', f'"name": {encode(step.name)}']
    if pseudo_dependencies:
        parts.append(f'"pseudo_dependencies": [{pseudo}]')
    return "{" + ", ".join(parts) + "}"


def _cycle(trail: Sequence[ExecutorStep], child: ExecutorStep, identity: ConfigIdentity) -> ExperimentError:
    """Return the error for a step whose config refers back to a step that refers to it."""
    members = [*trail[trail.index(child) :], child]
    names = [repr(member.name) for member in members]
    shown = " → ".join(names if len(names) <= _MAX_CYCLE_NAMES else [*names[:3], "...", *names[-3:]])
    return ExperimentError(
        f"Step {trail[-1].name!r} needs itself: its {describe(identity.places[child])} closes the cycle {shown}. "
        "Take the reference out of one of their configs."
    )


def _is_nested(step: ResolvedStep, recipe: Recipe) -> bool:
    return recipe.deepest_nested is None or step.depth <= recipe.deepest_nested


def _as_dependency(step: ResolvedStep, recipe: Recipe) -> str:
    return step.version_json if _is_nested(step, recipe) else encode(step.version_name)


def _naming(step: ExecutorStep, error: StepConfigError) -> StepConfigError:
    return type(error)(f"Step {step.name!r}: {error}")
