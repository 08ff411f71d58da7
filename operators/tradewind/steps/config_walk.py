"""Walk a config: find what its version covers, and fill in placeholders.

Versions cover versioned values, references to steps and hard-coded paths, each under its config path. Changing an
unversioned value never makes a step run again. Fields are visited in declared order, dictionaries and sequences in
their own; the paths are those of E20 (``field.key.[0]``).
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tradewind.steps.bounds import PLAIN, check_bounded, field_names
from tradewind.steps.errors import StepConfigError, StepConfigTypeError, UnknownRunValueError
from tradewind.steps.paths import below
from tradewind.steps.placeholders import (
    MIRROR_SCHEME,
    InputName,
    Lazy,
    Mirror,
    MirroredValue,
    OutputName,
    VersionedValue,
)
from tradewind.steps.run_values import RunPath, RunValue, RunValueSource
from tradewind.steps.stable_json import check_stable, encode
from tradewind.steps.step import ExecutorStep, Recipe
from tradewind.text import truncated_repr


@dataclass
class ConfigIdentity:
    """The part of a config that its step's version covers.

    Attributes:
        recipe: The recipe of the version.
        version: Config path → JSON text of the versioned value.
        dependencies: Referenced steps, one entry per occurrence.
        pseudo_dependencies: The same for nonblocking references.
        needed: The dependencies whose result the step requires.
        hardcoded_paths: Paths that are read without a reference, with their config paths.
        run_paths: Those of them that the run gives.
        places: Referenced step -> config path of the first reference.
    """

    recipe: Recipe = Recipe.JUNE_2026
    version: dict[str, str] = field(default_factory=dict)
    dependencies: list[ExecutorStep] = field(default_factory=list)
    pseudo_dependencies: list[ExecutorStep] = field(default_factory=list)
    needed: set[ExecutorStep] = field(default_factory=set)
    hardcoded_paths: list[tuple[str, str]] = field(default_factory=list)
    run_paths: list[tuple[str, str]] = field(default_factory=list)
    places: dict[ExecutorStep, str] = field(default_factory=dict)

    def add_reference(self, path: str, reference: InputName) -> None:
        """Add a reference; references are numbered in walk order, blocking or not."""
        if reference.step is None:
            self.version[path] = encode(reference.name)
            if reference.name:
                self.hardcoded_paths.append((path, reference.name))
            return
        if not isinstance(reference.step, ExecutorStep):
            raise StepConfigError(
                f"{describe(path)} refers to {truncated_repr(reference.step)}, which is no ExecutorStep: an experiment "
                "is made of ExecutorSteps."
            )
        self.places.setdefault(reference.step, path)
        index = len(self.dependencies) + len(self.pseudo_dependencies)
        steps = self.dependencies if reference.block_on_step else self.pseudo_dependencies
        steps.append(reference.step)
        if reference.block_on_step and reference.must_succeed:
            self.needed.add(reference.step)
        self.version[path] = encode(f"DEP[{index}]" + (f"/{reference.name}" if reference.name else ""))


def identify(config: Any, binding: RunValueSource, recipe: Recipe = Recipe.JUNE_2026) -> ConfigIdentity:
    """Walk ``config`` and collect what the recipe's version covers.

    Raises:
        StepConfigError: A value has no stable identity, is too deep, too large or cyclic, or a dictionary has a key
            that is not a string; the message starts with the config path.
        UnknownRunValueError: The run lacks a value of a versioned field.
    """
    check_bounded(config, "config")
    identity = ConfigIdentity(recipe)
    _visit(config, "", binding, identity)
    return identity


def bind_run_values(value: Any, path: str, binding: RunValueSource) -> Any:
    """Fill in a run value, or those inside plain containers; errors include the config path."""
    if isinstance(value, RunValue):
        try:
            return binding.value_of(value)
        except UnknownRunValueError as error:
            raise UnknownRunValueError(f"{describe(path)}: {error}") from None
    if type(value) in (list, tuple):
        return type(value)(bind_run_values(item, f"{path}.[{i}]", binding) for i, item in enumerate(value))
    if type(value) is dict:
        return {key: bind_run_values(item, f"{path}.{key}", binding) for key, item in value.items()}
    return value


def _run_path(value: RunPath, path: str, binding: RunValueSource) -> str | None:
    """Return the path that the run gives; raises ``StepConfigError`` if that is no text."""
    given = bind_run_values(value.value, path, binding)
    if given is not None and (not isinstance(given, str) or not given):
        raise StepConfigError(f"{describe(path)}: {value.value!s} is {truncated_repr(given)}: give a path.")
    return given


def describe(path: str) -> str:
    """Format a config path for users."""
    return f"config.{path}" if path else "config"


def _visit(value: Any, path: str, binding: RunValueSource, identity: ConfigIdentity) -> None:
    prefix = path + "." if path else ""
    if isinstance(value, (ExecutorStep, InputName)):
        identity.add_reference(path, value if isinstance(value, InputName) else value.as_input_name())
    elif isinstance(value, RunPath):
        given = _run_path(value, path, binding)
        identity.version[path] = encode(given)
        if given is not None:
            identity.hardcoded_paths.append((path, given))
            identity.run_paths.append((path, given))
    elif isinstance(value, VersionedValue):
        identity.version[path] = _versioned_text(value.value, path, binding, identity.recipe)
    elif isinstance(value, MirroredValue):
        _visit(value.value, path, binding, identity)
    elif isinstance(value, Lazy):
        for name, item in value.kwargs.items():
            _visit(item, prefix + name, binding, identity)
    elif (names := field_names(type(value))) is not None:  # type: ignore[arg-type]
        for name in () if isinstance(value, RunValue) else names:
            if type(inner := getattr(value, name)) not in PLAIN:
                _visit(inner, prefix + name, binding, identity)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise StepConfigError(
                    f"{describe(path)}: dict keys must be strs, but got {truncated_repr(key)} (type: {type(key)})"
                )
            if type(item) not in PLAIN:
                _visit(item, prefix + key, binding, identity)
    elif isinstance(value, list) or (identity.recipe.walks_tuples and isinstance(value, (tuple, set, frozenset))):
        if isinstance(value, (set, frozenset)) and len(value) > 1:
            raise StepConfigError(
                f"{describe(path)} is a set of {len(value)} elements, whose order differs from process to process: "
                "use a list."
            )
        for i, item in enumerate(value):
            if type(item) not in PLAIN:
                _visit(item, f"{prefix}[{i}]", binding, identity)


def _versioned_text(value: Any, path: str, binding: RunValueSource, recipe: Recipe) -> str:
    bound = bind_run_values(value, path, binding)
    check_stable(bound, describe(path))
    try:
        return encode(bound, recipe)
    except TypeError as error:
        raise StepConfigTypeError(f"{describe(path)} has no JSON form: {error}") from error
    except (ValueError, RecursionError) as error:  # an object's own text can fail
        raise StepConfigError(f"{describe(path)} has no JSON form: {error}") from error


@dataclass(frozen=True)
class PlaceholderResolver:
    """Values for placeholders: prefix, output paths and run values, for one recipe.

    ``mirrors`` receives the mirrored paths that were filled in.
    """

    prefix: str
    output_path: str
    output_path_of: Callable[[ExecutorStep], str]
    binding: RunValueSource
    recipe: Recipe = Recipe.JUNE_2026
    mirrors: list[Mirror] = field(default_factory=list)

    def input_path(self, reference: InputName) -> str:
        """Return the path for ``reference``."""
        if reference.step is None:
            return below(self.prefix, reference.name or "")
        return _inside(self.output_path_of(reference.step), reference.name)


def instantiate(config: Any, filling: PlaceholderResolver, path: str = "") -> Any:
    """Return a copy of ``config`` in which each placeholder is the value that the step's function receives.

    As in E20, sets are not walked, and tuples only if the step's recipe does so. A placeholder left there is refused
    when the config is sent to the cluster.

    Raises:
        StepConfigError: A dataclass cannot be rebuilt with its real values.
        UnknownRunValueError: The run lacks a value.
    """
    if type(config) in PLAIN:
        return config
    if isinstance(config, (ExecutorStep, InputName)):
        return filling.input_path(config if isinstance(config, InputName) else config.as_input_name())
    if isinstance(config, RunPath):
        given = _run_path(config, path, filling.binding)
        return None if given is None else below(filling.prefix, given)
    if isinstance(config, OutputName):
        return _inside(filling.output_path, config.name)
    if isinstance(config, RunValue):
        return bind_run_values(config, path, filling.binding)
    if isinstance(config, VersionedValue):
        return bind_run_values(config.value, path, filling.binding)
    if isinstance(config, MirroredValue):
        mirror = _mirror(config, filling, path)
        filling.mirrors.append(mirror)
        return mirror.text
    return _instantiate_container(config, filling, path)


def _mirror(config: MirroredValue[Any], filling: PlaceholderResolver, path: str) -> Mirror:
    value = instantiate(config.value, filling, path)
    if not isinstance(value, (str, os.PathLike)):
        raise StepConfigError(
            f"{describe(path)}: mirrored() takes one path, and got {truncated_repr(value)}: write it around each path."
        )
    source = config.value
    is_output = isinstance(source, ExecutorStep) or (isinstance(source, InputName) and source.step is not None)
    text = str(value).removeprefix(MIRROR_SCHEME)
    return Mirror(describe(path), text, config.budget_gb, filling.prefix, is_output)


def _instantiate_container(config: Any, filling: PlaceholderResolver, path: str) -> Any:
    prefix = path + "." if path else ""
    if isinstance(config, Lazy):
        return Lazy(config.target, {k: instantiate(v, filling, prefix + k) for k, v in config.kwargs.items()})
    if (names := field_names(type(config))) is not None:  # type: ignore[arg-type]
        fields = {name: instantiate(getattr(config, name), filling, prefix + name) for name in names}
        try:
            return dataclasses.replace(config, **fields)
        except (TypeError, ValueError) as error:  # a field that __init__ lacks: ValueError before Python 3.13
            raise StepConfigError(f"{describe(path)} ({type(config).__qualname__}): {error}") from error
    if isinstance(config, dict):
        return {key: instantiate(value, filling, prefix + key) for key, value in config.items()}
    if isinstance(config, list) or (isinstance(config, tuple) and filling.recipe.walks_tuples):
        items = [instantiate(item, filling, f"{prefix}[{i}]") for i, item in enumerate(config)]
        if isinstance(config, tuple):
            return type(config)(*items) if hasattr(config, "_fields") else tuple(items)
        return items
    return config


def _inside(path: str, name: str | None) -> str:
    return posixpath.join(path, name) if name else path
