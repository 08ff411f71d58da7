"""How well a model predicts the validation tokens, in nats per token and in bits per byte.

Levanter cuts the validation tokens into sequences of ``seq_len`` and predicts all tokens of a sequence but its first.
Over exactly these predicted tokens:

    loss          = total nats / number of tokens
    bits per byte = total nats / ln 2 / total UTF-8 bytes of the text that these tokens spell

A byte-level token spells one byte per character of its vocabulary entry; the end-of-text token spells none. Levanter
puts a space before the end of every text, which belongs to no text, so its byte is not counted either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Score:
    """What a model needed for some text."""

    nats: float
    tokens: int
    text_bytes: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the text."""
        return self.nats / math.log(2) / self.text_bytes


def bytes_of_tokens(tokenizer: Any) -> np.ndarray:
    """For every token of a byte-level vocabulary the number of bytes it spells: int64, shape ``[vocabulary]``."""
    import numpy as np

    special = set(tokenizer.all_special_ids)
    entries = [tokenizer.convert_ids_to_tokens(token) for token in range(len(tokenizer))]
    return np.array([0 if token in special else len(entry) for token, entry in enumerate(entries)], dtype=np.int64)


def bytes_of_predicted(tokens: np.ndarray, seq_len: int, token_bytes: np.ndarray, end_of_text: int) -> int:
    """UTF-8 bytes of the text that the predicted tokens of a split spell.

    ``tokens`` are all its tokens in a row, shape ``[tokens]``; what does not fill a last sequence is left out.
    """
    spelled = token_bytes[tokens]
    spelled[:-1] -= tokens[1:] == end_of_text  # the space that stands before every end of text
    spelled[tokens == end_of_text] = 0
    sequences = len(tokens) // seq_len
    return int(spelled[: sequences * seq_len].reshape(sequences, seq_len)[:, 1:].sum())


def total_nats(model: Any, batches: Iterable[Any], precision: Any, mapping: Any) -> tuple[float, int]:
    """Summed over ``batches`` of Levanter examples: nats, and the number of predicted tokens."""
    import haliax as hax
    import jax.numpy as jnp

    @hax.named_jit(axis_resources=mapping)
    def of_batch(model: Any, batch: Any) -> tuple[Any, Any]:
        model = precision.cast_to_compute(model)
        losses = model.compute_next_token_loss(batch, reduction=None, reduction_axis=()).array
        weights = batch.loss_weight.array  # 0 for what is not predicted, and for padding of the last batch
        return jnp.sum(losses * weights), jnp.sum(weights)

    sums = [of_batch(model, batch) for batch in batches]
    return sum(float(nats) for nats, _ in sums), round(sum(float(tokens) for _, tokens in sums))
