"""Convert legacy configs to objects of the Levanter version that is installed on the cluster.

A value is serialized with its class name and all its legacy fields. This module reads it back: it finds moved classes
and fields, and converts those with another form. A value without a counterpart is an error, unless it is the default.
A Levanter of November 2025 gets the values unchanged. Neither Airflow nor the loader is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Final

from tradewind.marin.legacy.classes import builder
from tradewind.marin.legacy.table import versions
from tradewind.serialization.errors import FunctionImportError, SpecError, TranslationError
from tradewind.serialization.references import CodeFolder, Reference
from tradewind.serialization.spec import TRANSLATED_BY, Encoder, decode

__all__ = ["TranslationError", "rebuilt"]

# The serialized fields of one config, each read on access.

NO_CODE: Final = CodeFolder(Path("/nonexistent"))
_MAX_SHOWN: Final = 80


class WrittenConfig:
    """The given fields of a config.

    Attributes:
        of: The legacy class, as a dotted name.
        at: Its position in the step's config.
    """

    def __init__(self, of: str, at: str, fields: Mapping[str, Any]) -> None:
        self.of = of
        self.at = at
        self._fields = dict(fields)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._fields))

    def read(self, name: str) -> Any:
        """Return the value of a field, which stays."""
        return decode(self._fields[name])

    def take(self, name: str) -> Any:
        """Return the value of a field and mark it as handled."""
        return decode(self._fields.pop(name))

    def drop(self, name: str) -> None:
        """Mark a field as handled without reading its value: its class may be gone."""
        del self._fields[name]

    def is_default(self, name: str) -> bool:
        """Whether a field has its default value."""
        has_default, default = default_of(self.of, name)
        if not has_default:
            return False
        try:
            return bool(Encoder(NO_CODE).encode(default, f"{self.at}.{name}") == self._fields[name])
        except SpecError:  # such as the path of another step's output
            return False

    def refusal(self, name: str, why: str = "it has no counterpart there") -> TranslationError:
        """Return the error for the value of a field."""
        value = self._fields[name]
        shown = value.get("of", value) if isinstance(value, dict) else value
        return TranslationError(
            f"{self.at}.{name} is {str(shown)[:_MAX_SHOWN]}, a value for {self.of} of {written_version(self.of)}, and "
            f"{installed_version(self.of)} on the cluster does not accept it: {why}."
        )

    def class_refusal(self, why: str = "it has no such class") -> TranslationError:
        """Return the error for the config as a whole."""
        return TranslationError(
            f"{self.at} is a {self.of} of {written_version(self.of)}, and {installed_version(self.of)} on the cluster "
            f"does not accept it: {why}."
        )


def default_of(of: str, name: str) -> tuple[bool, Any]:
    """Return whether a field of the legacy class has a default, and the default."""
    spec = next((spec for spec in dataclasses.fields(builder().find(of)) if spec.name == name), None)
    if spec is None:
        return False, None
    if spec.default_factory is not dataclasses.MISSING:
        return True, spec.default_factory()
    return spec.default is not dataclasses.MISSING, spec.default


def written_version(name: str) -> str:
    """Return the library of a dotted name and the version that configs were written for."""
    library = name.partition(".")[0]
    return f"{library} {versions().get(library, 'of an unknown version')}"


def installed_version(name: str) -> str:
    """Return the library of a dotted name and its installed version."""
    return _installed_distribution(name.partition(".")[0])


@cache
def _installed_distribution(library: str) -> str:
    for distribution in packages_distributions().get(library, ()):
        try:
            return f"{library} {version(distribution)}"
        except PackageNotFoundError:
            continue
    return f"{library}, which is not installed,"


# Data configs: a former mixture of sources is a mixture of components today.

_TEXT: Final = "levanter.data.text"
_NO_TOKEN: Final = (None, -100)
"""Tokens to exclude from the loss that occur in no text."""


def as_components(given: WrittenConfig, values: dict[str, Any], known: Collection[str]) -> None:
    """Convert sources to components, and shuffling to its current form."""
    if "configs" in known:
        return
    component = Reference(_TEXT, "DatasetComponent").load()
    values["components"] = {
        name: component(source=source, cache_dir=source.cache_dir, format=source.format, tags=source.tags)
        for name, source in given.take("configs").items()
    }
    if given.read("ignore_token_id") not in _NO_TOKEN:
        raise given.refusal("ignore_token_id", "no token can be excluded from the loss")
    given.drop("ignore_token_id")
    if given.read("shuffle") not in (True, False):
        raise given.refusal("shuffle", "data is shuffled as a whole or in blocks, no longer in eras")
    values["shuffle"] = bool(given.take("shuffle"))
    values["permutation_type"] = given.take("permutation_type") or "linear"


def single_as_components(given: WrittenConfig) -> Any:
    """Convert a single data set: only the empty one used when no data was given."""
    made = Reference(_TEXT, given.of.rpartition(".")[2])
    if not all(map(given.is_default, given)):
        raise given.class_refusal(
            f"it makes one data set a mixture of one, with another order of examples: put {made.qualname} into an "
            "LMMixtureDatasetConfig, or keep Levanter's version"
        )
    return Reference(_TEXT, "LmDataConfig").load()()


def chat_without_single_turn(given: WrittenConfig, values: dict[str, Any], known: Collection[str]) -> None:
    """Convert a chat format, whose single-turn case was once separate."""
    if "single_turn" not in known and not given.is_default("single_turn"):
        raise given.refusal("single_turn", "it reads all turns of a chat")


def refuse_supervised(given: WrittenConfig) -> Any:
    """Refuse supervised data: questions and answers are tokenized and packed differently today."""
    raise given.class_refusal("it makes other tokens of the same texts and does not pack them")


# The trainer's config: mesh and profiler have their own configs today.

_REPLICAS: Final = ["replica_dcn", "replica"]
"""Former ``replica``: copies of the model in a slice and across slices, two axes today."""
_PROFILER: Final = {
    "profiler": "enabled", "profiler_start_step": "start_step", "profiler_num_steps": "num_steps",
    "profiler_perfetto_link": "perfetto_link",
}  # fmt: skip


def as_profiler(given: WrittenConfig, values: dict[str, Any], known: Collection[str]) -> None:
    """Convert the times of a profile."""
    if "profiler_start_step" not in known:
        profiler = Reference("levanter.callbacks.profiler", "ProfilerConfig").load()
        values["profiler"] = profiler(**{new: given.take(old) for old, new in _PROFILER.items()})


def as_mesh(given: WrittenConfig, values: dict[str, Any], known: Collection[str]) -> None:
    """Convert the mapping of array axes to device axes."""
    if "mesh" not in known:
        return
    mesh = Reference("levanter.utils.mesh", "MeshConfig").load()
    batch = given.take("batch_axis")
    shared = {axis: _today(devices) for axis, devices in given.take("axis_resources").items() if axis != batch}
    parameters = {axis: _today(devices) for axis, devices in given.take("parameter_axis_resources").items()}
    slices = given.take("replica_dcn_axis_size")
    values["mesh"] = mesh(
        axes={"data": -1, "replica": given.take("replica_ici_axis_size"), "model": given.take("model_axis_size")},
        dcn_axes={"replica_dcn": slices if slices > 1 else -1},
        batch_axis_name=batch,
        shared_mapping={**shared, **dict.fromkeys(given.take("tensor_parallel_axes") or (), "model")},
        param_mapping={**parameters, **_sharded(given.take("fsdp_axis"))},
    )


def _sharded(axes: str | list[str] | None) -> Mapping[str, str]:
    """Return the parameter axes that are split among devices with different data."""
    return dict.fromkeys([axes] if isinstance(axes, str) else axes or (), "data")


def _today(devices: Any) -> Any:
    """Return device axes by their current names."""
    if isinstance(devices, str):
        return _REPLICAS if devices == "replica" else devices
    return [name for axis in devices for name in (_REPLICAS if axis == "replica" else [axis])]


# Changes since the legacy API, by class; a class without an entry is unchanged or has no counterpart.

Change = Callable[[WrittenConfig, dict[str, Any], Collection[str]], None]
"""Takes the given fields, and sets values for the installed class, whose fields it receives."""


@dataclass(frozen=True)
class Rule:
    """Changes of one class, and of those that inherit from it.

    Attributes:
        renamed: Field -> the field that holds the same today.
        dropped: Fields that do not affect results.
        added: New field -> the value that keeps the former results.
        changes: Conversions of fields with another form.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    added: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()


def _length_of_hyena(given: WrittenConfig, values: dict[str, Any], known: Collection[str]) -> None:
    """Convert Hyena's length, which two fields have today."""
    if "max_seq_len" in known and "hyena" in given:
        hyena = values["hyena"] = given.take("hyena")
        values["max_seq_len"] = hyena.max_seq_len


_CACHES: Final = ("num_shard_groups", "target_size_per_flush")
RULES: Final[Mapping[str, Rule]] = {
    "levanter.models.lm_model.LmConfig": Rule(
        renamed={"seq_len": "max_seq_len"}, dropped=("cross_entropy_block_size",)
    ),
    "levanter.models.hyena.HyenaConfig": Rule(renamed={"seq_len": "max_seq_len"}),
    "levanter.models.gpt2_hyena.Gpt2HyenaConfig": Rule(changes=(_length_of_hyena,)),
    "levanter.models.whisper.WhisperConfig": Rule(renamed={"max_length": "max_seq_len"}),
    "levanter.trainer.TrainerConfig": Rule(dropped=("ray",), changes=(as_mesh, as_profiler)),
    "levanter.data.text.LMMixtureDatasetConfig": Rule(
        added={"shuffle_before_trainval_split": False}, changes=(as_components,)
    ),
    "levanter.data.text.ChatLmDatasetFormat": Rule(
        added={"system_prompt": None, "chat_template_kwargs": None}, changes=(chat_without_single_turn,)
    ),
    "levanter.store.cache.CacheOptions": Rule(dropped=_CACHES),
}  # fmt: skip
MOVED: Final[Mapping[str, str]] = {
    "levanter.data.text.LMMixtureDatasetConfig": "levanter.data.text.LmDataConfig",
    "levanter.lora.LoraConfig": "levanter.adaptor.lora.LoraConfig",
}
"""Class -> its current name; classes still importable under the old name are absent."""
REPLACED: Final[Mapping[str, Callable[[WrittenConfig], Any]]] = {
    "levanter.data.text.UrlSingleDatasetLMConfig": single_as_components,
    "levanter.data.text.HfSingleDatasetLMConfig": single_as_components,
    "levanter.data.text.SingleDatasetLMConfigBase": single_as_components,
    "levanter.data.text.SupervisedLmDatasetFormat": refuse_supervised,
}
"""Classes without a counterpart, or with one only for the default."""

# Convert one serialized config to an object of the installed class.


def rebuilt(written: Mapping[str, Any]) -> Any:
    """Create the object for ``written``: of the installed class, or of the user's class derived from it.

    Args:
        written: ``class`` and ``of``, the class and the nearest legacy class that it is or inherits from, each
            ``module:qualname``; ``at``, the position in the step's config; ``fields``.

    Raises:
        TranslationError: A field or the class has no counterpart, and the value is not the default.
        FunctionImportError: The user's own class cannot be imported.
    """
    of = written["of"].replace(":", ".")
    given = WrittenConfig(of, written["at"], written["fields"])
    if written["class"] != written["of"]:
        made = Reference.parse(written["class"]).load()
    else:
        made = _installed_class(given)
        if made is None:
            return REPLACED[of](given)
    values = translate_fields(given, known_fields(made))
    try:
        return made(**values)
    except (TypeError, ValueError, AssertionError) as error:
        raise given.class_refusal(f"it raises {type(error).__name__}: {error}") from error


def translate_fields(given: WrittenConfig, known: Collection[str]) -> dict[str, Any]:
    """Convert legacy field values to values for the installed class, whose fields are ``known``.

    Raises:
        TranslationError: One has no counterpart, and is not the default.
    """
    values: dict[str, Any] = {}
    for rule in _rules_of(given.of):
        _apply(rule, given, values, known)
    for name in given:
        if name in known:
            values.setdefault(name, given.take(name))
        elif given.is_default(name):
            given.drop(name)
        else:
            raise given.refusal(name)
    return values


def known_fields(made: Any) -> set[str]:
    """Return the constructor fields of an installed class."""
    return {spec.name for spec in dataclasses.fields(made) if spec.init}


def renamed_fields(of: str) -> dict[str, str]:
    """Return legacy field -> its current name, where it differs."""
    return {old: new for rule in _rules_of(of) for old, new in rule.renamed.items()}


def _installed_class(given: WrittenConfig) -> Any:
    """Return the current class; Tradewind's for a missing Marin class, None for a replaced class."""
    replaced = given.of in REPLACED
    for name in (given.of, MOVED.get(given.of, given.of)):
        module, _, qualname = name.rpartition(".")
        try:
            made = Reference(module, qualname).load()
        except FunctionImportError:
            continue
        has_fields = not replaced or {spec.name for spec in dataclasses.fields(made)} >= set(given)
        if has_fields and TRANSLATED_BY not in vars(made):
            return made
    if replaced:
        return None
    if given.of.startswith("marin."):
        return builder().find(given.of)
    raise given.class_refusal()


def _rules_of(of: str) -> Iterator[Rule]:
    """Return the rules of a legacy class and of its bases."""
    for base in builder().find(of).__mro__:
        rule = RULES.get(f"{base.__module__}.{base.__qualname__}")
        if rule is not None:
            yield rule


def _apply(rule: Rule, given: WrittenConfig, values: dict[str, Any], known: Collection[str]) -> None:
    for name in rule.dropped:
        if name in given and name not in known:
            given.drop(name)
    for old, new in rule.renamed.items():
        if new in known and new not in given and old in given:
            values[new] = given.read(old) if old in known else given.take(old)
    for change in rule.changes:
        change(given, values, known)
    for name, value in rule.added.items():
        if name in known and name not in given:
            values.setdefault(name, value)
