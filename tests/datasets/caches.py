"""Texts, tokenizers, and the contents of the token caches that tests make from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tradewind.datasets.tokenization import TokenizeFilesConfig


def with_tokenizers(folder: Path) -> Path:
    """Add tokenizers to ``folder``; return it.

    ``begin`` marks both ends of a text, ``end`` its end, ``endless`` neither.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = {"begin": {"bos_token": "<s>", "eos_token": "<end>"}, "end": {"eos_token": "<end>"}, "endless": {}}
    for name, tokens in special.items():
        vocabulary = {each: number for number, each in enumerate([*letters, "<end>", "<s>", "th"])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")] if name == "begin" else []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(str(folder / name))
    return folder


def lines(texts: list[Any], key: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts).encode()


def contents(path: str, fields: tuple[str, ...] = ("input_ids",)) -> dict[str, Any]:
    """Return all contents of a cache, for comparison."""
    import numpy as np
    from levanter.store.cache import TreeCache

    cache = TreeCache.load(f"{path}/train", {name: np.zeros(0, np.int32) for name in fields})
    found: dict[str, Any] = {"ledger": json.loads(Path(path, "train/shard_ledger.json").read_text())}
    for name, array in cache.store.tree.items():
        found[name] = array.data[: array.data_size].read().result().tobytes()
        found[f"{name} ends"] = array.offsets[: len(cache) + 1].read().result().tobytes()
    return found


def config(root: Path, files: list[str], name: str, tokenizer: str = "end", **more: Any) -> TokenizeFilesConfig:
    return TokenizeFilesConfig(files, [], str(root / name), str(root / tokenizer), **more)


def write_cache(folder: Path, rows: int = 4, tokens_per_row: int = 16, field: str = "input_ids") -> Path:
    """Write a finished Levanter cache of equal rows; return its folder."""
    import numpy as np
    from levanter.store.cache import CacheLedger, CacheMetadata
    from levanter.store.tree_store import TreeStore

    folder.mkdir(parents=True, exist_ok=True)
    store = TreeStore.open({field: np.zeros(0, np.int32)}, str(folder), mode="w", cache_metadata=True)
    if rows:
        store.extend([{field: np.arange(1, tokens_per_row + 1, dtype=np.int32)}] * rows)
    counts = {field: rows * tokens_per_row}
    ledger = CacheLedger(rows, {"0": rows}, True, ["0"], counts, metadata=CacheMetadata({}))
    (folder / "shard_ledger.json").write_text(ledger.to_json())
    return folder
