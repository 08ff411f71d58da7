"""The step: a name, a function, its config, and where it runs. Only name and config make its version."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tradewind.steps.errors import ExperimentError
from tradewind.steps.placeholders import InputName
from tradewind.steps.resources import Resources
from tradewind.steps.resumable import check_globs
from tradewind.steps.secrets import check_secrets
from tradewind.text import truncated_repr

# Recipes of the text that a version is the hash of. They differ only where Marin's executor changed its mind.


class Recipe(Enum):
    """Whose text a step's version is."""

    JUNE_2026 = "june-2026"
    """The one that this project writes: nested dataclasses and enums by their values, sequences of every kind walked,
    dependencies below the fourth level by name and hash."""
    NOVEMBER_2025 = "november-2025"
    """Marin's last under Ray, for experiments of that time: a dataclass or an enum inside ``versioned(...)`` counts as
    the text that Python shows of it, tuples and sets are not looked into, and dependencies appear whole."""

    @property
    def shows_dataclasses(self) -> bool:
        """A dataclass or an enum inside ``versioned(...)`` counts as its text, not as its values."""
        return self is Recipe.NOVEMBER_2025

    @property
    def walks_tuples(self) -> bool:
        """References and versioned values inside tuples and sets count."""
        return self is Recipe.JUNE_2026

    @property
    def deepest_nested(self) -> int | None:
        """Up to which depth a dependency appears whole; None: always."""
        return 4 if self is Recipe.JUNE_2026 else None


@dataclass(frozen=True, eq=False)
class ExecutorStep:
    """One step of an experiment.

    ``fn`` is called with the config once all placeholders in it have become values. Two step objects are the same step
    when their versions are equal; as dictionary keys and under ``==`` they are told apart by identity.

    Attributes:
        name: The first part of the output path; may hold ``/``.
        fn: What the step does. It must be importable on the cluster, so neither a lambda nor a local function.
        config: Any object, usually a dataclass; see ``versioned``, ``output_path_of`` and ``this_output_path``.
        description: For people; outside the version.
        override_output_path: An output path instead of ``{prefix}/{name}-{hash}``; relative ones are below the prefix.
        resources: Where it runs; one CPU of the cluster if not given.
        pip_dependency_groups: Extras of the project that the step's environment needs beyond the image.
        cluster: The cluster to run on, by the id of its ``ray`` connection, if not the DAG's.
        secrets: Environment variable -> where the cluster finds its value: ``projects/P/secrets/S`` in Secret Manager
            or ``env:VARIABLE``. The function finds it in ``os.environ``; outside the version.
        resumable: Globs, relative to the output, of what a next attempt goes on from (checkpoints, finished shards);
            everything else that an attempt without a result leaves is removed before the next. Outside the version.
        recipe: How the text of its version is made; experiments of Marin's Ray era have that era's.
    """

    name: str
    fn: Callable[..., Any] | None
    config: Any
    description: str | None = None
    override_output_path: str | None = None
    resources: Resources | None = None
    pip_dependency_groups: list[str] | None = None
    cluster: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    resumable: Sequence[str] = ()
    recipe: Recipe = Recipe.JUNE_2026

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ExperimentError(f"A step's name must be a text, but is {truncated_repr(self.name)}.")
        if not isinstance(self.description, (str, type(None))):
            raise ExperimentError(
                f"Step {self.name!r}: description must be a text, but is {truncated_repr(self.description)}."
            )
        self._check_placing()
        object.__setattr__(self, "resumable", check_globs(self.resumable, f"Step {self.name!r}"))
        object.__setattr__(self, "secrets", check_secrets(self.secrets, f"Step {self.name!r}"))

    def _check_placing(self) -> None:
        """Where it runs is read only once the steps before it have run, so what cannot be is refused here."""
        if not isinstance(self.resources, Resources | None):
            raise ExperimentError(
                f"Step {self.name!r}: resources must be Cpu, Gpu, TpuSlice, Hosts, on_head_node() or "
                f"on_airflow_worker(), such as TpuSlice('v4-16'), but is {truncated_repr(self.resources)}."
            )
        if not isinstance(self.cluster, str | None):
            raise ExperimentError(
                f"Step {self.name!r}: cluster must be the id of a connection, but is {truncated_repr(self.cluster)}."
            )
        groups = self.pip_dependency_groups
        is_list = isinstance(groups, list | tuple | None) and all(isinstance(group, str) for group in groups or ())
        if not is_list:
            raise ExperimentError(
                f"Step {self.name!r}: pip_dependency_groups (not shown, for it may hold a secret) must be a list of "
                "texts, such as ['scipy==1.14']."
            )

    def __class_getitem__(cls, config: Any) -> types.GenericAlias:
        """``ExecutorStep[Config]``, which Marin's helpers write in annotations."""
        return types.GenericAlias(cls, config)

    def __repr__(self) -> str:
        return f"ExecutorStep({self.name!r})"

    def __format__(self, spec: str) -> str:
        return format(self.as_input_name(), spec)

    def cd(self, name: str) -> InputName:
        """The path ``name`` inside this step's output."""
        return InputName(self, name)

    def __truediv__(self, name: str) -> InputName:
        return self.cd(name)

    def as_input_name(self) -> InputName:
        """This step's output path."""
        return InputName(self, None)

    def nonblocking(self) -> InputName:
        """This step's output path, without waiting for the step."""
        return self.as_input_name().nonblocking()

    def even_if_failed(self) -> InputName:
        """This step's output path, for a step that waits for its end and runs also if it failed.

        Let the function of that step raise an error once it has written what it can: its output is no result then, and
        the next run makes both again.
        """
        return self.as_input_name().even_if_failed()

    def with_output_path(self, path: str) -> ExecutorStep:
        """The same step with its output at ``path``."""
        return replace(self, override_output_path=path)


# ``@remote``: a step function that runs as a Ray task, marked without importing Ray.


class RemoteFunction:
    """A function and the options of the Ray task that it runs as. Called directly, it is just the function."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def remote(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Run the decorated step function as a Ray task: ``@remote`` or ``@remote(num_cpus=4, ...)``.

    ``options`` are those of ``ray.remote``; they are outside the version.
    """
    if function is not None:
        return RemoteFunction(function, {})
    return lambda decorated: RemoteFunction(decorated, options)
