"""Exactly one of many processes makes a version on every kind of store, also when owners are killed."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.records.racers import Race, command
from tests.storage.s3_server import LocalS3
from tradewind.records.lease import Phase
from tradewind.records.lifecycle import complete_commit
from tradewind.records.record import RecordState, Status, read_record, read_records, read_status
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.files import read_many, read_text, write_text

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
RACERS = 32
TIMEOUT_S = 700.0


def check(race: Race) -> int:
    """Check the markers of every version and return the number of attempts."""
    records = read_records(race.outputs)
    markers = [file.name.split("-") for file in Path(race.markers).iterdir()]
    for number, path in enumerate(race.outputs):
        record = records[path]
        assert record.state is RecordState.FINISHED, path
        assert record.lease is not None and record.lease.phase is Phase.COMMITTED
        ran = sorted(int(marker[2]) for marker in markers if marker[:2] == [str(number), "run"])
        assert ran[-1] == record.lease.attempt, "no attempt ran after the commit, and the committed one did"
        assert read_text(f"{path}/{race.data.format(record.lease.attempt)}") == record.lease.job
        complete_commit(path, record.lease)
        assert read_status(path) is Status.SUCCESS
    return sum(marker[1] == "run" for marker in markers)


def race_of_processes(
    folder: str, markers: Path, versions: int, heartbeat_s: float, pause_s: float = 0.0, racers: int = RACERS
) -> None:
    race = Race([f"{folder}/{n}" for n in range(versions)], str(markers), heartbeat_s, racers, TIMEOUT_S, pause_s)
    done = subprocess.run(command(race), cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout or -1) > 0, done.stdout + done.stderr
    assert check(race) >= versions


# Each read takes CPU that heartbeats need: on few cores, many racers with short heartbeats always take over.
few_and_many = pytest.mark.parametrize("racers", [8, pytest.param(RACERS, marks=pytest.mark.long)])


@few_and_many
@pytest.mark.parametrize(("any_folder", "each", "beat_s"), [("local", 4, 1.0), ("gs", 1, 2.0)], indirect=["any_folder"])
def test_one_process_makes_a_version(racers: int, any_folder: str, each: int, beat_s: float, tmp_path: Path) -> None:
    (tmp_path / "markers").mkdir()
    race_of_processes(f"{any_folder}/store", tmp_path / "markers", each * racers, beat_s, racers=racers)


@pytest.mark.long
def test_one_process_makes_a_version_on_s3(s3_folder: str, tmp_path: Path) -> None:
    race_of_processes(s3_folder, tmp_path, 8, 1.5, 8.0)  # this store reports ages in whole seconds


def test_one_thread_makes_a_version_in_memory(tmp_path: Path) -> None:
    race = Race([f"memory://race/{n}" for n in range(86)], str(tmp_path), 0.3, RACERS, TIMEOUT_S, data="data-{}")

    def die(luck: random.Random) -> None:
        if luck.randrange(100) < 20:
            raise StoreUnavailableError("This thread continues as if it had died here.")

    # fsspec lists memory by ``tuple(store)``. A collection in the midst of that calls Python code, namely a callback of
    # hypothesis, in which another thread may write.
    gc.disable()
    try:
        with ThreadPoolExecutor(RACERS) as pool:
            for done in [pool.submit(race.run, str(number), die) for number in range(RACERS)]:
                done.result(TIMEOUT_S)
    finally:
        gc.enable()
    assert check(race) > len(race.outputs)


# ---- an experiment with outputs in a bucket, by real drivers


EXPERIMENT = """
import json
import fsspec
from tradewind import ExecutorStep, executor_main, output_path_of, this_output_path, versioned

def make(config):
    with fsspec.open(f"{config['out']}/data.json", "w") as file:
        json.dump(list(range(config["n"])), file)

def add_up(config):
    with fsspec.open(f"{config['data']}/data.json") as file:
        return sum(json.load(file))

data = ExecutorStep("data", make, {"n": versioned(100), "out": this_output_path()})
total = ExecutorStep("total", add_up, {"data": output_path_of(data)})
executor_main(steps=[total])
"""


def test_steps_run_once_and_are_reused_or_forced(served: tuple[LoopbackServer | LocalS3, str], tmp_path: Path) -> None:
    _, folder = served
    (tmp_path / "exp.py").write_text(EXPERIMENT)

    def run(*options: str) -> str:
        command = [sys.executable, "exp.py", "--prefix", folder, *options]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "2 steps: 2 RUN" in run()
    total = f"{folder}/total-e1a66b"
    assert json.loads(read_text(f"{total}/.artifact.json") or "") == sum(range(100))
    assert read_record(total).state is RecordState.FINISHED
    assert "2 steps: 2 REUSE" in run()
    forced = run("--force", '["total"]')
    assert "2 steps: 1 RUN, 1 REUSE" in forced and "attempt 2" in forced
    attempts = read_many([f"{total}/.attempts/{number}.json" for number in (1, 2)])
    assert [json.loads(text)["outcome"] for text in attempts.values()] == ["succeeded", "succeeded"]
    write_text(f"{folder}/data-327353/data.json", "[]")  # the cheap check does not detect this change
    assert "2 steps: 2 REUSE" in run()
