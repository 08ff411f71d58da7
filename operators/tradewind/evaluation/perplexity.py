"""Perplexity and bits per byte of a set of texts, with intervals, from the log probability of each token.

The tokens of all texts form a row, which is cut into sequences, as in Levanter's trainings and evaluations. All
tokens of a sequence but its first are predicted; Levanter leaves an incomplete last sequence out, which counts here.
Over the predicted tokens:

    loss          = nats / tokens            perplexity = e^loss
    bits per byte = nats / ln 2 / UTF-8 bytes of the text that these tokens spell

Both are ratios of sums over texts. Their intervals say what they would be over all texts like these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.evaluation.statistics import ratio_interval
from tradewind.evaluation.token_sets import TokenSet
from tradewind.recipes.lm.token_bytes import token_bytes

if TYPE_CHECKING:
    import numpy as np

    from tradewind.evaluation.scored_model import ScoredModel

_LN2: Final = math.log(2)
_SHOWN: Final = 100
"""Characters of a text that are kept: enough to see which it is, and that two sets have the same texts."""


@dataclass(frozen=True)
class Documents:
    """Sums over the predicted tokens of each text of a set that has any.

    Attributes:
        names: Name of each text.
        texts: Beginning of each text.
        tokens: int64, shape ``[texts]``.
        text_bytes: Of the same shape; None if the tokenizer's bytes are unknown.
        nats: float64, of the same shape.
    """

    names: list[str]
    texts: list[str]
    tokens: np.ndarray
    text_bytes: np.ndarray | None
    nats: np.ndarray

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of the set."""
        loss = ratio_interval(self.nats.tolist(), self.tokens.tolist())
        numbers: dict[str, Any] = {
            "documents": len(self.names),
            "tokens": int(self.tokens.sum()),
            "nats": math.fsum(self.nats),
            "loss": loss.value,
            "loss_interval": _ends(loss.low, loss.high),
            "perplexity": _perplexity(loss.value),
            "bytes": None,
            "bits_per_byte": None,
            "bits_per_byte_interval": None,
        }
        if self.text_bytes is not None and self.text_bytes.sum() > 0:
            bits = ratio_interval((self.nats / _LN2).tolist(), self.text_bytes.tolist())
            numbers |= {
                "bytes": int(self.text_bytes.sum()),
                "bits_per_byte": bits.value,
                "bits_per_byte_interval": _ends(bits.low, bits.high),
            }
        return numbers

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of a table with a row for each text: an unknown number of bytes is null."""
        text_bytes = [None] * len(self.names) if self.text_bytes is None else self.text_bytes.tolist()
        return {
            "document": self.names,
            "text": self.texts,
            "tokens": self.tokens.tolist(),
            "bytes": text_bytes,
            "nats": self.nats.tolist(),
        }


def _ends(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [low, high]


def _perplexity(loss: float) -> float | None:
    """Return e^loss; None if that is no number."""
    return math.exp(loss) if loss < 700 else None


def sequences_of(tokens: np.ndarray, seq_len: int, end_of_text: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Cut tokens into sequences; return these and the number of the text of each token in its sequence.

    The last sequence is filled up with zeros. As in Levanter, a text ends with the token ``end_of_text``.
    """
    import numpy as np

    padded = np.pad(tokens, (0, -len(tokens) % seq_len)).reshape(-1, seq_len)
    is_first = np.zeros(padded.shape, np.int32)
    if end_of_text is not None:
        is_first[:, 1:] = padded[:, :-1] == end_of_text
    return padded, np.cumsum(is_first, axis=1, dtype=np.int32)


def measure(model: ScoredModel, texts: TokenSet, seq_len: int) -> tuple[Documents, dict[str, Any]]:
    """Measure a set; return the sums of its texts, and what Levanter says of it."""
    sequences, segments = sequences_of(texts.tokens, seq_len, model.tokenizer.eos_token_id)
    nats = -model.log_probs(sequences, segments).reshape(-1)[: len(texts.tokens)]
    spelling = token_bytes(model.tokenizer)
    spelled = None if spelling is None else spelling.spelled(texts.tokens, texts.starts)
    documents = by_document(texts, nats, spelled, seq_len, model.tokenizer.decode)
    return documents, _levanters(model.tokenizer, texts.tokens, nats, seq_len)


def by_document(
    texts: TokenSet, nats: np.ndarray, spelled: np.ndarray | None, seq_len: int, decode: Callable[..., str]
) -> Documents:
    """Sum over the predicted tokens of each text; one without any is left out."""
    import numpy as np

    is_predicted = np.arange(len(texts.tokens)) % seq_len != 0
    lengths = np.diff(np.append(texts.starts, len(texts.tokens)))
    owner = np.repeat(np.arange(len(lengths)), lengths)[is_predicted]
    tokens = np.bincount(owner, minlength=len(lengths))
    kept = np.flatnonzero(tokens)

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(owner, weights=values[is_predicted].astype(np.float64), minlength=len(lengths))[kept]

    text_bytes = None if spelled is None else sums(spelled).astype(np.int64)
    heads = (texts.tokens[texts.starts[at] :][: min(lengths[at], _SHOWN)].tolist() for at in kept)
    shown = [decode(head, skip_special_tokens=True)[:_SHOWN] for head in heads]
    return Documents([texts.names[at] for at in kept], shown, tokens[kept], text_bytes, sums(nats))


def _levanters(tokenizer: Any, tokens: np.ndarray, nats: np.ndarray, seq_len: int) -> dict[str, Any]:
    """Return loss and bits per byte as Levanter computes them: complete sequences, and its own bytes of tokens."""
    import numpy as np
    from levanter.utils.hf_utils import byte_length_of_token

    whole = len(tokens) // seq_len * seq_len
    is_predicted = np.arange(whole) % seq_len != 0
    if not is_predicted.any():
        return {"loss": None, "bits_per_byte": None}
    predicted = tokens[:whole][is_predicted]
    found, counts = np.unique(predicted, return_counts=True)
    lengths = [byte_length_of_token(tokenizer, token) for token in found.tolist()]
    text_bytes = int(np.dot(lengths, counts))
    total = float(nats[:whole][is_predicted].sum(dtype=np.float64))
    return {"loss": total / len(predicted), "bits_per_byte": total / _LN2 / text_bytes if text_bytes > 0 else None}
