"""DAG params without Airflow, so that a DAG file can also be imported on a cluster that has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_NUMBER_TYPES = {"integer": int, "number": float}


@dataclass(frozen=True, init=False)
class Param:
    """A value that a person can change in the trigger form: a default, and a JSON schema that checks what comes in.

    ``Param(0.003, "Peak learning rate", type="number", minimum=0)``; takes what ``airflow.sdk.Param`` takes.
    """

    default: Any
    description: str | None
    schema: dict[str, Any]

    def __init__(self, default: Any, description: str | None = None, **schema: Any) -> None:
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "description", description)
        object.__setattr__(self, "schema", schema)


def coerce_param(value: Any, json_type: str | list[str] | None, default: Any) -> Any:
    """``value`` as its param's schema means it: JSON gives ``1`` and ``1.0`` freely, but they hash differently.

    Without a schema the type of the default decides. A value that does not fit is returned as it is: refusing it is
    the schema's own work.
    """
    types = [json_type] if isinstance(json_type, str) else list(json_type or [])
    if not types and isinstance(default, (int, float)) and not isinstance(default, bool):
        types = ["number" if isinstance(default, float) else "integer"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if not math.isfinite(value):
        return value
    wanted = [_NUMBER_TYPES[name] for name in types if name in _NUMBER_TYPES]
    if len(wanted) != 1 or wanted[0](value) != value:
        return value
    return wanted[0](value)
