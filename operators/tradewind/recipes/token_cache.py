"""Tokenize the cleaned splits into Levanter's cache, so that training only reads numbers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tradewind.datasets.documents import document_files
from tradewind.datasets.files import join
from tradewind.recipes.levanter.parts import COMPONENT, SPLITS
from tradewind.recipes.levanter.quiet import quiet_libraries
from tradewind.recipes.tokenizers import local_tokenizer
from tradewind.steps.values.fields import PATH, check_fields

if TYPE_CHECKING:
    from levanter.data.text import LmDataConfig


@dataclass(frozen=True)
class TokenCacheConfig:
    """What ``build_token_cache`` tokenizes, and with what."""

    input_path: str
    """Output of ``clean_and_shard``: a collection under ``train/`` and one under ``validation/``."""
    tokenizer_path: str
    """Output of ``train_bpe_tokenizer``, or any tokenizer folder with an end-of-text token."""
    output_path: str
    """Gets ``corpus/train`` and ``corpus/validation``, Levanter's token caches."""

    def __post_init__(self) -> None:
        check_fields(self, input_path=PATH, tokenizer_path=PATH, output_path=PATH)


def build_token_cache(config: TokenCacheConfig) -> dict[str, Any]:
    """Build both caches; returns the number of tokens of each, as ``train_tokens`` and ``validation_tokens``.

    A cache that is already finished is kept. Raises ``ValueError`` without documents, tokenizer or end-of-text token.
    """
    quiet_libraries()
    files = {split: document_files(join(config.input_path, split)) for split in SPLITS}
    with own_scratch():
        data = _buildable(files, local_tokenizer(config.tokenizer_path), config.output_path)
        if data.the_tokenizer.eos_token_id is None:
            raise ValueError(f"The tokenizer under tokenizer_path {config.tokenizer_path} has no end-of-text token.")
        for split in SPLITS:
            data.build_caches(split)
    return {f"{split}_tokens": _token_count(config.output_path, split) for split in SPLITS}


def _buildable(files: dict[str, list[str]], tokenizer: str, output_path: str) -> LmDataConfig:
    from levanter.data.text import DatasetComponent, LmDataConfig, TextLmDatasetFormat, UrlDatasetSourceConfig

    source = UrlDatasetSourceConfig(train_urls=files["train"], validation_urls=files["validation"])
    component = DatasetComponent(source=source, format=TextLmDatasetFormat(text_key="text"))
    return LmDataConfig(
        tokenizer=tokenizer, cache_dir=output_path, auto_build_caches=True, components={COMPONENT: component}
    )


def _token_count(output_path: str, split: str) -> int:
    from levanter.data.text.cache import cached_token_count

    return int(cached_token_count(join(output_path, COMPONENT, split)))


@contextmanager
def own_scratch() -> Iterator[None]:
    """A scratch folder of its own for Zephyr, which two builds on one machine would otherwise share."""
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
