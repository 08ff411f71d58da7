"""Tokenization of the same files by Tradewind, Levanter's builder and a plain loop of Ray Data, in new processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import median
from benchmarks.processes import in_fresh_process

VOCABULARY: Final = 8_192
_ENV: Final = {
    "RAY_AUTH_MODE": "disabled",
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_niceness": "0",  # else a machine with other work does Ray's last
}


@dataclass(frozen=True)
class Tokenizing:
    """Cost of one way.

    Attributes:
        way: Its name.
        seconds: From the call to the end, without imports and the start of Ray; the median of the rounds.
        of_ours: The median of the rounds' quotients: Tradewind's seconds divided by this way's.
    """

    way: str
    seconds: float
    of_ours: float


def ours(folder: str, out: str) -> None:
    """``tokenize``, into a cache of Levanter's."""
    from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize

    tokenize(TokenizeFilesConfig([f"{folder}/texts"], [], f"{out}/cache", f"{folder}/tokenizer"))


def levanters(folder: str, out: str) -> None:
    """Levanter's builder, into its own cache."""
    from levanter.data.sharded_datasource import UrlDataSource
    from levanter.data.text import TextLmDatasetFormat
    from levanter.data.text.cache import build_lm_dataset_cache
    from levanter.tokenizers import load_tokenizer

    files = sorted(str(file) for file in Path(folder, "texts").iterdir())
    tokenizer = load_tokenizer(f"{folder}/tokenizer")
    build_lm_dataset_cache(f"{out}/cache/train", UrlDataSource(files), TextLmDatasetFormat(), tokenizer)


def plain(folder: str, out: str) -> None:
    """``map_batches`` of Ray Data with the tokenizer, into Parquet: no cache that could be trained on."""
    import ray

    rows = ray.data.read_json(f"{folder}/texts", override_num_blocks=len(list(Path(folder, "texts").iterdir())))
    rows.map_batches(partial(_cut, tokenizer=f"{folder}/tokenizer"), batch_size=256).write_parquet(f"{out}/parquet")


def _cut(batch: dict[str, Any], tokenizer: str) -> dict[str, Any]:
    texts = [text + " <|endoftext|>" for text in batch["text"]]
    return {"input_ids": [each.ids for each in _loaded(tokenizer).encode_batch(texts, add_special_tokens=False)]}


@cache
def _loaded(tokenizer: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(f"{tokenizer}/tokenizer.json")


WAYS: Final[dict[str, Callable[[str, str], None]]] = {
    "tradewind": ours,
    "Levanter's builder": levanters,
    "plain Ray Data": plain,
}


def prepare(folder: str, files: int, file_bytes: int) -> int:
    """Write files of real text and a tokenizer for it; returns the bytes of all files."""
    from tradewind.datasets.documents import read_documents
    from tradewind.datasets.python_sources import PythonSourcesConfig, collect_python_sources, running_python
    from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer

    with contextlib.redirect_stdout(io.StringIO()):
        collect_python_sources(PythonSourcesConfig(running_python(), f"{folder}/sources"))
        train_bpe_tokenizer(BpeTokenizerConfig(f"{folder}/sources", f"{folder}/tokenizer", VOCABULARY))
    lines = [json.dumps({"id": each.id, "text": each.text}) + "\n" for each in read_documents(f"{folder}/sources")]
    Path(folder, "texts").mkdir()
    total = at = 0
    for number in range(files):
        size = 0
        with Path(folder, "texts", f"{number:05}.jsonl").open("w") as file:
            while size < file_bytes:
                size += file.write(lines[at % len(lines)])
                at += 1
        total += size
    return total


def measure(way: str, folder: str) -> float:
    """Tokenize everything, and check that output exists; return the seconds."""
    import levanter.data.text.cache  # noqa: F401
    import ray

    from tradewind.recipes.lm.levanter_parts import quiet_libraries
    from tradewind.recipes.token_cache import own_scratch

    quiet_libraries()
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()), own_scratch():
        if WAYS[way] is not levanters:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
        began = time.perf_counter()
        WAYS[way](folder, out)
        took = time.perf_counter() - began
        if not list(Path(out).rglob("*.parquet")) and not list(Path(out).rglob("shard_ledger.json")):
            raise RuntimeError(f"{way} made nothing.")
    return took


def measure_finished(files: int) -> tuple[float, float]:
    """Return the seconds for this number of small files, and for a check of the finished files."""
    from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
    from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        from tradewind.datasets.documents import Document, write_documents

        write_documents(f"{folder}/texts", (Document(str(n), f"text {n}") for n in range(files)), 1)
        train_bpe_tokenizer(BpeTokenizerConfig(f"{folder}/texts", f"{folder}/tokenizer", 300))
        config = TokenizeFilesConfig([f"{folder}/texts"], [], f"{folder}/cache", f"{folder}/tokenizer")
        times = [time.perf_counter()]
        for _ in range(2):
            tokenize(config)
            times.append(time.perf_counter())
    return times[1] - times[0], times[2] - times[1]


def compare(files: int, file_bytes: int, rounds: int) -> tuple[int, list[Tokenizing]]:
    """Return the bytes of the files, and the medians of ``rounds`` rounds of all ways."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        total = prepare(folder, files, file_bytes)
        for _ in range(rounds):
            for way in WAYS:
                with tempfile.TemporaryDirectory() as home:
                    env = {**os.environ, **_ENV, "HOME": home}
                    found[way].append(in_fresh_process(measure, way, folder, env=env))
    here = found["tradewind"]
    return total, [
        Tokenizing(way, median(took) or 0.0, median(our / their for our, their in zip(here, took, strict=True)) or 0.0)
        for way, took in found.items()
    ]
