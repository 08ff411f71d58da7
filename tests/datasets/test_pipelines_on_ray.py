"""SIGKILL of a worker and of the driver between and within stages: another run makes the missing shards only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.waiting import until
from tradewind.datasets import Dataset, create_backend

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SHARDS = 6
SCRIPT = """
import os, sys, time
from pathlib import Path
from tradewind.datasets import Dataset, create_backend

root = Path(sys.argv[1])

def note(rows, info):
    name = f"{info.total_shards}-{info.shard_idx}"
    (root / "begun" / f"{name}-{os.getpid()}").touch()
    while (root / f"held-{name}").exists():
        time.sleep(0.05)
    yield from rows

rows = Dataset.from_files(f"{root}/in/*.jsonl").load_jsonl().map_shard(note)

def reduced(word, rows):
    return {"word": word, "ids": [row["id"] for row in rows]}

words = rows.group_by(lambda row: row["word"], reducer=reduced, num_output_shards=4)
out = words.map_shard(note).write_jsonl(f"{root}/out/{{shard}}.jsonl.gz")
print(create_backend("ray", max_parallelism=2, memory="200MB", scratch=f"{root}/scratch").execute(out))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("in", "begun"):
        (tmp_path / name).mkdir()
    for shard in range(SHARDS):
        rows = [json.dumps({"id": f"{shard}-{row}", "word": f"w{row % 9}"}) for row in range(20)]
        (tmp_path / "in" / f"{shard}.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def start(root: Path) -> subprocess.Popen[str]:
    env = os.environ | {"HOME": str(root), "RAY_AUTH_MODE": "disabled"}
    env.pop("RAY_ADDRESS", None)
    command = [sys.executable, str(root / "script.py"), str(root)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def begun(root: Path, name: str) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in (root / "begun").glob(f"{name}-*")]


def times(root: Path) -> Counter[str]:
    return Counter(path.name.rpartition("-")[0] for path in (root / "begun").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("held", ["6-3", "4-2"], ids=["in scatter", "in merge"])
@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_killed_process_costs_only_shards_at_work(root: Path, held: str, victim: str) -> None:
    """Four local clusters of two CPUs: kills of workers and drivers need processes of their own."""
    (root / f"held-{held}").touch()
    with start(root) as driver:
        (worker, *_) = until(lambda: begun(root, held), f"shard {held} at work")
        os.kill(worker if victim == "worker" else driver.pid, signal.SIGKILL)
        (root / f"held-{held}").unlink()
        told = driver.communicate()[0]
    if victim == "driver":
        before = times(root)
        with start(root) as driver:
            told = driver.communicate()[0]
        at_work = sum((times(root) - before).values()) - (SHARDS + 4 - len(before))
        assert at_work <= 2, times(root)
    else:
        assert "lost" in told
        assert times(root) - Counter([held]) == Counter(dict.fromkeys(times(root), 1)), times(root)
    assert driver.returncode == 0, told
    made = {path.name: path.read_bytes() for path in (root / "out").iterdir()}

    def reduced(word: str, rows: object) -> dict[str, object]:
        return {"word": word, "ids": [row["id"] for row in rows]}  # type: ignore[attr-defined]

    rows = Dataset.from_files(f"{root}/in/*.jsonl").load_jsonl()
    words = rows.group_by(lambda row: row["word"], reducer=reduced, num_output_shards=4)
    create_backend("sync").execute(words.write_jsonl(f"{root}/here/{{shard}}.jsonl.gz"))
    assert made == {path.name: path.read_bytes() for path in (root / "here").iterdir()}
