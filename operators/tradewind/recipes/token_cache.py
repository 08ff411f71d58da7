"""Tokenize the cleaned splits into Levanter's token caches."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tradewind.datasets.documents import document_files
from tradewind.datasets.files import join
from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.recipes.lm.levanter_parts import COMPONENT, SPLITS, quiet_libraries
from tradewind.steps.fields import PATH, check_fields
from tradewind.steps.needs import needs


@dataclass(frozen=True)
class TokenCacheConfig:
    """Documents and tokenizer of ``build_token_cache``."""

    input_path: str
    """Output of ``clean_and_shard``: a collection under ``train/`` and one under ``validation/``."""
    tokenizer_path: str
    """Output of ``train_bpe_tokenizer``, or any tokenizer folder with an end-of-text token."""
    output_path: str
    """Gets ``corpus/train`` and ``corpus/validation``, Levanter's token caches."""

    def __post_init__(self) -> None:
        check_fields(self, input_path=PATH, tokenizer_path=PATH, output_path=PATH)


@needs("levanter")
def build_token_cache(config: TokenCacheConfig) -> dict[str, Any]:
    """Build both caches; return their numbers of tokens, ``train_tokens`` and ``validation_tokens``.

    A finished cache stays.

    Raises:
        ValueError: There are no documents, no tokenizer or no end-of-text token.
    """
    quiet_libraries()
    files = {split: document_files(join(config.input_path, split)) for split in SPLITS}
    local_tokenizer(config.tokenizer_path)  # check it first: errors have this field's name
    result = tokenize(
        TokenizeFilesConfig(
            files["train"],
            files["validation"],
            join(config.output_path, COMPONENT),
            config.tokenizer_path,
            allow_test_in_train=True,
        )
    )
    return {f"{split}_tokens": result[f"{split}_tokens"] for split in SPLITS}


@contextmanager
def own_scratch() -> Iterator[None]:
    """Give Zephyr its own scratch folder: two builds on one machine would otherwise share one."""
    folder = tempfile.mkdtemp(prefix="tradewind-token-cache-")
    before = os.environ.get("MARIN_PREFIX")
    os.environ["MARIN_PREFIX"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["MARIN_PREFIX"]
        else:
            os.environ["MARIN_PREFIX"] = before
        shutil.rmtree(folder, ignore_errors=True)
