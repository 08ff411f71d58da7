"""What the benchmark of fuzzy duplicates measures."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.data.pipelines import CORES, on_ray

PEER: Final = "DATATROVE_PYTHON"
"""Environment variable with a Python that has datatrove."""
_WORDS: Final = 20_000
_ALPHABET: Final = "etaoinshrdlucmfwypvbgk"


def texts(count: int, words: int, seed: int) -> list[str]:
    """Return texts with sentences of words."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices(_ALPHABET, k=draw.randint(2, 9))) for _ in range(_WORDS)]
    return [
        ". ".join(" ".join(draw.choices(vocabulary, k=12)).capitalize() for _ in range(words // 12))
        for _ in range(count)
    ]


def measure_minhash(count: int, sizes: Sequence[tuple[int, int]], rounds: int) -> dict[str, Any]:
    """Return bytes, and for each number of bands and of rows CPU seconds of each round, ours and the peer's."""
    from tradewind.recipes.data.duplicates.minhash import MinHash

    given = texts(count, 800, 0)
    found: dict[str, Any] = {"bytes": sum(len(text.encode()) for text in given)}
    peer = os.environ.get(PEER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "texts.jsonl")
        file.write_text("\n".join(map(json.dumps, given)) + "\n")
        for bands, rows in sizes:
            minhash, pairs = MinHash(bands * rows, bands), []
            minhash.buckets(given[:1])
            for _ in range(rounds):
                begun = time.process_time()
                minhash.buckets(given)
                ours = time.process_time() - begun
                pairs.append((ours, _peer(peer, file, bands, rows) if peer else None))
            found[f"{bands}x{rows}"] = pairs
    return found


def _peer(python: str, file: Path, bands: int, rows: int) -> float:
    script = Path(__file__).with_name("datatrove_minhash.py")
    command = [python, str(script), str(file), str(bands), str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure_fuzzy(documents: int, shards: int) -> dict[str, Any]:
    """Return bytes, CPU seconds of the signatures alone, seconds of the whole, and what was found."""
    from tradewind.datasets import create_backend, set_flow_backend
    from tradewind.recipes.data.duplicates import minhash
    from tradewind.recipes.data.duplicates.fuzzy import FuzzyConfig, find_fuzzy_duplicates, write_stats

    with tempfile.TemporaryDirectory() as folder, on_ray(folder):
        given = _write_set(f"{folder}/set", documents, shards)
        begun = time.process_time()
        for start in range(0, len(given), 1_000):
            minhash.MinHash().buckets(given[start : start + 1_000])
        signing = time.process_time() - begun
        config = FuzzyConfig([f"{folder}/set"], [], f"{folder}/out", 0.8, 286, 26, 5, 42)
        backend = create_backend("ray", max_parallelism=CORES, memory="1GB", scratch=f"{folder}/scratch")
        set_flow_backend(backend)
        begun = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            write_stats(config, backend.execute(find_fuzzy_duplicates(config)))
        spent = time.perf_counter() - begun
        stats = json.loads(Path(folder, "out", "stats.json").read_text())
        counts = {name: stats[name] for name in ("candidates", "verified", "clusters", "duplicates")}
        return {"bytes": sum(map(len, given)), "signing": signing, "seconds": spent, **counts}


def _write_set(folder: str, documents: int, shards: int) -> list[str]:
    """Write a set, in which a quarter of the documents vary another one by 0 to 8 % of its words."""
    import pyarrow as pa
    from pyarrow import parquet

    from tradewind.datasets.shuffle import bucket_of
    from tradewind.recipes.data.normalized import content_id

    draw = random.Random(1)
    given = texts(documents * 3 // 4, 160, 1)
    for text in draw.choices(given, k=documents - len(given)):
        words, share = text.split(" "), 0.08 * draw.random()
        given.append(" ".join(f"{word}x" if draw.random() < share else word for word in words))
    os.makedirs(folder)
    rows = sorted({content_id(text): text for text in given}.items())
    for shard in range(shards):
        own = [{"id": each, "text": text} for each, text in rows if bucket_of(each, shards) == shard]
        parquet.write_table(pa.Table.from_pylist(own), f"{folder}/part-{shard:05d}-of-{shards:05d}.parquet")
    return [text for _, text in rows]
