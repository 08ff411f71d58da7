"""Pairs of conversations for preference training: their data, number and length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import exists, join
from tradewind.recipes.lm.cache_integrity import LEDGER
from tradewind.recipes.lm.checks import check_format
from tradewind.recipes.lm.data_locations import cache_path, has_weight

if TYPE_CHECKING:
    import numpy as np

_SIDES: Final = ("chosen", "rejected")


def preference_data(mixture: Any) -> Any:
    """Make Levanter's config of preference data from one of texts whose components hold pairs."""
    from levanter.data.text import PreferenceLmDataConfig

    return PreferenceLmDataConfig.from_lm_data_config(mixture)


def trained_components(data: Any) -> list[str]:
    """Return the names of the components with a weight."""
    return [name for name in data.components if has_weight(data, name)]


def check_pairs(made: Any) -> None:
    """Check the data for what Levanter would refuse when it reads it.

    Raises:
        ValueError: The tokenizer cannot be loaded, a template is missing or does not mark the assistant's
            words, or a pair is longer than the sequences of the training.
    """
    max_length = made.train_seq_len or made.model.max_seq_len
    for name, component in made.data.components.items():
        check_format(made.data, name, component)
        reads = {"train": has_weight(made.data, name), "validation": made.validation_split_fraction is None}
        for split in (split for split, is_read in reads.items() if is_read):
            for side, lengths in _lengths(made.data, name, split):
                if len(lengths) and lengths.max() > max_length:
                    raise ValueError(
                        f"train_config.data.components[{name!r}]: pair {int(lengths.argmax())} of {split} has "
                        f"{int(lengths.max()):,} {side} tokens, and sequences have {max_length:,}: give a larger "
                        "train_seq_len, or leave such pairs out of the data."
                    )


def count_pairs(made: Any) -> tuple[int, int] | None:
    """Return the numbers of pairs to train on and, cut off from these, to validate on; None before tokenization."""
    [name] = trained_components(made.data)
    for _, lengths in _lengths(made.data, name, "train"):
        fraction, pairs = made.validation_split_fraction, len(lengths)
        cut = min(max(1, int(pairs * fraction)), pairs - 1) if fraction and pairs > 1 else 0
        return pairs - cut, cut
    return None


def _lengths(data: Any, name: str, split: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each side's lengths of pairs, in tokens; nothing without a cache."""
    import numpy as np
    from levanter.store.tree_store import TreeStore

    path = cache_path("data", data, name, data.components[name], split)
    if not exists(join(path, LEDGER)):
        return
    store = TreeStore.open({f"{side}_input_ids": np.zeros(0, np.int32) for side in _SIDES}, path, mode="r")
    for side in _SIDES:
        array = store.tree[f"{side}_input_ids"]
        yield side, np.diff(array.offsets[1 : array.num_rows + 1].read().result(), prepend=0)  # offsets are ends
