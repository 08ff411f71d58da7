"""Levanter's own settings by name: ``{"optimizer.beta2": 0.95, "trainer.mesh": {"axes": {"model": 2}}}``.

The name is the path from ``levanter.main.train_lm.TrainLmConfig``. A value is written as in Levanter's YAML files, or
is an object of the right class. Unknown fields are refused with their path and similar names. Fields that a recipe's
own field sets, or that would have no effect, are refused, too.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from tradewind.steps import VersionedValue
from tradewind.steps.placeholders import Lazy
from tradewind.text import truncated_repr

RECIPE_FIELDS: Mapping[str, str] = {
    "data.auto_build_caches": "cache_path",
    "data.cache_dir": "cache_path",
    "data.components": "cache_path",
    "data.tokenizer": "tokenizer_path",
    "data.train_weights": "cache_path",
    "model": "model or model_size",
    "train_seq_len": "seq_len",
    "hf_save_path": "output_path",
    "initialize_from_checkpoint_path": "initialize_from",
    "trainer.initialize_from": "initialize_from",
    "trainer.id": "output_path",
    "trainer.seed": "seed",
    "trainer.train_batch_size": "batch_size",
    "trainer.num_train_steps": "num_train_steps",
    "trainer.steps_per_eval": "steps_per_eval",
    "trainer.max_eval_batches": "max_eval_batches",
    "trainer.checkpointer": "checkpoint_seconds, steps_per_checkpoint and temporary_checkpoint_path",
    "trainer.load_checkpoint": "output_path",
    "trainer.load_checkpoint_path": "output_path",
    "trainer.tracker": "tensorboard and wandb",
    "trainer.wandb": "wandb",
    "trainer.log_dir": "output_path",
    "trainer.distributed": "the step's resources",
    "trainer.jax_compilation_cache_dir": "output_path",
    "optimizer.learning_rate": "learning_rate",
    "optimizer.weight_decay": "weight_decay",
}
"""Levanter's field → the field of ``LmTrainConfig`` that sets it."""
_ONE_EXPORT = "the recipe writes one Hugging Face export, to hf/ of the output, after the last step"
REFUSED: Mapping[str, str] = {
    "hf_save_steps": f"{_ONE_EXPORT}; steps_per_checkpoint keeps what the training was in between",
    "hf_upload": f"{_ONE_EXPORT}, and uploads nothing",
    "adapter": "the recipe trains and exports whole models; train an adapter with a function of your own",
    "peft_save_path": "the recipe trains no adapter",
    "peft_hf_upload": "the recipe trains no adapter",
    "merged_hf_save_path": "the recipe trains no adapter",
    "merged_hf_upload": "the recipe trains no adapter",
    "use_hf_model_config": "the export needs the model before the training; give its config as model",
}
"""Levanter's field → why the recipe refuses it."""
_WHOLE: Mapping[str, str] = {
    "data": "{'data.shuffle': False}",
    "trainer": "{'trainer.per_device_parallelism': 4}",
    "optimizer": "{'optimizer.beta2': 0.95}, or {'optimizer': {'type': 'muon'}} for another",
}
"""Part of Levanter's config that no object may replace, since recipe fields set some of it → how to give it."""
_KIND = "type"
"""Key of a mapping that selects one of several classes."""


def check_names(overrides: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an invalid path, and for one that a recipe field sets or the recipe refuses."""
    for name, value in overrides.items():
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"levanter[{name!r}] is not a path of field names such as 'optimizer.beta2'.")
        for taken, field in RECIPE_FIELDS.items():
            if name == taken or name.startswith(f"{taken}."):
                raise ValueError(f"levanter[{name!r}] is decided by {field} of the config: set it there.")
        if (why := REFUSED.get(name.partition(".")[0])) is not None:
            raise ValueError(f"levanter[{name!r}] is not taken: {why}.")
        given = value.value if isinstance(value, VersionedValue) else value
        if isinstance(given, Lazy):
            raise ValueError(
                f"levanter[{name!r}] is {truncated_repr(given)}, whose class would not count in the version: write it "
                "as in Levanter's YAML files, such as {'type': 'ema', 'beta': 0.99}."
            )
        if (example := _WHOLE.get(name)) is not None and not isinstance(given, Mapping):
            raise ValueError(f"levanter[{name!r}] is given whole: give its fields, such as {example}.")
        if isinstance(given, Mapping) and any(taken.startswith(f"{name}.") for taken in RECIPE_FIELDS):
            check_names({f"{name}.{key}": inner for key, inner in given.items() if key != _KIND})


def with_overrides(config: Any, overrides: Mapping[str, Any]) -> Any:
    """Return a copy of Levanter's ``config`` with these values; raises ``ValueError`` for one that does not fit.

    Other fields keep their values. ``{"optimizer": {"type": "muon"}}`` selects another class; fields of both classes
    keep the values that the recipe set.
    """
    check_names(overrides)
    changed = config
    for name, value in overrides.items():
        changed = _Override(name, value, config).apply(changed, name.split("."))
    return changed


@dataclasses.dataclass(frozen=True)
class _Override:
    name: str
    value: Any
    root: Any
    """Levanter's config, for suggestions of similar fields."""

    def apply(self, owner: Any, parts: list[str]) -> Any:
        field = parts[0]
        if field not in _field_names(owner):
            name = type(owner).__name__
            raise ValueError(f"{self} is unknown: Levanter's {name} has no {field!r}{self._hint(field)}")
        inner = getattr(owner, field)
        if len(parts) > 1 and not dataclasses.is_dataclass(inner):
            raise ValueError(f"{self} is unknown: {field!r} of {type(owner).__name__} has no fields, give it whole.")
        new = self.apply(inner, parts[1:]) if len(parts) > 1 else self._decode(type(owner), field, inner)
        return dataclasses.replace(owner, **{field: new})

    def __str__(self) -> str:
        return f"levanter[{self.name!r}]"

    def _hint(self, field: str) -> str:
        paths = list(_paths(self.root, ""))
        near = difflib.get_close_matches(field, {path.rpartition(".")[2] for path in paths}, n=3)
        meant = [path for name in near for path in paths if path.rpartition(".")[2] == name]
        return f"; did you mean {' or '.join(meant[:3])}?" if meant else "."

    def _decode(self, owner: type, field: str, old: Any) -> Any:
        """Return the value as the field's type; an object stays as it is."""
        if isinstance(self.value, Mapping) and dataclasses.is_dataclass(old) and _KIND not in self.value:
            inner = {f"{self.name}.{key}": value for key, value in self.value.items()}
            for name, value in inner.items():
                old = _Override(name, value, self.root).apply(old, [name.removeprefix(f"{self.name}.")])
            return old
        new: Any = self.value if dataclasses.is_dataclass(self.value) else self._parse(owner, field)
        if dataclasses.is_dataclass(old) and type(new) is not type(old):
            given = self.value if isinstance(self.value, Mapping) else {}
            return dataclasses.replace(new, **self._set_by_recipe(old, new, given))
        return new

    def _set_by_recipe(self, old: Any, new: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that both classes have, ``given`` lacks, and the config or the recipe sets."""
        default = type(old)()
        shared = (_field_names(old) & _field_names(new)) - given.keys()
        decided = {name for name in shared if getattr(old, name) != getattr(default, name)}
        decided |= {name for name in shared if f"{self.name}.{name}" in RECIPE_FIELDS}
        return {name: getattr(old, name) for name in decided}

    def _parse(self, owner: type, field: str) -> Any:
        import draccus

        wanted = typing.get_type_hints(owner)[field]
        try:
            return draccus.decode(wanted, self.value)
        except Exception as error:  # draccus raises whatever the type's own constructor raises
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            kind = wanted.__name__ if isinstance(wanted, type) else str(wanted).replace("typing.", "")
            raise ValueError(f"{self}={self.value!r} is no {kind}: {reason}.") from error


def _paths(owner: Any, start: str) -> Iterator[str]:
    for name in sorted(_field_names(owner)):
        yield start + name
        inner = getattr(owner, name)
        if dataclasses.is_dataclass(inner) and start + name not in RECIPE_FIELDS:
            yield from _paths(inner, f"{start}{name}.")


def _field_names(owner: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(owner)}
