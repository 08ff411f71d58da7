"""Serialize a call of a Python function as JSON, for a cluster without Airflow and without the DAG file.

A function of a module that a cluster can import is named (``module:qualname``). A function of a DAG file, or of any
file that imports Airflow, travels as source (see ``source_slices``). It may use the imports, constants, functions and
classes of its file, but neither variables of an enclosing function nor anything of Airflow's. Arguments are encoded
like in a step's spec: plain values, dataclasses, dates, paths; there is no pickle.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tradewind.serialization.errors import SpecError
from tradewind.serialization.references import CodeFolder, Reference, reference_to
from tradewind.serialization.source_slices import FunctionSource, imports_airflow, source_of
from tradewind.serialization.spec import Encoder, decode, modules_in
from tradewind.steps import RemoteFunction


@dataclass(frozen=True)
class ShippedFunction:
    """A function as a cluster finds it: exactly one of ``reference`` and ``source`` is set.

    Attributes:
        reference: ``module:qualname``.
        source: The function and the parts of its file that it needs.
        ray_task: Options of the Ray task that it runs as, or None to run it in the job's own process.
        travels: Whether the code folder must go with the job.
    """

    reference: str | None
    source: FunctionSource | None
    ray_task: dict[str, Any] | None
    travels: bool

    def __str__(self) -> str:
        return f"{self.source.file}:{self.source.name}" if self.source else str(self.reference)

    def load(self) -> Any:
        """Load the function on the cluster.

        Raises:
            FunctionImportError: It cannot be imported there.
        """
        return self.source.load() if self.source else Reference.parse(str(self.reference)).load()


@dataclass(frozen=True)
class Call:
    """One call as JSON.

    Attributes:
        function: The function to call.
        args: The encoded positional arguments.
        kwargs: The encoded keyword arguments.
        marker: The beginning of the line with the result.
        travels: Whether the code folder must go with the job, for the function or for an argument.
    """

    function: ShippedFunction
    args: list[Any]
    kwargs: dict[str, Any]
    marker: str
    travels: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Call:
        """Parse the call in ``text``."""
        fields = json.loads(text)
        function = dict(fields.pop("function"))
        source = function.pop("source")
        return Call(ShippedFunction(source=FunctionSource.from_json(source) if source else None, **function), **fields)

    @property
    def modules(self) -> set[str]:
        """The modules that the function and the arguments need."""
        of_source = self.function.source.imports if self.function.source else []
        return {*of_source, *modules_in([{"$object": self.function.reference}, self.args, self.kwargs])}

    def load_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Decode the arguments."""
        return decode(self.args), {name: decode(value) for name, value in self.kwargs.items()}


def describe_callable(function: Any, code: CodeFolder) -> ShippedFunction:
    """Describe how a cluster finds ``function``.

    Raises:
        SpecError: It cannot travel; the message says why and what to do.
    """
    ray_task = dict(function.options) if isinstance(function, RemoteFunction) else None
    target = function.function if isinstance(function, RemoteFunction) else function
    if isinstance(target, functools.partial) or (inspect.ismethod(target) and not inspect.isclass(target.__self__)):
        raise SpecError(f"{target!r} is bound to values that cannot travel: give a function, and its arguments apart.")
    plain = inspect.unwrap(target) if callable(target) else target
    if isinstance(plain, types.FunctionType) and _needs_source(target, plain):
        shown_file = code.relative_file(plain.__module__) or os.path.basename(plain.__code__.co_filename)
        source = source_of(plain, str(shown_file))
        tops = [code.path / name.partition(".")[0] for name in source.imports]
        travels = any(top.is_dir() or top.with_suffix(".py").is_file() for top in tops)
        return ShippedFunction(None, source, ray_task, travels)
    reference = reference_to(target, code)
    return ShippedFunction(str(reference), None, ray_task, reference.travels)


def describe_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], code: CodeFolder, marker: str) -> Call:
    """Serialize the call ``function(*args, **kwargs)``.

    Raises:
        SpecError: The function or an argument cannot travel, or the function does not take these arguments.
    """
    described = describe_callable(function, code)
    _check_arguments(function, described, args, kwargs)
    encoder = _ArgumentEncoder(code)
    written = [encoder.encode(value, f"argument {index}") for index, value in enumerate(args, 1)]
    named = {name: encoder.encode(value, f"argument {name!r}") for name, value in kwargs.items()}
    return Call(described, written, named, marker, described.travels or encoder.travels)


def _check_arguments(function: Any, described: ShippedFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtin functions have no signature
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SpecError(f"{described} cannot be called like this: {error}.") from None


class _ArgumentEncoder(Encoder):
    """Also encodes Airflow's results of mapped tasks, and refuses classes that cannot travel."""

    def encode(self, value: Any, where: str) -> Any:
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, list, tuple)):
            value = list(value)
        return super().encode(value, where)

    def refer(self, target: Any) -> Reference:
        if _file_needs_airflow(getattr(target, "__module__", "")):
            raise SpecError(
                f"An argument is or holds {getattr(target, '__qualname__', target)!r}, which is defined in a file that "
                "imports Airflow, and a cluster cannot import that: define it in a module of its own."
            )
        return super().refer(target)


def _needs_source(target: Any, plain: types.FunctionType) -> bool:
    """Whether importing its module on a cluster would fail or give another function."""
    found: Any = sys.modules.get(plain.__module__)
    for name in plain.__qualname__.split("."):
        found = getattr(found, name, None)
    if isinstance(found, RemoteFunction):
        found = found.function
    return _file_needs_airflow(plain.__module__) or (found is not target and found is not plain)


def _file_needs_airflow(module: str) -> bool:
    """Whether the module imports Airflow or is a DAG file, which Airflow loads under a generated name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.startswith("unusual_prefix_") or bool(file and imports_airflow(file))
