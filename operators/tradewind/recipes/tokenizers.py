"""Train a byte-level BPE tokenizer: it encodes every text, and is the same for the same documents.

The vocabulary is the end-of-text token, the 256 bytes, then merges by frequency. Every character of a token's entry is
one byte, which ``tradewind.recipes.lm.token_bytes`` counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind.datasets.documents import read_documents
from tradewind.datasets.files import atomic_writer, join
from tradewind.datasets.tokenizer_files import PREFIX
from tradewind.steps.fields import PATH, check_fields, integer
from tradewind.steps.needs import needs

END_OF_TEXT = "<|endoftext|>"
MIN_VOCAB_SIZE = 257
"""256 bytes and the end of a text."""


@dataclass(frozen=True)
class BpeTokenizerConfig:
    """Documents and size of ``train_bpe_tokenizer``."""

    input_path: str
    """A document collection; every document under it counts."""
    output_path: str
    """Gets a ``PreTrainedTokenizerFast`` folder: ``tokenizer.json`` and its companions."""
    vocab_size: int = 1024
    """Number of tokens, bytes and end of text included; fewer if the texts have fewer pairs to merge."""

    def __post_init__(self) -> None:
        check_fields(self, input_path=PATH, output_path=PATH, vocab_size=integer(MIN_VOCAB_SIZE))


@needs("tokenizers", "transformers")
def train_bpe_tokenizer(config: BpeTokenizerConfig) -> dict[str, Any]:
    """Train on all documents under ``input_path``; return ``vocab_size`` and ``documents``.

    Raises:
        ValueError: There are no documents.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    documents = 0

    def texts() -> Iterator[str]:
        nonlocal documents
        for document in read_documents(config.input_path):
            documents += 1
            yield document.text

    tokenizer.train_from_iterator(texts(), trainer)
    _save(tokenizer, config.output_path)
    return {"vocab_size": tokenizer.get_vocab_size(), "documents": documents}


def _save(tokenizer: Any, output_path: str) -> None:
    """Write the folder locally, then copy each file atomically."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        wrapped.save_pretrained(folder)
        for path in sorted(Path(folder).iterdir()):
            with atomic_writer(join(output_path, path.name)) as file:
                file.write(path.read_bytes())
