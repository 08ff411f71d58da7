"""Values of a run, not of the DAG file: its params, its night, its partition.

A config holds them as ``RunValue`` placeholders. They count in the version only under ``versioned``, so all dates of a
backfill share the steps that do not depend on the date.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import Any, Protocol

from tradewind.steps.bounds import check_bounded
from tradewind.steps.errors import ExperimentError, UnknownRunValueError
from tradewind.text import truncated_repr


class RunValueKind(Enum):
    """Where a run value comes from."""

    PARAM = "run_param"
    NIGHT = "night"
    PARTITION_KEY = "partition_key"
    DATA_INTERVAL_START = "data_interval_start"
    DATA_INTERVAL_END = "data_interval_end"


@dataclass(frozen=True)
class RunValue:
    """A placeholder for a value that is known once a run exists; ``name`` is a param's."""

    kind: RunValueKind
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}({self.name!r})" if self.name else f"{self.kind.value}()"

    def __format__(self, spec: str) -> str:
        """Refuse formatting: the text would be equal in every run, so a step named by its night would run once."""
        raise ExperimentError(
            f"{self!s} has no value yet, so it cannot be part of a text: give it to a config field of its own, and let "
            "the step's function put the text together."
        )


@dataclass(frozen=True)
class RunPath:
    """A path that no step of the experiment makes and that a run's value gives, or none; versioned as text.

    A relative one is below the prefix. It must be below a root that the deployment allows.
    """

    value: RunValue


def run_param(name: str) -> Any:
    """Return the placeholder for the run's DAG param ``name``."""
    if not isinstance(name, str):
        raise ExperimentError(f"run_param takes the name of a param, but got {truncated_repr(name)}.")
    return RunValue(RunValueKind.PARAM, name)


def night() -> Any:
    """The date (``datetime.date``) of the run's night: where its data interval starts, in the schedule's time zone."""
    return RunValue(RunValueKind.NIGHT)


logical_date = night


def partition_key() -> Any:
    """The run's partition key, a string."""
    return RunValue(RunValueKind.PARTITION_KEY)


def data_interval_start() -> Any:
    """Where the run's data interval starts, as ISO 8601 text in UTC."""
    return RunValue(RunValueKind.DATA_INTERVAL_START)


def data_interval_end() -> Any:
    """Where the run's data interval ends, as ISO 8601 text in UTC."""
    return RunValue(RunValueKind.DATA_INTERVAL_END)


class RunValueSource(Protocol):
    """Gives a ``RunValue`` its value."""

    def value_of(self, wanted: RunValue) -> Any:
        """Return the value, or raise ``UnknownRunValueError``."""


@dataclass(frozen=True)
class RunValues:
    """The values of one run; a value that the run lacks is None.

    Raises:
        StepConfigError: A param is too deep, too large, not a finite number, or cyclic.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    night: datetime.date | None = None
    partition_key: str | None = None
    data_interval_start: str | None = None
    data_interval_end: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.params.items():
            check_bounded(value, f"param {truncated_repr(name)}", is_json=True)

    def value_of(self, wanted: RunValue) -> Any:
        """Return the run's value for ``wanted``.

        Raises:
            UnknownRunValueError: The run lacks the value.
        """
        if wanted.kind is RunValueKind.PARAM:
            if wanted.name is None or wanted.name not in self.params:
                known = ", ".join(sorted(self.params)) or "none at all"
                raise UnknownRunValueError(f"{wanted!s} is not a param of this DAG, which has {known}.")
            return self.params[wanted.name]
        value = getattr(self, wanted.kind.value)
        if value is None:
            raise UnknownRunValueError(f"{wanted!s} has no value in this run: it needs a DAG run that has one.")
        return value


class RunValueText(str):
    """Replaces a run value while a DAG file is checked: its name, which a config's own checks accept."""

    __slots__ = ()


@dataclass(frozen=True)
class ParseTimeValues:
    """Gives every run value its own name, so that a DAG file can be checked before a run exists."""

    param_names: frozenset[str]

    def value_of(self, wanted: RunValue) -> Any:
        """Return the text of ``wanted``; a param that the DAG lacks raises here already."""
        if wanted.kind is RunValueKind.PARAM:
            RunValues(params=dict.fromkeys(self.param_names)).value_of(wanted)
        return RunValueText(wanted)


# DAG params without Airflow, so that a cluster without Airflow can import a DAG file.

_NUMBER_TYPES = {"integer": int, "number": float}


@dataclass(frozen=True, init=False)
class Param:
    """A value that a user can change in the trigger form: a default, and a JSON schema for validation.

    ``Param(0.003, "Peak learning rate", type="number", minimum=0)``; takes the arguments of ``airflow.sdk.Param``.
    """

    default: Any
    description: str | None
    schema: dict[str, Any]

    def __init__(self, default: Any, description: str | None = None, **schema: Any) -> None:
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "description", description)
        object.__setattr__(self, "schema", schema)


def param_default(param: Any) -> Any:
    """Return the default of a ``Param``, of one of Airflow's, or the plain default itself."""
    return param.default if isinstance(param, Param) else getattr(param, "value", param)


def coerce_param(value: Any, schema: Any, default: Any) -> Any:
    """Convert the numbers in ``value`` to their schema: JSON mixes ``1`` and ``1.0``, but they hash differently.

    Without a schema the type of the default decides, for each number in lists and dictionaries too; where the default
    has none, whole numbers are integers. An invalid value is returned unchanged: the schema's validation refuses it.

    Args:
        value: What the run has; not too deep to be walked.
    """
    schema = _flat(schema)
    if isinstance(value, list):
        defaults = list(default) if isinstance(default, (list, tuple)) else []
        typical = [*defaults, *[_typical(defaults)] * (len(value) - len(defaults))]
        first, others = schema.get("prefixItems"), schema.get("items")
        items = [*(first if isinstance(first, list) else []), *repeat(others, len(value))]
        return [coerce_param(each, item, one) for each, item, one in zip(value, items, typical, strict=False)]
    if isinstance(value, dict):
        by_key = default if isinstance(default, Mapping) else {}
        fields, others = schema.get("properties"), schema.get("additionalProperties")
        fields = fields if isinstance(fields, Mapping) else {}
        other = _typical(list(by_key.values()))
        return {key: coerce_param(each, fields.get(key, others), by_key.get(key, other)) for key, each in value.items()}
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    try:
        return _as_number(value, schema["type"], default)
    except (OverflowError, ValueError):  # an infinity, NaN, or a whole number that no float can be
        return value


def _flat(schema: Any) -> dict[str, Any]:
    """Return what a schema and its alternatives say of a value, and all their types; an invalid one says nothing."""
    if not isinstance(schema, Mapping):
        return {"type": []}
    flat, types = dict(schema), schema.get("type")
    types = types if isinstance(types, list) else [types]
    for key in ("anyOf", "oneOf", "allOf"):
        for each in map(_flat, schema[key] if isinstance(schema.get(key), list) else []):
            types = types + each["type"]
            flat = each | flat
    return flat | {"type": [name for name in types if isinstance(name, str)]}


def _typical(defaults: list[Any]) -> Any:
    """Return the default of a value that the default lacks: a fraction if there is one, else the first."""
    return next((each for each in defaults if isinstance(each, float)), defaults[0] if defaults else None)


def _as_number(value: float, types: list[str], default: Any) -> float:
    if not types and isinstance(default, (int, float)) and not isinstance(default, bool):
        types = ["number" if isinstance(default, float) else "integer"]
    if not types and abs(value) < 2**53:
        types = ["integer"]
    wanted = [_NUMBER_TYPES[name] for name in types if name in _NUMBER_TYPES]
    return value if len(wanted) != 1 or wanted[0](value) != value else wanted[0](value)
