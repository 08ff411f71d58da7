"""Write the properties of the real legacy classes, for tests to compare the light ones with.

    ERA_PYTHON scripts/marin/legacy_vectors.py NAMES.json > tests/marin/legacy/real_classes.json

ERA_PYTHON is the Python of an environment with the wheels that ``scripts/marin/sources.py`` names, and JAX on a CPU.
NAMES.json lists the dotted names of the classes, as ``python -m scripts.marin.legacy_tables --names`` prints them. The
output has for each class its fields in order (``*``: keyword only), the text of a default instance where one can be
made, its choices, its axes, and the sizes and costs of the model configs with several shapes.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import itertools
import json
import sys
from typing import Any

VOCAB = 128256
SHAPES = [
    {"hidden_dim": 512, "num_heads": 8, "num_kv_heads": 8, "num_layers": 6, "intermediate_dim": 1792, "seq_len": 1024},
    {
        "hidden_dim": 2048,
        "num_heads": 16,
        "num_kv_heads": 8,
        "num_layers": 16,
        "intermediate_dim": 7168,
        "seq_len": 4096,
    },
    {
        "hidden_dim": 5120,
        "num_heads": 40,
        "num_kv_heads": 8,
        "num_layers": 64,
        "intermediate_dim": 27648,
        "seq_len": 4096,
    },
    {"hidden_dim": 1000, "num_heads": 6, "num_kv_heads": 3, "num_layers": 7, "intermediate_dim": 3001, "seq_len": 777},
]
"""Sizes like those of experiments, and one whose heads do not divide the hidden size."""
SWITCHES = ["tie_word_embeddings", "hybrid_norm", "input_embedding_norm", "use_qk_norm", "use_bias"]


def facts_of(name: str) -> dict[str, Any]:
    module, _, last = name.rpartition(".")
    real: Any = getattr(importlib.import_module(module), last)
    facts: dict[str, Any] = {}
    if isinstance(real, enum.EnumMeta):
        members: list[Any] = list(real)
        return {"members": [[member.name, repr(member), str(member)] for member in members]}
    if hasattr(real, "__dataclass_params__"):
        facts["fields"] = " ".join(spec.name + ("*" if spec.kw_only else "") for spec in dataclasses.fields(real))
        facts["frozen"] = real.__dataclass_params__.frozen
        made = _default(real)
        if made is not None:
            facts["text"] = repr(made)
            facts["axes"] = _axes(made)
    registry = getattr(real, "_choice_registry", None)
    if registry is not None and "_choice_registry" in vars(real):
        facts["choices"] = {key: f"{value.__module__}.{value.__qualname__}" for key, value in registry.items()}
    return facts


def _default(real: Any) -> Any:
    try:
        return real()
    except Exception:
        return None


def _axes(made: Any) -> dict[str, str]:
    names = [name for name in dir(type(made)) if isinstance(getattr(type(made), name, None), property)]
    found = {}
    for name in names:
        if name[0].isupper():
            try:
                value = getattr(made, name)
            except Exception:
                continue
            if type(value).__name__ == "Axis":
                found[name] = repr(value)
    return found


def sizes_of(name: str) -> list[dict[str, Any]]:
    """Return sizes and costs of a model config with every shape, and every switch on and off."""
    module, _, last = name.rpartition(".")
    real = getattr(importlib.import_module(module), last)
    fields = {spec.name for spec in dataclasses.fields(real)}
    if not {"hidden_dim", "seq_len"} <= fields or last.endswith("HyenaConfig"):
        return []
    rows = []
    switches = [None, *(name for name in SWITCHES if name in fields)]
    for shape, switch in itertools.product(SHAPES, switches):
        given = {key: value for key, value in shape.items() if key in fields}
        if switch:
            given[switch] = not getattr(real(), switch)
        made = real(**given)
        row: dict[str, Any] = {"given": given}
        for asked in ("flops_per_token", "total_trainable_params"):
            try:
                row[asked] = getattr(made, asked)(VOCAB)
            except TypeError:
                row[asked] = "TypeError"
        if switch is None and shape is SHAPES[0] and hasattr(made, "attention_config"):
            row["text"], row["attention"] = repr(made), repr(made.attention_config())
        rows.append(row)
    return rows


def main() -> None:
    with open(sys.argv[1]) as file:
        names = json.load(file)
    facts: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    for name in names:  # all of them first, because a class enters its registry when its module is imported
        try:
            importlib.import_module(name.rpartition(".")[0])
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    for name in names:
        try:
            facts[name] = facts_of(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if ".models." in name and name.endswith("Config") and "fields" in facts[name]:
            rows = sizes_of(name)
            if rows:
                sizes[name] = rows
    print("{")
    parts: list[tuple[str, dict[str, Any], str]] = [("classes", facts, ","), ("sizes", sizes, "")]
    for key, rows, end in parts:
        body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        print(f' "{key}": {{\n{body}\n }}{end}')
    print("}")


if __name__ == "__main__":
    main()
