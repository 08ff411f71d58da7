"""The spec: everything a cluster needs to run one attempt, as plain JSON in the attempt's file.

Configs are encoded with one tagged object per value that JSON lacks (``{"$dataclass": "module:Name", ...}``). There is
no pickle: users can read a record, and so can other versions of Python and of the libraries.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import difflib
import importlib
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

from tradewind.records.parsing import ANYTHING, FLAG, OBJECT, TEXT, RecordFormatError, list_of, object_of, parse_fields
from tradewind.serialization.errors import LazyBuildError, SpecError
from tradewind.serialization.mirrors import MirroredPath, locate_mirrors, with_local_paths
from tradewind.serialization.references import CodeFolder, Reference, reference_to
from tradewind.steps import (
    RESOURCE_KINDS,
    AttributeReference,
    CallReference,
    ClusterValue,
    Cpu,
    ExecutorStep,
    InputName,
    Lazy,
    MirroredValue,
    ModuleReference,
    OutputName,
    RemoteFunction,
    ResolvedStep,
    Resources,
    VersionedValue,
    cluster_reference,
    kind_of_resources,
)
from tradewind.steps.run_values import RunValue

TRANSLATED_BY: Final = "__translated_by__"
"""Attribute of a class whose objects are translated on the cluster: the translator as ``module:function``."""
_MARINS_FUNCTIONS: Final = "tradewind.marin.checkout_functions"
"""Maps Marin's functions to Tradewind's on a cluster; a text, since that module imports this one."""
_PLACEHOLDERS = (ExecutorStep, InputName, OutputName, VersionedValue, MirroredValue, RunValue)
_KINDS: Final = {
    "name": TEXT,
    "version": TEXT,
    "output_path": TEXT,
    "function": TEXT,
    "ray_task": OBJECT.or_null(),
    "config": ANYTHING,
    "resources": OBJECT,
    "code_travels": FLAG,
    "secrets": object_of(TEXT),
    "environment": OBJECT,
    "resumable": list_of(TEXT),
    "roots": list_of(TEXT),
    "mirrors": list_of(OBJECT),
}
_REQUIRED: Final = ("name", "version", "output_path", "function", "ray_task", "config", "resources", "code_travels")


@dataclass(frozen=True)
class StepSpec:
    """Contents of one attempt's spec.

    Attributes:
        name: The step's name, for messages.
        version: ``name-hash``.
        output_path: The path of the output and its records.
        function: ``module:qualname``.
        ray_task: Options of the Ray task that the function runs as, or None if it runs in the driver's child process.
        config: The encoded config.
        resources: The encoded resources.
        code_travels: Whether the code folder must go with the job.
        secrets: Environment variable -> the reference to its value.
        environment: Fields of Ray's runtime_env from its dependency groups.
        resumable: Globs of files that the next attempt resumes from, relative to the output.
        roots: Roots of the output and its inputs; empty in attempts that were claimed before roots existed.
        mirrors: The mirrored paths of the config, each with its location and its sources.
    """

    name: str
    version: str
    output_path: str
    function: str
    ray_task: dict[str, Any] | None
    config: Any
    resources: dict[str, Any]
    code_travels: bool
    secrets: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    resumable: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    mirrors: tuple[MirroredPath, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON reads it back, without tuples."""
        mirrors = [mirror.to_json() for mirror in self.mirrors]
        return {**asdict(self), "resumable": list(self.resumable), "roots": list(self.roots), "mirrors": mirrors}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> StepSpec:
        """Parse the spec in an attempt's file.

        Raises:
            SpecError: It is not a spec.
        """
        try:
            known = parse_fields(fields, _KINDS, _REQUIRED)
        except RecordFormatError as error:
            raise SpecError(f"The spec in an attempt's file cannot be read, because {error}.") from None
        lists = {name: tuple(known.get(name, ())) for name in ("resumable", "roots")}
        mirrors = tuple(map(MirroredPath.from_json, known.get("mirrors", ())))
        return StepSpec(**{**known, **lists, "mirrors": mirrors})

    @property
    def fn_name(self) -> str:
        """The function as ``module.qualname``."""
        return self.function.replace(":", ".")

    @property
    def modules(self) -> set[str]:
        """The modules of the function, and of the classes and functions in the config."""
        return modules_in({"$object": self.function, "config": self.config})

    def load_function(self, report: Callable[[str], object] = lambda sentence: None) -> Any:
        """Import the function; Tradewind's replacement of a Marin function is reported through ``report``.

        Raises:
            FunctionImportError: It is missing.
        """
        reference = Reference.parse(self.function)
        if reference.module.partition(".")[0] == "marin":
            function = importlib.import_module(_MARINS_FUNCTIONS).load(reference, report)
        else:
            function = reference.load()
        return function.function if isinstance(function, RemoteFunction) else function

    def load_config(self) -> Any:
        """Build the config, which imports heavy libraries; mirrored paths are those of the run's region."""
        paths = {mirror.text: mirror.path for mirror in self.mirrors}
        return decode(with_local_paths(self.config, paths) if paths else self.config)

    def load_resources(self) -> Resources:
        """Decode the resources."""
        fields = dict(self.resources)
        kind = fields.pop("kind", None)
        try:
            resources: Resources = RESOURCE_KINDS[kind](**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"Step {self.name!r}: its resources are of an unknown kind.") from error
        return resources


def step_spec(step: ResolvedStep, code: CodeFolder, prefixes: Sequence[str] = ()) -> StepSpec:
    """Serialize ``step`` for the cluster; its mirrored paths may be copied from ``prefixes``.

    Raises:
        SpecError: It has no function, or one that no cluster could import; a config value cannot be encoded; or a
            mirrored path is not below a prefix.
    """
    function = step.step.fn
    if function is None:
        raise SpecError(f"Step {step.name!r} has no function and no finished output at {step.output_path}.")
    encoder = Encoder(code)
    try:
        reference = encoder.refer(function)
        config = encoder.encode(step.config, "config")
        mirrors = locate_mirrors(step.mirrors, prefixes)
    except SpecError as error:
        raise type(error)(f"Step {step.name!r}: {error}") from error
    return StepSpec(
        name=step.name,
        version=step.version_name,
        output_path=step.output_path,
        function=str(reference),
        ray_task=dict(function.options) if isinstance(function, RemoteFunction) else None,
        config=config,
        resources=encode_resources(step.step.resources or Cpu()),
        code_travels=encoder.travels,
        secrets=dict(step.step.secrets),
        resumable=tuple(step.step.resumable),
        mirrors=mirrors,
    )


def encode_resources(resources: Resources) -> dict[str, Any]:
    """Encode resources as JSON."""
    return {"kind": kind_of_resources(resources), **asdict(resources)}


class Encoder:
    """Encodes values and records whether any of them needs the code folder."""

    def __init__(self, code: CodeFolder) -> None:
        self.code = code
        self.travels = False

    def refer(self, target: Any) -> Reference:
        reference = reference_to(target, self.code)
        self.travels = self.travels or reference.travels
        return reference

    def encode(self, value: Any, where: str) -> Any:
        if isinstance(value, Enum):
            made = str(self.refer(type(value)))
            is_member = value.name in type(value).__members__  # a combination of flags is none
            return {"$enum": made, "name": value.name} if is_member else {"$flags": made, "value": value.value}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, _PLACEHOLDERS):
            raise SpecError(f"{where} still holds a {type(value).__name__}: placeholders do not work inside sets.")
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return self._encode_container(value, where)
        if isinstance(value, ClusterValue):
            return self._encode_reference(value, where)
        if isinstance(value, Lazy):
            return {"$lazy": value.target, "fields": self._encode_fields(value.kwargs, where)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value) if spec.init}
            return {**self._encode_class(type(value), where), "fields": self._encode_fields(fields, where)}
        for tag, (type_, write, _) in _PLAIN_TYPES.items():
            if isinstance(value, type_):
                return {tag: write(value)}
        if isinstance(value, type) or callable(value):
            return {"$object": str(self.refer(value))}
        raise SpecError(
            f"{where} is a {type(value).__qualname__}, which JSON cannot hold: use plain values, dataclasses or "
            "lazy('package.module:Name', ...)."
        )

    def _encode_class(self, made: type, where: str) -> dict[str, Any]:
        """Describe how a cluster finds the class; for an older library's class also its translator and file."""
        old = next((base for base in made.__mro__ if TRANSLATED_BY in vars(base)), None)
        if old is None:
            return {"$dataclass": str(self.refer(made))}
        by, of = vars(old)[TRANSLATED_BY], f"{old.__module__}:{old.__qualname__}"
        return {"$translated": by, "class": str(self.refer(made)), "of": of, "at": where}

    def _encode_reference(self, value: ClusterValue, where: str) -> Any:
        match cluster_reference(value):
            case ModuleReference():
                return {"$object": str(self.refer(value))}
            case CallReference(of, args, kwargs):
                written = [self.encode(item, f"{where}.[{i}]") for i, item in enumerate(args)]
                fields = self._encode_fields(kwargs, where)
                return {"$call": self.encode(of, where), "args": written, "fields": fields}
            case AttributeReference(of, attribute):
                return {"$attribute": attribute, "of": self.encode(of, where)}
        raise SpecError(f"{where} is made of types for annotations, which cannot be written as JSON.")

    def _encode_container(self, value: Any, where: str) -> Any:
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return self._encode_fields(value, where)
            return {"$dict": [[self.encode(k, where), self.encode(v, f"{where}.{k}")] for k, v in value.items()]}
        items = [self.encode(item, f"{where}.[{i}]") for i, item in enumerate(value)]
        if isinstance(value, list):
            return items
        if hasattr(value, "_fields"):
            return {"$namedtuple": str(self.refer(type(value))), "items": items}
        return {f"${type(value).__name__}": items}

    def _encode_fields(self, fields: Mapping[str, Any], where: str) -> dict[str, Any]:
        return {name: self.encode(value, f"{where}.{name}") for name, value in fields.items()}


def decode(value: Any) -> Any:
    """Decode an encoded value.

    Raises:
        FunctionImportError: A class or function that it names is missing on the cluster.
        LazyBuildError: A ``lazy`` object refuses its arguments.
        TranslationError: A value of an older library has no counterpart on the cluster.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: decode(item) for key, item in value.items()}
    if tag in _PLAIN_TYPES:
        return _PLAIN_TYPES[tag][2](value[tag])
    return _DECODERS[tag](value, value[tag])


def modules_in(value: Any) -> set[str]:
    """Return the modules that an encoded value names."""
    found: set[str] = set()
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            names = (item for tag, item in part.items() if tag.startswith("$") and isinstance(item, str))
            found |= {name.partition(":")[0] for name in names if ":" in name}
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return found


def _build(value: dict[str, Any], target: str) -> Any:
    return Reference.parse(target).load()(**{name: decode(field) for name, field in value["fields"].items()})


def _call(value: dict[str, Any], called: Any) -> Any:
    return decode(called)(
        *map(decode, value["args"]), **{name: decode(field) for name, field in value["fields"].items()}
    )


def _build_lazy(value: dict[str, Any], target: str) -> Any:
    try:
        return _build(value, target)
    except (TypeError, ValueError) as error:
        hint = _nearest_names(Reference.parse(target).load(), value["fields"])
        raise LazyBuildError(
            f"lazy({target!r}) cannot be built from {sorted(value['fields'])}: {error}{hint}"
        ) from error


def _nearest_names(called: Any, given: Iterable[str]) -> str:
    """Suggest names for the first argument in ``given`` that ``called`` does not accept, if a similar one exists."""
    try:
        known = list(inspect.signature(called).parameters)
    except (TypeError, ValueError):  # written in C
        return ""
    unknown = next((name for name in given if name not in known), None)
    near = difflib.get_close_matches(unknown, known, n=2) if unknown else []
    return f"; did you mean {' or '.join(near)}?" if near else ""


_PLAIN_TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "$datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "$date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "$timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "$path": (pathlib.PurePath, str, pathlib.Path),
    "$bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "$int": (int, int, int),
    "$float": (float, float, float),
    "$str": (str, str, str),
}

_DECODERS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "$enum": lambda value, target: Reference.parse(target).load()[value["name"]],
    "$flags": lambda value, target: Reference.parse(target).load()(value["value"]),
    "$dataclass": _build,
    "$translated": lambda value, by: Reference.parse(by).load()(value),
    "$lazy": _build_lazy,
    "$call": _call,
    "$attribute": lambda value, name: getattr(decode(value["of"]), name),
    "$object": lambda _, target: Reference.parse(target).load(),
    "$namedtuple": lambda value, target: Reference.parse(target).load()(*map(decode, value["items"])),
    "$dict": lambda _, items: {decode(key): decode(item) for key, item in items},
    "$tuple": lambda _, items: tuple(map(decode, items)),
    "$set": lambda _, items: set(map(decode, items)),
    "$frozenset": lambda _, items: frozenset(map(decode, items)),
}

# Environment variables that identify the step to its processes.

STEP_VARIABLE = "TRADEWIND_STEP"
"""The step's version; set in each of its processes, so that a DAG file imported there makes no DAG."""
OUTPUT_VARIABLE: Final = "TRADEWIND_OUTPUT_PATH"
"""Environment variable of a step's function: the output path of its step."""
