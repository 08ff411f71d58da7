"""The step: a name, a function, its config and its resources. Only name and config make its version."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tradewind.steps.errors import ExperimentError
from tradewind.steps.placeholders import InputName
from tradewind.steps.resources import Resources, requested_slice, slices_of
from tradewind.steps.resumable import check_globs
from tradewind.steps.secrets import check_secrets
from tradewind.text import truncated_repr

# Recipes of the text that a version hashes. They differ only where Marin's executor changed.


class Recipe(Enum):
    """The executor whose text a step's version hashes."""

    JUNE_2026 = "june-2026"
    """This project's recipe: dataclasses and enums by value, all sequences walked, deep dependencies by name.

    Dependencies below the fourth level appear as name and hash.
    """
    NOVEMBER_2025 = "november-2025"
    """Marin's last recipe under Ray, for experiments of that time.

    A dataclass or an enum inside ``versioned(...)`` counts as its Python text, tuples and sets are not walked, and
    dependencies appear whole.
    """

    @property
    def shows_dataclasses(self) -> bool:
        """Whether a dataclass or an enum inside ``versioned(...)`` counts as its text, not as its values."""
        return self is Recipe.NOVEMBER_2025

    @property
    def walks_tuples(self) -> bool:
        """Whether references and versioned values inside tuples and sets count."""
        return self is Recipe.JUNE_2026

    @property
    def deepest_nested(self) -> int | None:
        """The maximum depth at which a dependency appears whole; None: any."""
        return 4 if self is Recipe.JUNE_2026 else None


@dataclass(frozen=True, eq=False)
class ExecutorStep:
    """One step of an experiment.

    ``fn`` is called with the config once all placeholders in it are filled in. Two step objects are the same step if
    their versions are equal; as dictionary keys and under ``==`` they are compared by identity.

    Attributes:
        name: The first part of the output path; may hold ``/``.
        fn: What the step does. It must be importable on the cluster, so it is neither a lambda nor a local function.
        config: Any object, usually a dataclass; see ``versioned``, ``output_path_of`` and ``this_output_path``.
        description: For users; outside the version.
        override_output_path: An output path instead of ``{prefix}/{name}-{hash}``; relative ones are below the prefix.
        resources: Resources; if not given, the slice whose head ``fn`` requests from Ray, else one CPU.
        pip_dependency_groups: Extras of the project that the step's environment needs beyond the image.
        cluster: The cluster to run on, by the id of its ``ray`` connection, if not the DAG's.
        secrets: Environment variable -> where the cluster finds its value: ``projects/P/secrets/S`` in Secret Manager
            or ``env:VARIABLE``. The function finds it in ``os.environ``; outside the version.
        resumable: Globs, relative to the output, of files that the next attempt resumes from (checkpoints, finished
            shards); all other leftovers of an attempt without a result are removed before it. Outside the version.
        recipe: The recipe of its version; experiments of Marin's time under Ray use that time's.
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
        self._check_placement()
        object.__setattr__(self, "resumable", check_globs(self.resumable, f"Step {self.name!r}"))
        object.__setattr__(self, "secrets", check_secrets(self.secrets, f"Step {self.name!r}"))

    def _check_placement(self) -> None:
        """Refuse invalid placement early: it is used only once the steps before it have run."""
        if self.resources is None:
            object.__setattr__(self, "resources", requested_slice(task_options(self.fn)))
        elif (slices := slices_of(self.resources)) is not None:
            if self.resources.runtime_env:  # type: ignore[union-attr]
                raise ExperimentError(
                    f"Step {self.name!r}: resources=TpuPodConfig(runtime_env=...) has no effect on a step. Name "
                    "packages in pip_dependency_groups, and variables in its config or its secrets."
                )
            object.__setattr__(self, "resources", slices)
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
                f"Step {self.name!r}: pip_dependency_groups (not shown, since it may hold a secret) must be a list of "
                "texts, such as ['scipy==1.14']."
            )

    def __class_getitem__(cls, config: Any) -> types.GenericAlias:
        """``ExecutorStep[Config]``, which Marin's helpers use in annotations."""
        return types.GenericAlias(cls, config)

    def __repr__(self) -> str:
        return f"ExecutorStep({self.name!r})"

    def __format__(self, spec: str) -> str:
        return format(self.as_input_name(), spec)

    def cd(self, name: str) -> InputName:
        """Return the path ``name`` inside this step's output."""
        return InputName(self, name)

    def __truediv__(self, name: str) -> InputName:
        return self.cd(name)

    def as_input_name(self) -> InputName:
        """Return this step's output path."""
        return InputName(self, None)

    def nonblocking(self) -> InputName:
        """Return this step's output path, without waiting for the step."""
        return self.as_input_name().nonblocking()

    def even_if_failed(self) -> InputName:
        """Return this step's output path, for a step that waits for its end and runs even if it failed.

        Let the function of that step raise an error after it has written its output: then the output is not a result,
        and the next run makes both again.
        """
        return self.as_input_name().even_if_failed()

    def with_output_path(self, path: str) -> ExecutorStep:
        """Return the same step with its output at ``path``."""
        return replace(self, override_output_path=path)


# ``@remote``: a step function that runs as a Ray task, marked without importing Ray.


class RemoteFunction:
    """A function and the options of its Ray task. Called directly, it is the plain function."""

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


def plain_function(function: Any) -> Any:
    """Return the function under ``@remote`` or Ray's own ``@ray.remote``, or ``function`` itself."""
    if isinstance(function, RemoteFunction):
        return function.function
    return function._function if is_ray_function(function) else function


def task_options(function: Any) -> Mapping[str, Any]:
    """Return what ``@remote`` or ``@ray.remote`` requests for ``function``; nothing if neither decorates it."""
    if isinstance(function, RemoteFunction):
        return function.options
    return function._default_options if is_ray_function(function) else {}


def is_ray_function(function: Any) -> bool:
    """Whether ``@ray.remote`` decorates it; Ray is not imported for the answer."""
    return type(function).__module__ == "ray.remote_function"
