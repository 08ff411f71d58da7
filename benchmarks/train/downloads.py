"""Download of one data set by Tradewind and by the hub's own client, each in its own process."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import median
from benchmarks.processes import in_fresh_process, served
from benchmarks.train.hub import COMMIT, REPO, make_hub


@dataclass(frozen=True)
class Download:
    """Cost of one way.

    Attributes:
        way: Its name.
        seconds: From the first request to the last file, without imports; the median of the pairs.
        cpu_s: CPU seconds of the downloading process in that time.
        peak_mb: Its peak memory.
    """

    way: str
    seconds: float
    cpu_s: float
    peak_mb: float


def ours(folder: str) -> None:
    """``download_hf``."""
    from tradewind.datasets.downloads import HubDownloadConfig, download_hf

    download_hf(HubDownloadConfig(REPO, COMMIT, folder))


def theirs(folder: str) -> None:
    """``huggingface_hub.snapshot_download``, with as many files at once; it compares sizes and no checksums."""
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, repo_type="dataset", revision=COMMIT, local_dir=folder, max_workers=16)


WAYS: Final[dict[str, Callable[[str], None]]] = {"tradewind": ours, "huggingface_hub": theirs}


def measure(way: str, files: int, file_bytes: int) -> dict[str, Any]:
    """Download everything, and check the files."""
    import huggingface_hub  # noqa: F401
    import requests  # noqa: F401

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        began, cpu = time.perf_counter(), time.process_time()
        WAYS[way](folder)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        sizes = [file.stat().st_size for file in Path(folder, "data").glob("*.bin")]
        if sizes != [file_bytes] * files:
            raise RuntimeError(f"{way} made {len(sizes)} files of {sorted(set(sizes))} bytes.")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": took, "cpu_s": cpu, "peak_mb": peak_mb}


def compare(files: int, file_bytes: int, latency_s: float, pairs: int) -> list[Download]:
    """Return the medians of ``pairs`` pairs of alternating downloads from one server."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with served(make_hub, files, file_bytes, latency_s) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_TOKEN": ""}
        for _ in range(pairs):
            for way in WAYS:
                with tempfile.TemporaryDirectory() as home:
                    own = {**os.environ, **env, "HF_HOME": home}
                    found[way].append(in_fresh_process(measure, way, files, file_bytes, env=own))
    return [
        Download(way, *(median(each[figure] for each in runs) or 0.0 for figure in ("seconds", "cpu_s", "peak_mb")))
        for way, runs in found.items()
    ]
