"""A killed tokenizing worker: another repeats only its unfinished files; workers write the cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.datasets.caches import config, contents, lines, with_tokenizers
from tests.support.waiting import until
from tradewind.datasets.tokenization import tokenize

pytestmark = [pytest.mark.slow]

SPREAD = """
import sys
import ray
from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
from tradewind.datasets import cache_builder as caches
caches._MAX_LOCAL_VALUES = 0  # so that workers put the cache together, as they do a large one
ray.init(num_cpus=2, include_dashboard=False)
print(ray._private.worker._global_node.get_session_dir_path(), flush=True)
folder, tokenizer = sys.argv[1:]
print(tokenize(TokenizeFilesConfig([folder], [], folder + "/out", tokenizer), small_bytes=0), flush=True)
"""


def holder(path: Path) -> int | None:
    """Return the ID of the process that has a file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(path):
                return int(link.parts[2])
        except OSError:
            continue
    return None


@pytest.mark.ray
@pytest.mark.long
def test_killed_worker_repeats_no_finished_shard_and_same_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The large file is the last, so workers have finished others when one starts it."""
    root, folder = with_tokenizers(tmp_path_factory.mktemp("tokens")), tmp_path_factory.mktemp("spread")
    for number in range(4):
        (folder / f"small{number}.jsonl").write_bytes(lines([f"text {number}"] * 9))
    (folder / "very_large.jsonl").write_bytes(lines(["the large one " * 100] * 5_000))
    env = os.environ | {"HOME": str(folder), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", SPREAD, str(folder), str(root / "end")]

    def worker_with_the_large_file() -> int | None:
        assert process.poll() is None, "the tokenization ended before a worker was killed"
        is_begun = list(folder.glob("out/shards/train/*.tokens"))
        return holder(folder / "very_large.jsonl") if is_begun else None

    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            killed = until(worker_with_the_large_file, "a shard, and a worker that reads the large file")
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            told, _ = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, told
    session = next(line for line in told.splitlines() if "/session_" in line)
    logs = "".join(log.read_text() for log in Path(session, "logs").glob("worker-*.out"))
    begun = Counter(Path(line.split()[1]).stem for line in logs.splitlines() if line.startswith("tokenizes "))
    assert begun == {**{f"small{number}": 1 for number in range(4)}, "very_large": 2}
    here = tokenize(config(root, [str(folder / "*.jsonl")], "here"))
    assert contents(str(folder / "out")) == contents(str(root / "here"))
    assert str(here) in told
