"""Requirements of Marin's own ``test_executor.py`` under its names; for versions see the vectors of ``tests/steps``."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance import parts
from tests.acceptance.parts import Config, calls, ran, run, step
from tradewind.attempts.decisions import Claim, RerunRequest, TaskIdentity, decide_start
from tradewind.local import step as local_step
from tradewind.local.run import ExperimentFailedError, PreviousTaskFailedError
from tradewind.records import lease_store
from tradewind.records.lease import Phase, lease_path, new_owner_id
from tradewind.records.record import Status, read_record, read_status, status_path
from tradewind.serialization.spec import step_spec
from tradewind.steps import (
    ExecutorStep,
    InputName,
    ResolvedStep,
    mirrored,
    output_path_of,
    resolve,
    this_output_path,
    versioned,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_step, "POLL_S", 0.1)


def resolved(wanted: ExecutorStep) -> ResolvedStep:
    return resolve([wanted], "/p").of(wanted)


def test_executor(store: Path, log: str) -> None:
    a = ExecutorStep("a", parts.work, Config(None, this_output_path(), versioned("a"), None, log))
    b = ExecutorStep("b", parts.work, Config(output_path_of(a, "sub"), this_output_path(), versioned("b"), 4, log))
    paths = run([b], store, caller="/somewhere/pipeline.py")

    assert paths.keys() == {a, b}
    assert [Path(paths[each]).parent for each in (a, b)] == [store, store]
    assert [Path(paths[each]).name.rpartition("-")[0] for each in (a, b)] == ["a", "b"]
    called = {"input_path": f"{paths[a]}/sub", "output_path": paths[b], "n": "b", "m": 4, "log": log}
    assert ran(log) == ["a", "b"], "inputs first"
    assert calls(log)[1] == called

    (file,) = (store / "experiments").iterdir()
    assert file.name.startswith("pipeline-")
    experiment = json.loads(file.read_text())
    assert (experiment["prefix"], experiment["caller_path"]) == (str(store), "/somewhere/pipeline.py")
    assert [(info["name"], info["output_path"]) for info in experiment["steps"]] == [("a", paths[a]), ("b", paths[b])]
    assert experiment["steps"][1]["config"] == called
    assert experiment["steps"][1]["version"] == resolved(b).version
    assert step_spec(resolved(b), parts.CODE).load_config() == resolved(b).config
    for info in experiment["steps"]:
        assert read_status(info["output_path"]) is Status.SUCCESS
        assert json.loads(Path(info["output_path"], ".executor_info").read_text()) == info


def test_status_file_reads_legacy_format(store: Path, log: str) -> None:
    a = step("a", log=log)
    output = run([a], store, dry_run=True)[a]
    events = [{"date": "2025-11-03T10:00:00", "status": status} for status in ("WAITING", "RUNNING", "SUCCESS")]
    Path(output).mkdir(parents=True)
    Path(status_path(output)).write_text("".join(json.dumps(event) + "\n" for event in events))
    Path(output, "data.txt").write_text("made in 2025")
    assert read_status(output) is Status.SUCCESS
    run([a], store)
    assert ran(log) == []


def test_force_run_failed(store: Path, log: str) -> None:
    a = step("a", parts.fail_until_allowed, n="a", log=log)
    b = step("b", n="b", log=log, input_path=output_path_of(a))
    with pytest.raises(ExperimentFailedError, match=r"1 step\(s\) failed"):
        run([b], store)
    assert ran(log) == ["a"]

    Path(log + ".allowed").touch()
    with pytest.raises(PreviousTaskFailedError, match="failed previously"):
        run([b], store, force_run_failed=False)
    assert ran(log) == ["a"]

    run([b], store, force_run_failed=True)
    assert ran(log) == ["a", "a", "b"]


def test_status_actor_one_executor_waiting_for_another(
    store: Path, log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_step, "NOTICE_INTERVAL_S", 0.2)
    a = step("a", parts.work_a_while, n="a", log=log)
    readers = [step(name, n=name, log=log, input_path=output_path_of(a)) for name in ("b", "c")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda reader: run([reader], store), readers))
    assert ran(log)[0] == "a"
    assert sorted(ran(log)) == ["a", "b", "c"]
    assert capsys.readouterr().out.count("Step 'a': attempt 1 of") >= 3, "the waiting run repeats its notice"


def test_status_actor_multiple_steps_race_condition(store: Path, log: str) -> None:
    barrier = threading.Barrier(10)

    def run_one(_: int) -> None:
        barrier.wait()
        run([step("a", parts.work_a_while, n="a", log=log)], store)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(run_one, range(10)))
    assert ran(log) == ["a"]
    (attempts,) = store.glob("*/.attempts")
    assert [file.name for file in attempts.glob("*.json")] == ["1.json"]


def test_parallelism(store: Path, log: str) -> None:
    """Each step ends only when all run at once, a stricter test than the elapsed time."""
    run([step(f"s{i}", parts.meet, n=i, m=6, log=log) for i in range(6)], store)
    assert sorted(ran(log)) == [*range(6)]


def test_dedup_version(store: Path, log: str) -> None:
    inputs = [step("a", n="a", log=log) for _ in range(2)]
    first, second = (step("b", n="b", log=log, input_path=output_path_of(a)) for a in inputs)
    experiment = resolve([first, second], str(store))
    assert [known.name for known in experiment.steps] == ["a", "b"]
    assert experiment.of(first) is experiment.of(second)
    run([first, second], store)
    assert ran(log) == ["a", "b"]


def test_run_only_some_steps(tmp_path: Path, log: str) -> None:
    a = step("a", n="a", log=log)
    b = step("b", n="b", log=log, input_path=output_path_of(a))
    c = step("c", n="c", log=log)
    run([b, c], tmp_path / "one", run_only=("^b$",))
    assert ran(log) == ["a", "b"]
    Path(log).unlink()
    run([b, c], tmp_path / "two", run_only=("a", "c"))
    assert sorted(ran(log)) == ["a", "c"]


def test_parent_doesnt_run_on_skip_parent(store: Path, log: str) -> None:
    parent = step("parent", n="parent", log=log)
    paths = run([step("child", n="child", log=log, input_path=parent.nonblocking())], store)
    assert ran(log) == ["child"]
    assert calls(log)[0]["input_path"] == paths[parent]


def test_skippable_parent_will_run_if_asked(store: Path, log: str) -> None:
    parent = step("parent", n="parent", log=log)
    run([step("child", n="child", log=log, input_path=parent.nonblocking())], store, run_only=("parent",))
    assert ran(log) == ["parent"]


def test_parent_will_run_if_some_child_is_not_skippable(store: Path, log: str) -> None:
    grand = step("grand", n="grand", log=log)
    parent = step("parent", n="parent", log=log, input_path=output_path_of(grand))
    skipping = step("skipping", n="skipping", log=log, input_path=parent.nonblocking())
    blocking = step("blocking", n="blocking", log=log, input_path=parent)
    run([skipping, blocking], store)
    assert [n for n in ran(log) if n != "skipping"] == ["grand", "parent", "blocking"]


def test_mirrored_nesting_raises() -> None:
    with pytest.raises(ValueError, match="nest"):
        mirrored(mirrored("documents/data"))
    assert isinstance(mirrored(InputName.hardcoded("documents/data")).value, InputName)


@pytest.mark.parametrize("is_marins", [True, False])
def test_status_file_takeover_stale_lock_then_refresh(store: Path, is_marins: bool) -> None:
    output, clock = str(store / "out"), iter(range(1000, 2000))
    leases = lease_store.LeaseStore(output, now=lambda: float(next(clock)))
    file = Path(lease_path(output))
    file.parent.mkdir(parents=True)
    if is_marins:
        file.write_text(json.dumps({"worker_id": "host-1234", "timestamp": 0.0}))
    else:
        assert leases.claim(None, lease_store.LeaseClaim(1, "dead", "", {"run": "theirs"}, "")) is not None
    me, request = TaskIdentity({"run": "mine"}), RerunRequest()
    assert not isinstance(decide_start(read_record(output), me, request), Claim), "the lock is fresh"

    written = file.stat().st_mtime - 100
    os.utime(file, (written, written))
    assert isinstance(decide_start(read_record(output), me, request), Claim)
    stale = leases.read()
    claimed = leases.claim(stale, lease_store.LeaseClaim(2, "job", "", me.by, ""))
    assert claimed is not None
    assert leases.claim(stale, lease_store.LeaseClaim(2, "late", "", {}, "")) is None, "one of two takes over"

    running = leases.take_over("job", new_owner_id())
    refreshed = leases.change(running)
    assert refreshed.lease.phase is Phase.RUNNING
    assert refreshed.lease.timestamp > running.lease.timestamp > claimed.lease.timestamp
    found = leases.read()
    assert found is not None and found.lease == refreshed.lease
