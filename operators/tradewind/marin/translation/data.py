"""Configs of data: a mixture of sources is a mixture of components today."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from tradewind.calls.references import Reference
from tradewind.marin.translation.given import Given

_TEXT: Final = "levanter.data.text"
_NO_TOKEN: Final = (None, -100)
"""Tokens to leave out of the loss that no text holds."""


def as_components(given: Given, values: dict[str, Any], known: Collection[str]) -> None:
    """Sources become components; what was shuffled, and how, is said as it is said today."""
    if "configs" in known:
        return
    component = Reference(_TEXT, "DatasetComponent").load()
    values["components"] = {
        name: component(source=source, cache_dir=source.cache_dir, format=source.format, tags=source.tags)
        for name, source in given.take("configs").items()
    }
    if given.read("ignore_token_id") not in _NO_TOKEN:
        raise given.refusal("ignore_token_id", "no token can be left out of the loss")
    given.drop("ignore_token_id")
    if given.read("shuffle") not in (True, False):
        raise given.refusal("shuffle", "data is shuffled as a whole or in blocks, and no longer in eras")
    values["shuffle"] = bool(given.take("shuffle"))
    values["permutation_type"] = given.take("permutation_type") or "linear"


def single_as_components(given: Given) -> Any:
    """A data set by itself: only the one that stands where no data was given, and holds none."""
    made = Reference(_TEXT, given.of.rpartition(".")[2])
    if not given.is_all_default():
        raise given.class_refusal(
            f"there, one data set is a mixture of one, which has another order of examples: put {made.qualname} into "
            "an LMMixtureDatasetConfig, or keep Levanter's version"
        )
    return Reference(_TEXT, "LmDataConfig").load()()


def chat_without_single_turn(given: Given, values: dict[str, Any], known: Collection[str]) -> None:
    """One turn of a chat was told apart."""
    if "single_turn" not in known and not given.is_default("single_turn"):
        raise given.refusal("single_turn", "all turns of a chat are read")


def refuse_supervised(given: Given) -> Any:
    """Questions and answers are cut into tokens and packed in another way today."""
    raise given.class_refusal("it makes other tokens of the same texts, and does not pack them")
