"""Build the step graphs of the recorded executor vectors."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import json
import pathlib
from collections.abc import Callable
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


SIMPLE: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "$dict": lambda items, decode: {decode(key): decode(value) for key, value in items},
    "$tuple": lambda items, decode: tuple(map(decode, items)),
    "$set": lambda items, decode: set(map(decode, items)),
    "$frozenset": lambda items, decode: frozenset(map(decode, items)),
    "$versioned": lambda value, decode: versioned(decode(value)),
    "$this": lambda name, _: this_output_path(name),
    "$timedelta": lambda spec, _: datetime.timedelta(**spec),
    "$path": lambda text, _: pathlib.Path(text),
    "$float": lambda text, _: float(text),
}


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
        if kind in SIMPLE:
            return SIMPLE[kind](value[kind], self.decode)
        return getattr(self, "_" + kind[1:])(value[kind], value)

    def _dc(self, name: str, whole: dict[str, Any]) -> Any:
        fields = [(key, self.decode(value)) for key, value in whole["fields"]]
        return dataclasses.make_dataclass(name, [key for key, _ in fields], frozen=True)(*[v for _, v in fields])

    def _input(self, spec: dict[str, Any], _: Any) -> Any:
        reference = InputName(self.steps[spec["step"]] if spec["step"] else None, spec["name"])
        for name in spec.get("cd", []):
            reference = reference.cd(name)
        return reference.nonblocking() if spec.get("nonblocking") else reference

    def _step(self, key: str, _: Any) -> Any:
        return self.steps[key]

    def _mirrored(self, value: Any, whole: dict[str, Any]) -> Any:
        budget = {"budget_gb": whole["budget_gb"]} if "budget_gb" in whole else {}
        return mirrored(self.decode(value), **budget)

    def _enum(self, spec: dict[str, Any], _: Any) -> Any:
        members = self.enums.setdefault(spec["cls"], enum.Enum(spec["cls"], [tuple(m) for m in spec["members"]]))
        return members[spec["name"]]

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
