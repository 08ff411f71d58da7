"""A job to submit, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class JobRequest:
    """A job to submit under an id of our own; fields are those of Ray's Jobs API."""

    submission_id: str
    entrypoint: str
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
