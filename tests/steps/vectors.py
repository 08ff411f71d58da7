"""Build the step graphs of the recorded executor vectors."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import json
import pathlib
from typing import Any

from tradewind.steps import ExecutorStep, InputName, Recipe, mirrored, this_output_path, versioned

VECTORS_FILE = pathlib.Path(__file__).parent / "executor_vectors.json"


def load_vectors() -> list[dict[str, Any]]:
    return json.loads(VECTORS_FILE.read_text())["vectors"]


@dataclasses.dataclass(frozen=True)
class Device:
    """Replacement for the device configs whose recorded form the vectors contain."""

    kind: str
    variant: str


@dataclasses.dataclass(frozen=True)
class TpuDevice:
    variant: str
    kind: str = "tpu"
    topology: Any = None


@dataclasses.dataclass(frozen=True)
class ResourceConfig:
    cpu: int
    ram: str
    disk: str
    device: Any
    preemptible: bool = True
    regions: Any = None
    zone: Any = None
    replicas: int = 1
    device_alternatives: Any = None
    image: Any = None


class GraphBuilder:
    """Build the steps of one vector in their listed order."""

    def __init__(self, vector: dict[str, Any], recipe: Recipe = Recipe.JUNE_2026) -> None:
        self.steps: dict[str, ExecutorStep] = {}
        self.enums: dict[str, Any] = {}
        for spec in vector["steps"]:
            self.steps[spec["key"]] = ExecutorStep(
                name=spec["name"],
                fn=None,
                config=self.decode(spec["config"]),
                description=spec.get("description"),
                override_output_path=spec.get("override_output_path"),
                recipe=recipe,
            )

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = next(key for key in value if key.startswith("$"))
        return getattr(self, "_" + kind[1:])(value[kind], value)

    def _dc(self, name: str, whole: dict[str, Any]) -> Any:
        fields = [(key, self.decode(value)) for key, value in whole["fields"]]
        return dataclasses.make_dataclass(name, [key for key, _ in fields], frozen=True)(*[v for _, v in fields])

    def _dict(self, items: Any, _: Any) -> Any:
        return {self.decode(key): self.decode(value) for key, value in items}

    def _tuple(self, items: Any, _: Any) -> Any:
        return tuple(self.decode(item) for item in items)

    def _set(self, items: Any, _: Any) -> Any:
        return {self.decode(item) for item in items}

    def _frozenset(self, items: Any, _: Any) -> Any:
        return frozenset(self.decode(item) for item in items)

    def _versioned(self, value: Any, _: Any) -> Any:
        return versioned(self.decode(value))

    def _this(self, name: Any, _: Any) -> Any:
        return this_output_path(name)

    def _step(self, key: str, _: Any) -> Any:
        return self.steps[key]

    def _input(self, spec: dict[str, Any], _: Any) -> Any:
        reference = InputName(self.steps[spec["step"]] if spec["step"] else None, spec["name"])
        for name in spec.get("cd", []):
            reference = reference.cd(name)
        return reference.nonblocking() if spec.get("nonblocking") else reference

    def _mirrored(self, value: Any, whole: dict[str, Any]) -> Any:
        return (
            mirrored(self.decode(value), whole["budget_gb"]) if "budget_gb" in whole else mirrored(self.decode(value))
        )

    def _enum(self, spec: dict[str, Any], _: Any) -> Any:
        members = self.enums.setdefault(spec["cls"], enum.Enum(spec["cls"], [tuple(m) for m in spec["members"]]))
        return members[spec["name"]]

    def _timedelta(self, spec: Any, _: Any) -> Any:
        return datetime.timedelta(**spec)

    def _path(self, text: str, _: Any) -> Any:
        return pathlib.Path(text)

    def _float(self, text: str, _: Any) -> Any:
        return float(text)

    def _object(self, dotted: str, _: Any) -> Any:
        module, _, name = dotted.rpartition(".")
        return getattr(importlib.import_module(module), name)

    def _numpy(self, spec: dict[str, Any], _: Any) -> Any:
        import numpy

        return getattr(numpy, spec["dtype"])(spec["value"])

    def _resource(self, spec: dict[str, Any], _: Any) -> Any:
        if spec["kind"] == "tpu":
            return ResourceConfig(32, "128g", "50g", TpuDevice(spec["variant"]))
        return ResourceConfig(1, "4g", "16g", Device(spec["kind"], "cpu"))
