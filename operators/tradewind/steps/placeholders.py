"""Placeholders: config values that are known only later.

Placeholders are plain frozen values. They know nothing of hashing or of paths: ``config_walk`` reads the version from
them and fills in the values. Semantics are those of Marin's executor of June 2026 ("E20").
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tradewind.steps.amounts import check_amount
from tradewind.steps.errors import ExperimentError
from tradewind.text import truncated_repr

if TYPE_CHECKING:
    from tradewind.steps.step import ExecutorStep

T = TypeVar("T")


@dataclass(frozen=True)
class InputName:
    """A path inside another step's output, or (without a step) a hard-coded path, versioned as text.

    Attributes:
        block_on_step: The reading step waits for the end of the other step.
        must_succeed: The reading step runs only if the other has a result.
    """

    step: ExecutorStep | None
    name: str | None
    block_on_step: bool = True
    must_succeed: bool = True

    def __post_init__(self) -> None:
        _check_part(self.name)

    def cd(self, name: str) -> InputName:
        """Return the path ``name`` below this one."""
        return replace(self, name=posixpath.join(self.name, name) if self.name else name)

    def __truediv__(self, name: str) -> InputName:
        return self.cd(name)

    def nonblocking(self) -> InputName:
        """Return the same path without waiting for its step: it counts in the version, but adds no edge."""
        return replace(self, block_on_step=False)

    def even_if_failed(self) -> InputName:
        """Return the same path, read once its step has ended; without a result the path may be empty."""
        return replace(self, must_succeed=False)

    def __format__(self, spec: str) -> str:
        raise ExperimentError(
            _no_text("A path inside a step's output", "step / 'part', or output_path_of(step, 'part')")
        )

    @staticmethod
    def hardcoded(path: str) -> InputName:
        """Make a path that no step of the experiment makes; a relative one is below the prefix."""
        return InputName(None, path)


@dataclass(frozen=True)
class OutputName:
    """A path inside the output of the step whose config contains it."""

    name: str | None

    def __post_init__(self) -> None:
        _check_part(self.name)

    def __format__(self, spec: str) -> str:
        raise ExperimentError(_no_text("A step's own output path", "this_output_path('part')"))


def _check_part(name: Any) -> None:
    if name is not None and (not isinstance(name, (str, os.PathLike)) or "\0" in str(name)):
        raise ExperimentError(f"A path inside an output must be text without NULs, but is {truncated_repr(name)}.")


THIS_OUTPUT_PATH = OutputName(None)


@dataclass(frozen=True)
class VersionedValue(Generic[T]):
    """A value that counts in the version of its step."""

    value: T


@dataclass(frozen=True)
class MirroredValue(Generic[T]):
    """A path that is copied from another region's bucket on first use, up to ``budget_gb`` gigabytes."""

    value: T
    budget_gb: float = 10


def _no_text(what: str, instead: str) -> str:
    """Refuse a placeholder in an f-string, where its text would be a path that no step makes."""
    return f"{what} is known only with the step's version, so it cannot be part of a text: write {instead}."


def output_path_of(step: ExecutorStep, name: str | None = None) -> Any:
    """Return the output path of ``step``, or the path ``name`` inside it.

    Typed ``Any``, like the other placeholders, because it replaces a ``str`` in a config field.
    """
    return InputName(step, name)


def this_output_path(name: str | None = None) -> Any:
    """Return the output path of the step whose config contains this, or the path ``name`` inside it."""
    return OutputName(name)


def versioned(value: T) -> Any:
    """Make ``value`` count in the version of the step whose config contains it.

    Raises:
        ValueError: ``value`` is already versioned, or is a path of a step, which always counts.
    """
    if isinstance(value, VersionedValue):
        raise ValueError("Can't nest VersionedValue")
    if isinstance(value, InputName):
        raise ValueError("Can't version an InputName")
    return VersionedValue(value)


def ensure_versioned(value: Any) -> Any:
    """Return ``versioned(value)``, unless it is versioned already."""
    return value if isinstance(value, VersionedValue) else VersionedValue(value)


def mirrored(value: Any, budget_gb: float = 10) -> Any:
    """Let the step read ``value`` from any region that has it; neither value nor budget is versioned."""
    if isinstance(value, MirroredValue):
        raise ValueError("Can't nest MirroredValue")
    check_amount(budget_gb, "mirrored: budget_gb")
    return MirroredValue(value, budget_gb)


# Mirrors: config paths that the step reads in the region of its run, wherever they are.

MIRROR_SCHEME: Final = "mirror://"


@dataclass(frozen=True)
class Mirror:
    """One path that a config gives as ``mirrored(...)``.

    Attributes:
        field: Its config path, such as ``config.data``.
        path: Below the prefix of any region, or absolute.
        budget_gb: Maximum gigabytes (1e9 bytes) to copy for it; None for no limit.
        prefix: The run's prefix.
        is_output: It is in the output of a referenced step, so the run makes it first.
    """

    field: str
    path: str
    budget_gb: float | None
    prefix: str
    is_output: bool = False

    @property
    def text(self) -> str:
        """The text in the filled-in config until the step runs."""
        return MIRROR_SCHEME + self.path


# ``lazy``: an object of a heavy library, named in a DAG file and built on the cluster.
#
# It hashes like the real dataclass with the given versioned fields. Fields that are not given take their defaults on
# the cluster. A default cannot be versioned here, because reading it would import the library.

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Lazy:
    """A class or function to call on the cluster (``"package.module:Name"``), and its keyword arguments."""

    __slots__ = ("kwargs", "target")

    def __init__(self, target: str, kwargs: dict[str, Any]) -> None:
        if not _TARGET.fullmatch(target):
            raise ValueError(f"lazy({target!r}): write the target as 'package.module:Name'.")
        self.target = target
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"lazy({self.target!r}, {', '.join(f'{key}={value!r}' for key, value in self.kwargs.items())})"


def lazy(target: str, /, **kwargs: Any) -> Any:
    """Defer ``target(**kwargs)`` to the cluster: ``lazy("levanter.models.llama:LlamaConfig", n=4)``.

    Give fields that refer to steps in the order in which the class declares them: their order counts in the version.

    Raises:
        ValueError: ``target`` does not have the form ``package.module:Name``.
    """
    return Lazy(target, kwargs)


# Cluster values: values of heavy libraries, known here only by how a cluster gets them.
#
# The author of a DAG file writes ``lazy``; cluster values come from files that import the libraries themselves.


class ClusterValue:
    """Replaces such a value. It has no public names of its own, since attribute access is for the value's."""

    __slots__ = ()

    def _tradewind_reference(self) -> ClusterReference | None:
        raise NotImplementedError


@dataclass(frozen=True)
class ModuleReference:
    """A part of a module."""

    module: str
    path: str


@dataclass(frozen=True)
class AttributeReference:
    """An attribute of another cluster value."""

    of: ClusterValue
    attribute: str


@dataclass(frozen=True)
class CallReference:
    """The result of calling another cluster value."""

    of: ClusterValue
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


ClusterReference = ModuleReference | AttributeReference | CallReference


def cluster_reference(value: ClusterValue) -> ClusterReference | None:
    """Return how a cluster gets ``value``; None for values that only annotations use."""
    return value._tradewind_reference()
