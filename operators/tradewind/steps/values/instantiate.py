"""Filling in a config: every placeholder becomes the value that the step's function will see.

As in E20, sets are not looked into, nor tuples where the step's recipe does not walk them; a placeholder left in one is
refused when the config is sent to the cluster.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tradewind.steps.errors import StepConfigError
from tradewind.steps.mirrors import MIRROR_SCHEME, Mirror
from tradewind.steps.paths import below
from tradewind.steps.step import ExecutorStep
from tradewind.steps.values.bounds import PLAIN, field_names
from tradewind.steps.values.lazy import Lazy
from tradewind.steps.values.placeholders import InputName, MirroredValue, OutputName, VersionedValue
from tradewind.steps.values.run_values import Binding, RunValue
from tradewind.steps.values.shortened import shortened
from tradewind.steps.values.walk import bind_run_value, bind_run_values, describe
from tradewind.steps.version_recipe import Recipe


@dataclass(frozen=True)
class Filling:
    """What placeholders become: the prefix, this step's output path, those of the others, the run's values; and by
    which recipe the config is read. ``mirrors`` gets the mirrored paths that were filled in."""

    prefix: str
    output_path: str
    output_path_of: Callable[[ExecutorStep], str]
    binding: Binding
    recipe: Recipe = Recipe.JUNE_2026
    mirrors: list[Mirror] = field(default_factory=list)

    def input_path(self, reference: InputName) -> str:
        """The path that ``reference`` stands for."""
        if reference.step is None:
            return below(self.prefix, reference.name or "")
        return _inside(self.output_path_of(reference.step), reference.name)


def instantiate(config: Any, filling: Filling, path: str = "") -> Any:
    """A copy of ``config`` without placeholders.

    Raises:
        StepConfigError: A dataclass cannot be rebuilt with its real values.
        UnknownRunValueError: The run lacks a value.
    """
    if type(config) in PLAIN:
        return config
    if isinstance(config, ExecutorStep):
        return filling.input_path(config.as_input_name())
    if isinstance(config, InputName):
        return filling.input_path(config)
    if isinstance(config, OutputName):
        return _inside(filling.output_path, config.name)
    if isinstance(config, RunValue):
        return bind_run_value(config, path, filling.binding)
    if isinstance(config, VersionedValue):
        return bind_run_values(config.value, path, filling.binding)
    if isinstance(config, MirroredValue):
        mirror = _mirror(config, filling, path)
        filling.mirrors.append(mirror)
        return mirror.text
    return _instantiate_container(config, filling, path)


def _mirror(config: MirroredValue[Any], filling: Filling, path: str) -> Mirror:
    value = instantiate(config.value, filling, path)
    if not isinstance(value, (str, os.PathLike)):
        raise StepConfigError(
            f"{describe(path)}: mirrored() takes one path, and got {shortened(value)}: write it around each path."
        )
    is_output = isinstance(config.value, ExecutorStep) or (
        isinstance(config.value, InputName) and config.value.step is not None
    )
    text = str(value).removeprefix(MIRROR_SCHEME)
    return Mirror(describe(path), text, config.budget_gb, filling.prefix, is_output)


def _instantiate_container(config: Any, filling: Filling, path: str) -> Any:
    prefix = path + "." if path else ""
    if isinstance(config, Lazy):
        return Lazy(config.target, {k: instantiate(v, filling, prefix + k) for k, v in config.kwargs.items()})
    if (names := field_names(type(config))) is not None:  # type: ignore[arg-type]
        fields = {name: instantiate(getattr(config, name), filling, prefix + name) for name in names}
        try:
            return dataclasses.replace(config, **fields)
        except (TypeError, ValueError) as error:  # a field that __init__ does not take: ValueError before Python 3.13
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
