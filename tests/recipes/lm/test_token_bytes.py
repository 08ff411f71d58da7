"""Bytes of tokens add up to the UTF-8 bytes of texts, with vocabularies of both kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tradewind.evaluation.visualize import pieces_of
from tradewind.recipes.lm.token_bytes import token_bytes

pytestmark = pytest.mark.slow

END = "</s>"
TEXTS = ("Hello world", " begins and ends ", "naïve 日本語 🦙\n\n\ttab", "", "a", "<0x0A> Ġ\x00 x  y", "\n")


def wrapped(tokenizer: Any, **others: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token="<s>", **others)


def byte_level(adds_space: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=[END, "<s>"], initial_alphabet=alphabet)
    )
    made.add_tokens(["<｜tool｜>"])
    return wrapped(made, add_prefix_space=adds_space)


def of_sentencepiece(scheme: str) -> Any:
    """Return a tokenizer in the form of Llama 2's: merges, a byte for what is unknown, and a space before a text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    entries = [
        "<unk>",
        "<s>",
        END,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abdeghilnorswyHïN",
        "▁▁",
        "lo",
        "▁w",
    ]
    vocabulary = {entry: token for token, entry in enumerate(entries)}
    merges = [("▁", "▁"), ("l", "o"), ("▁", "w")]
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    if scheme == "normalizer":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return wrapped(made)


@pytest.mark.parametrize(
    ("made", "adds_space"),
    [
        pytest.param(lambda: byte_level(False), False, id="byte-level"),
        pytest.param(lambda: byte_level(True), True, id="byte-level with a space"),
        pytest.param(lambda: of_sentencepiece("normalizer"), True, id="sentencepiece as Llama 2's"),
        pytest.param(lambda: of_sentencepiece("never"), False, id="sentencepiece as Gemma's"),
        pytest.param(lambda: of_sentencepiece("first"), True, id="sentencepiece with a space before texts"),
    ],
)
def test_tokens_of_texts_spell_their_utf8_bytes(made: Any, adds_space: bool) -> None:
    tokenizer = made()
    spelling = token_bytes(tokenizer)
    assert spelling is not None and spelling.adds_space is adds_space
    # A tokenizer that puts a space only before a text without one makes the same tokens of " a" and "a".
    texts = [text for text in TEXTS if not (adds_space and text.startswith(" "))]
    documents = [[1, *tokenizer.encode(f"{text} {END}", add_special_tokens=False)] for text in texts]
    starts = np.cumsum([0, *map(len, documents)])
    spelled = spelling.spelled(np.concatenate(documents), starts[:-1])
    found = [int(spelled[begin:end].sum()) for begin, end in zip(starts, starts[1:], strict=False)]
    assert found == [len(text.encode()) for text in texts]


def test_piece_of_a_token_keeps_its_space() -> None:
    for tokenizer in (byte_level(False), of_sentencepiece("first")):
        tokens = tokenizer.encode("Hello world", add_special_tokens=False)
        pieces = pieces_of(tokenizer, tokens)
        assert "".join(pieces[token] for token in tokens).strip() == "Hello world"


def test_bytes_of_another_kind_of_vocabulary_are_unknown() -> None:
    from tokenizers import Tokenizer, models

    words = wrapped(Tokenizer(models.WordLevel({"a": 0, END: 1, "<s>": 2}, unk_token="a")))
    assert token_bytes(words) is None
