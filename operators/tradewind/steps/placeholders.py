"""What a config may hold in place of a value that is known only later.

Placeholders are plain frozen values. They know nothing of hashing or of paths: ``walk`` reads the version out of them
and ``instantiate`` puts the real values in. Semantics are those of Marin's executor of June 2026 ("E20").
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tradewind.steps.amounts import check_amount
from tradewind.steps.errors import ExperimentError

if TYPE_CHECKING:
    from tradewind.steps.step import ExecutorStep

T = TypeVar("T")


@dataclass(frozen=True)
class InputName:
    """A path inside another step's output, or (with no step) a hard-coded path, which counts in the version as text.

    Attributes:
        block_on_step: The step that reads the path waits for the other's end.
        must_succeed: It runs only if that end is a result.
    """

    step: ExecutorStep | None
    name: str | None
    block_on_step: bool = True
    must_succeed: bool = True

    def cd(self, name: str) -> InputName:
        """The path ``name`` below this one."""
        return replace(self, name=posixpath.join(self.name, name) if self.name else name)

    def __truediv__(self, name: str) -> InputName:
        return self.cd(name)

    def nonblocking(self) -> InputName:
        """The same path, without waiting for its step: it counts in the version, but draws no edge."""
        return replace(self, block_on_step=False)

    def even_if_failed(self) -> InputName:
        """The same path, read once its step has ended, with a result or without one: then there may be nothing."""
        return replace(self, must_succeed=False)

    def __format__(self, spec: str) -> str:
        raise ExperimentError(
            _no_text("A path inside a step's output", "step / 'part', or output_path_of(step, 'part')")
        )

    @staticmethod
    def hardcoded(path: str) -> InputName:
        """A path that no step of the experiment makes; a relative one is below the prefix."""
        return InputName(None, path)


@dataclass(frozen=True)
class OutputName:
    """A path inside the output of the step whose config holds it."""

    name: str | None

    def __format__(self, spec: str) -> str:
        raise ExperimentError(_no_text("A step's own output path", "this_output_path('part')"))


THIS_OUTPUT_PATH = OutputName(None)


@dataclass(frozen=True)
class VersionedValue(Generic[T]):
    """A value that counts towards the version of its step."""

    value: T


@dataclass(frozen=True)
class MirroredValue(Generic[T]):
    """A path that is copied from another region's bucket on first use, up to ``budget_gb`` gigabytes."""

    value: T
    budget_gb: float = 10


def _no_text(what: str, instead: str) -> str:
    """Why a placeholder is refused in an f-string, where its text would be a path that nobody makes."""
    return f"{what} is known only with the step's version, so it cannot be part of a text: write {instead}."


def output_path_of(step: ExecutorStep, name: str | None = None) -> Any:
    """The output path of ``step``, or the path ``name`` inside it.

    Typed ``Any``, as the other placeholders are, because it stands where a config field wants a ``str``.
    """
    return InputName(step, name)


def this_output_path(name: str | None = None) -> Any:
    """The output path of the step whose config holds this, or the path ``name`` inside it."""
    return OutputName(name)


def versioned(value: T) -> Any:
    """Make ``value`` count towards the version of the step whose config holds it.

    Raises:
        ValueError: ``value`` is already versioned, or is a path of a step, which counts by itself.
    """
    if isinstance(value, VersionedValue):
        raise ValueError("Can't nest VersionedValue")
    if isinstance(value, InputName):
        raise ValueError("Can't version an InputName")
    return VersionedValue(value)


def ensure_versioned(value: Any) -> Any:
    """``versioned(value)``, unless it is versioned already."""
    return value if isinstance(value, VersionedValue) else VersionedValue(value)


def mirrored(value: Any, budget_gb: float = 10) -> Any:
    """Let the step read ``value`` from whichever region has it; neither this nor the budget counts in the version."""
    if isinstance(value, MirroredValue):
        raise ValueError("Can't nest MirroredValue")
    check_amount(budget_gb, "mirrored: budget_gb")
    return MirroredValue(value, budget_gb)


# Mirrors: paths of a config that the step reads in the region of its run, wherever they are.

MIRROR_SCHEME: Final = "mirror://"


@dataclass(frozen=True)
class Mirror:
    """One path that a config gives as ``mirrored(...)``.

    Attributes:
        field: Where it stands, such as ``config.data``.
        path: Below the prefix of any region, or absolute.
        budget_gb: The most gigabytes (1e9 bytes) that may be copied for it; None for any number.
        prefix: That of the run.
        is_output: It lies in the output of a step that this one refers to, and so is made before.
    """

    field: str
    path: str
    budget_gb: float | None
    prefix: str
    is_output: bool = False

    @property
    def text(self) -> str:
        """What stands in the filled-in config until the step runs."""
        return MIRROR_SCHEME + self.path


# ``lazy``: an object of a heavy library, named in a DAG file and built on the cluster.
#
# It hashes as the real dataclass would whose versioned fields are given here. Fields that are not given take their
# defaults on the cluster; a default cannot be versioned from here, because reading it would import the library.

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
    """Stand for ``target(**kwargs)``, built on the cluster: ``lazy("levanter.models.llama:LlamaConfig", n=4)``.

    Give fields that refer to steps in the order in which the class declares them: their order counts in the version.

    Raises:
        ValueError: ``target`` is not of the form ``package.module:Name``.
    """
    return Lazy(target, kwargs)


# Values of heavy libraries that only a cluster can make: here it is known how to get them, and nothing else.
#
# Unlike ``lazy``, which a DAG file's author writes, these come from files that import the libraries themselves.


class ClusterValue:
    """What stands for such a value. It has no names of its own, since those of the value are asked of it."""

    __slots__ = ()

    def _tradewind_reference(self) -> ClusterReference | None:
        raise NotImplementedError


@dataclass(frozen=True)
class ModuleReference:
    """It is a part of a module."""

    module: str
    path: str


@dataclass(frozen=True)
class AttributeReference:
    """It is an attribute of another."""

    of: ClusterValue
    attribute: str


@dataclass(frozen=True)
class CallReference:
    """It is what calling another gives."""

    of: ClusterValue
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


ClusterReference = ModuleReference | AttributeReference | CallReference


def cluster_reference(value: ClusterValue) -> ClusterReference | None:
    """How a cluster gets ``value``; None for what is only good for annotations."""
    return value._tradewind_reference()
