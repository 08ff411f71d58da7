"""UTF-8 bytes of the text that each token spells, for bits per byte.

Two kinds of vocabularies spell texts without loss. In a byte-level one (GPT-2, Llama 3, Qwen), each character of an
entry is one byte. In one of SentencePiece (Llama 2, Gemma), an entry is the text, with ``▁`` for a space, and
``<0x0A>`` is one byte. Special tokens spell nothing. Neither do two spaces that no text has: the one that some
tokenizers put before a text, and the one that Levanter puts before the end of every text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

_PLAIN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that a byte-level vocabulary shows as the character of that number; the other 68 are 0x100 and following."""
_ALPHABET: Final = frozenset(map(chr, (*_PLAIN, *range(0x100, 0x144))))
_BYTES: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_SPACES: Final = ("Ġ", "▁")
"""A space in an entry of a byte-level vocabulary, and of SentencePiece's."""


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of each token of a vocabulary.

    Attributes:
        lengths: Bytes that a token spells: int64, shape ``[vocabulary]``.
        begins: Whether a token begins with a space.
        ends: Whether a token ends with a space.
        end_of_text: The token after each text.
        adds_space: Whether the tokenizer puts a space before each text.
    """

    lengths: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    end_of_text: int | None
    adds_space: bool = False

    def spelled(self, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the bytes that each of ``tokens`` spells: int64, shape ``[tokens]``.

        ``tokens`` are those of all texts in a row, each of which begins at one of ``starts``.
        """
        spelled: np.ndarray = self.lengths[tokens]
        if self.end_of_text is not None and len(tokens):
            is_end = tokens == self.end_of_text
            spelled[is_end] = 0
            spelled[:-1] -= is_end[1:] & self.ends[tokens[:-1]]
        if self.adds_space:
            firsts = starts[starts < len(tokens)]
            firsts = firsts + (self.lengths[tokens[firsts]] == 0)  # the token that begins every text
            firsts = firsts[firsts < len(tokens)]
            spelled[firsts] -= self.begins[tokens[firsts]] & (spelled[firsts] > 0)
        return spelled


def token_bytes(tokenizer: Any) -> TokenBytes | None:
    """Return the bytes of a tokenizer of Levanter's; None if its vocabulary is of neither kind."""
    import numpy as np

    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    if vocabulary.keys() >= _BYTES:
        length = _of_sentencepiece
    elif vocabulary.keys() >= _ALPHABET:
        length = _of_byte_level
    else:
        return None
    special = set(tokenizer.all_special_ids)
    entries = [str(tokenizer.convert_ids_to_tokens(token) or "") for token in range(len(tokenizer))]
    lengths = [0 if token in special else length(entry) for token, entry in enumerate(entries)]
    first = tokenizer.encode("a", add_special_tokens=False)
    return TokenBytes(
        np.array(lengths, dtype=np.int64),
        np.array([entry.startswith(_SPACES) for entry in entries]),
        np.array([entry.endswith(_SPACES) for entry in entries]),
        tokenizer.eos_token_id,
        bool(first) and entries[first[0]].startswith(_SPACES),
    )


def _of_byte_level(entry: str) -> int:
    """Return the bytes of an entry; one that was added later may be a text."""
    return len(entry) if _ALPHABET.issuperset(entry) else len(entry.encode())


def _of_sentencepiece(entry: str) -> int:
    return 1 if entry in _BYTES else len(entry.replace("▁", " ").encode())
