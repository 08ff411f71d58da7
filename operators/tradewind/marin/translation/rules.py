"""What has changed since the era, class by class; what is not told here is the same, or has no counterpart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.marin.translation.data import (
    as_components,
    chat_without_single_turn,
    refuse_supervised,
    single_as_components,
)
from tradewind.marin.translation.given import Given
from tradewind.marin.translation.trainer import as_mesh, as_profiler

Change = Callable[[Given, dict[str, Any], Collection[str]], None]
"""Takes what was given, and puts values for the installed class, whose fields it is told."""


@dataclass(frozen=True)
class Rule:
    """What is different in one class, and in those that inherit from it.

    Attributes:
        renamed: Field -> the field that holds the same today.
        dropped: Fields that say how something was done, and not what came out of it.
        added: Fields of today -> the value under which what comes out is as it was then.
        changes: What fields hold under another form.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    added: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()


def _length_of_hyena(given: Given, values: dict[str, Any], known: Collection[str]) -> None:
    """It stands in two places today."""
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
"""Class -> its name today; classes that can still be imported under the old name are not told."""
REPLACED: Final[Mapping[str, Callable[[Given], Any]]] = {
    "levanter.data.text.UrlSingleDatasetLMConfig": single_as_components,
    "levanter.data.text.HfSingleDatasetLMConfig": single_as_components,
    "levanter.data.text.SingleDatasetLMConfigBase": single_as_components,
    "levanter.data.text.SupervisedLmDatasetFormat": refuse_supervised,
}
"""Classes of which nothing, or only the default, has a counterpart."""
