"""Sync copies a mirrored path once into the run's prefix, complete and verified, or publishes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driven import REPOSITORY
from tests.runtime.regions import QUICK_S, StepLease, copy_after, lease_of_copy, mirror_of, put, sync, texts
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.runtime.mirror_copies import (
    MirrorCopy,
    MirrorCopyError,
    MirrorError,
    find_source,
    is_mirrored,
    record_of,
)
from tradewind.runtime.mirrors import MirrorSync
from tradewind.storage import file_system_at
from tradewind.storage.errors import LeaseLostError
from tradewind.storage.trees import list_files

FILES = {"a.txt": "a" * 1000, "deep/b.txt": "b" * 500, "deep/c.txt": ""}


@pytest.fixture
def regions(any_folder: str) -> tuple[str, str]:
    """The run's prefix, and the prefix of the region that has FILES at data/raw."""
    put(f"{any_folder}/eu/data/raw", FILES)
    return f"{any_folder}/us", f"{any_folder}/eu"


@pytest.fixture
def buckets(gcs: LocalCloudStorage, gs_folder: str) -> tuple[str, str]:
    put(f"{gs_folder}/eu/data/raw", FILES)
    return f"{gs_folder}/us", f"{gs_folder}/eu"


@pytest.fixture(params=["tmp_path", "gs_folder"])
def local_or_gs(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The run's prefix and that of the other region, both empty, on a disk or in a bucket."""
    folder = request.getfixturevalue(request.param)
    return f"{folder}/us", f"{folder}/eu"


def claim(path: str) -> None:
    """Claim an output as a step at work does."""
    LeaseStore(path).claim(None, LeaseClaim(1, "job", "", {}, "v"))


def objects_of(gcs: LocalCloudStorage, folder: str) -> tuple[Any, str]:
    """Return the objects of the folder's bucket, and the folder's name in it."""
    bucket, _, name = folder.removeprefix("gs://").partition("/")
    return gcs.buckets.bucket(bucket).objects, name


@pytest.mark.slow
def test_missing_path_is_copied_once_and_read_without_source(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw", here, there)
    sync(mirror)
    assert texts(f"{here}/data/raw") == FILES == texts(f"{there}/data/raw")
    fs, name = file_system_at(there)
    fs.rm(name, recursive=True)
    sync(mirror, mirror_of("data/raw/deep/b.txt", here, there))
    assert (lease_of_copy(mirror).phase, lease_of_copy(mirror).attempt) == (Phase.COMMITTED, 1)
    left = {file.path for file in list_files(record_of(here, "data/raw"))}
    assert left - {".executor_status.lock.guard"} == {".executor_status.lock", "files.json"}


@pytest.mark.slow
def test_single_file_is_copied_alone_and_once(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw/deep/b.txt", here, there)
    sync(mirror)
    sync(mirror)
    assert texts(here) == {"data/raw/deep/b.txt": FILES["deep/b.txt"]}
    assert lease_of_copy(mirror).attempt == 1


@pytest.mark.slow
def test_path_in_own_prefix_is_read_in_place_without_writes(regions: tuple[str, str]) -> None:
    here, there = regions
    put(f"{here}/data/raw", {"a.txt": "own"})
    sync(mirror_of("data/raw", here, there, budget_gb=0))
    assert texts(here) == {"data/raw/a.txt": "own"}
    assert not list_files(f"{here}/.tradewind")


def test_records_of_steps_are_not_copied(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    put(f"{there}/tokens-abc123", {"shard": "x", ".executor_status": "SUCCESS", ".attempts/1.json": "{}"})
    sync(mirror_of("tokens-abc123", here, there))
    assert texts(here) == {"tokens-abc123/shard": "x"}


@pytest.mark.slow
def test_concurrent_runs_copy_same_path_once(local_or_gs: tuple[str, str], request: pytest.FixtureRequest) -> None:
    here, there = local_or_gs
    files = {f"{number:02}.txt": str(number) * 2000 for number in range(40)}
    put(f"{there}/data", files)
    mirror = mirror_of("data", here, there)
    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(sync, mirror, by=str(run)) for run in range(4)]:
            one.result()
    assert texts(f"{here}/data") == files
    assert lease_of_copy(mirror).attempt == 1
    if here.startswith("gs://"):
        assert request.getfixturevalue("gcs").requests["copy"] == 40


def test_bucket_to_bucket_copy_transfers_no_bytes_locally(gcs: LocalCloudStorage, buckets: tuple[str, str]) -> None:
    here, there = buckets
    gcs.requests.clear()
    sync(mirror_of("data/raw", here, there))
    assert (gcs.requests["copy"], gcs.requests["read"]) == (3, 0)
    assert texts(f"{here}/data/raw") == FILES


def test_copy_works_between_local_disk_and_bucket(tmp_path: Path, buckets: tuple[str, str]) -> None:
    us, eu = buckets
    sync(mirror_of("data/raw", f"{tmp_path}/us", eu))
    assert texts(f"{tmp_path}/us/data/raw") == FILES
    sync(mirror_of("data/raw", us, f"{tmp_path}/us"))
    assert texts(us) == {f"data/raw/{name}": text for name, text in FILES.items()}


@pytest.mark.slow
def test_waiting_mirror_leaves_lease_of_running_copy_alone(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw", here, there)
    store = LeaseStore(record_of(here, "data/raw"))
    held = store.claim(None, LeaseClaim(1, "theirs", "", {"run": "other"}, ""))
    assert held is not None

    class LostLease(StepLease):
        """Stub of a lease that is lost while the step waits for its mirror."""

        def check(self) -> None:
            raise LeaseLostError("over")

    with pytest.raises(LeaseLostError):
        MirrorSync({}, 30.0, LostLease()).sync_all([mirror])
    assert (lease_of_copy(mirror).job, lease_of_copy(mirror).phase) == ("theirs", Phase.CLAIMED)
    store.change(held, phase=Phase.STOPPED)
    sync(mirror)
    assert texts(f"{here}/data/raw") == FILES


# ---- budgets


@pytest.mark.slow
def test_nothing_is_copied_if_one_path_exceeds_its_budget(regions: tuple[str, str]) -> None:
    here, there = regions
    put(f"{there}/small", {"x": "x"})
    large = mirror_of("data/raw", here, there, budget_gb=1.499e-6, field="config.data.train")
    with pytest.raises(MirrorError) as refused:
        sync(mirror_of("small", here, there), large)
    assert str(refused.value).startswith(
        f"config.data.train: 1.5 kB (3 files) would be copied from {there} to {here}/data/raw, and the budget is 1.5 kB"
    )
    assert not list_files(here)
    sync(mirror_of("data/raw", here, there, budget_gb=1.5e-6), mirror_of("small", here, there, budget_gb=None))


# ---- wrong checksums and changing sources


@pytest.mark.parametrize("to_disk", [False, True])
def test_checksum_mismatch_refuses_copy_and_publishes_nothing(
    to_disk: bool, gcs: LocalCloudStorage, buckets: tuple[str, str], tmp_path: Path
) -> None:
    here, there = f"{tmp_path}/us" if to_disk else buckets[0], buckets[1]
    objects, folder = objects_of(gcs, there)
    name = f"{folder}/data/raw/a.txt"
    objects[name] = dataclasses.replace(objects[name], data=b"A" * 1000)
    with pytest.raises(MirrorCopyError, match=r"config.data: .*a.txt gave 1,000 bytes with md5:.* its store says"):
        sync(mirror_of("data/raw", here, there))
    assert texts(here) == {}
    assert lease_of_copy(mirror_of("data/raw", here, there)).phase is Phase.STOPPED


@pytest.mark.slow
def test_composite_object_is_compared_by_crc32c(
    gcs: LocalCloudStorage, buckets: tuple[str, str], tmp_path: Path
) -> None:
    objects, folder = objects_of(gcs, buckets[1])
    for name in FILES:  # Cloud Storage has no MD5 of a composite object
        composed = objects[f"{folder}/data/raw/{name}"]
        objects[f"{folder}/data/raw/{name}"] = dataclasses.replace(composed, md5="")
    sync(mirror_of("data/raw", f"{tmp_path}/us", buckets[1]))
    sync(mirror_of("data/raw/a.txt", *buckets))
    name = f"{folder}/data/raw/deep/b.txt"
    objects[name] = dataclasses.replace(objects[name], data=b"B" * 500)
    for here in (f"{tmp_path}/another", buckets[0]):
        with pytest.raises(MirrorCopyError, match="crc32c:"):
            sync(mirror_of("data/raw/deep", here, buckets[1]))
        assert "data/raw/deep/b.txt" not in texts(here)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["removed", "replaced", "added"])
def test_source_changed_during_copy_publishes_nothing(regions: tuple[str, str], change: str) -> None:
    here, there = regions
    # The memory store has no checksum and no tag: only the size differs.
    size = 501 if there.startswith("memory://") else 500

    def act() -> None:
        if change == "removed":
            fs, name = file_system_at(f"{there}/data/raw/deep/b.txt")
            fs.rm(name)
        else:
            put(f"{there}/data/raw", {"deep/b.txt": "B" * size} if change == "replaced" else {"new": "x"})

    with pytest.raises(MirrorCopyError, match=r"config.data: .*(gone|changed|gave)"):
        copy_after(mirror_of("data/raw", here, there), act)
    assert texts(here) == {}


# ---- a lease owner killed during the copy


def kill_copy(here: str, there: str, files: int) -> None:
    """Copy ``data`` in a process that is killed after this number of files."""
    command = [sys.executable, "-m", "tests.runtime.killed_copy", "data", here, there, str(files), str(QUICK_S)]
    assert subprocess.run(command, cwd=REPOSITORY).returncode == -signal.SIGKILL


@pytest.mark.slow
def test_waiting_mirror_resumes_killed_copy_without_recopying(local_or_gs: tuple[str, str]) -> None:
    here, there = local_or_gs
    put(f"{there}/data", {name: name * 300 for name in "abcdef"})
    mirror = mirror_of("data", here, there)
    kill_copy(here, there, 4)
    first = lease_of_copy(mirror)
    assert first.phase is Phase.RUNNING
    assert not is_mirrored(mirror)
    copied = f"{here}/data"
    if not here.startswith("gs://"):
        assert not Path(here, "data").exists()
        copied = str(next(Path(record_of(here, "data")).glob("copy-*")))
    before = {file.path: file.tag for file in list_files(copied)}
    assert len(before) == 4
    sync(mirror)
    assert texts(f"{here}/data") == {name: name * 300 for name in "abcdef"}
    after = {file.path: file.tag for file in list_files(f"{here}/data")}
    assert before.items() <= after.items()
    assert (lease_of_copy(mirror).phase, lease_of_copy(mirror).attempt) == (Phase.COMMITTED, first.attempt + 1)


@pytest.mark.slow
def test_leftovers_of_copy_from_other_source_are_not_reused(gcs: LocalCloudStorage, gs_folder: str) -> None:
    here, there = f"{gs_folder}/us", f"{gs_folder}/eu"
    put(f"{there}/data", {"a": "old", "b": "old", "c": "old"})
    kill_copy(here, there, 2)
    put(f"{there}/data", {"a": "new", "c": "new"})
    file_system_at(there)[0].rm(f"{there}/data/b")
    sync(mirror_of("data", here, there))
    assert texts(f"{here}/data") == {"a": "new", "c": "new"}


@pytest.mark.slow
def test_forged_file_list_removes_nothing_elsewhere(buckets: tuple[str, str]) -> None:
    here, there = buckets
    put(f"{there}/theirs", {"x": "theirs"})
    path = f"/{there.removeprefix('gs://')}/theirs/x"
    for number, text in enumerate([json.dumps({"files": [{"path": path}]}), "[]", "{", '{"files": 1}']):
        name = f"data/raw/{sorted(FILES)[0]}" if number else "data/raw"
        put(record_of(f"{here}/{number}", name), {"files.json": text})
        sync(mirror_of(name, f"{here}/{number}", there))
    assert texts(f"{there}/theirs") == {"x": "theirs"}


# ---- sources


def test_prefix_with_missing_or_partial_output_is_skipped(tmp_path: Path) -> None:
    here, empty, at_work, copying, whole = (f"{tmp_path}/{name}" for name in ("us", "a", "b", "c", "d"))
    for prefix, text in ((at_work, "half"), (copying, "half"), (whole, "whole")):
        put(f"{prefix}/raw-123456/part", {"x": text})
    claim(f"{at_work}/raw-123456")
    claim(record_of(copying, "raw-123456"))
    sync(mirror_of("raw-123456/part", here, empty, at_work, copying, whole))
    assert texts(here) == {"raw-123456/part/x": "whole"}


def test_missing_path_error_gives_reason_for_each_prefix(tmp_path: Path) -> None:
    claim(f"{tmp_path}/b/raw")
    put(f"{tmp_path}/b/raw", {"x": "half"})
    with pytest.raises(MirrorError) as missing:
        sync(mirror_of("raw", f"{tmp_path}/us", f"{tmp_path}/a", f"{tmp_path}/b"))
    assert str(missing.value).splitlines()[1:] == [
        f"  {tmp_path}/a: it is not there",
        f"  {tmp_path}/b: the output {tmp_path}/b/raw is no result, its state is 'at work'",
    ]
    with pytest.raises(MirrorError, match="mirror_prefixes"):
        sync(mirror_of("raw", f"{tmp_path}/us"))


def test_folder_of_outputs_with_unfinished_one_is_refused(tmp_path: Path) -> None:
    put(f"{tmp_path}/eu/tokens/a-111111", {"x": "whole"})
    put(f"{tmp_path}/eu/tokens/b-222222", {"x": "half"})
    claim(f"{tmp_path}/eu/tokens/b-222222")
    with pytest.raises(MirrorError, match="b-222222 is no result"):
        sync(mirror_of("tokens", f"{tmp_path}/us", f"{tmp_path}/eu"))


def test_object_name_escaping_its_folder_is_refused(
    gcs: LocalCloudStorage, buckets: tuple[str, str], tmp_path: Path
) -> None:
    bucket, _, folder = buckets[1].removeprefix("gs://").partition("/")
    gcs.buckets.put(bucket, f"{folder}/data/raw/../../../x", b"x", {}, {})
    with pytest.raises(MirrorError, match="a name that leads elsewhere"):
        sync(mirror_of("data/raw", f"{tmp_path}/deep/us", buckets[1]))
    assert not list_files(str(tmp_path))


# ---- files at the destination


@pytest.mark.slow
def test_partially_mirrored_folder_is_not_taken_as_complete(regions: tuple[str, str]) -> None:
    here, there = regions
    sync(mirror_of("data/raw/deep", here, there))
    with pytest.raises(MirrorError, match=r"holds parts mirrored by themselves, such as data/raw/deep"):
        sync(mirror_of("data/raw", here, there))


def test_running_output_at_destination_is_left_alone(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    put(f"{there}/raw", {"x": "x"})
    claim(f"{here}/raw")
    with pytest.raises(MirrorError, match="whose state is 'at work': refer to its step"):
        sync(mirror_of("raw", here, there))


def test_files_of_other_writer_are_never_overwritten(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw", here, there)
    with pytest.raises(MirrorError, match=r"config.data: "):
        copy_after(mirror, lambda: put(f"{here}/data/raw", {"a.txt": "theirs"}))
    assert texts(here)["data/raw/a.txt"] == "theirs"


# ---- links


def test_link_out_of_source_is_not_followed(tmp_path: Path) -> None:
    put(f"{tmp_path}/secret", {"key": "k"})
    put(f"{tmp_path}/eu/data", {"a": "a"})
    for number, target in enumerate((f"{tmp_path}/secret/key", f"{tmp_path}/secret", f"{tmp_path}/nothing")):
        link = Path(f"{tmp_path}/eu/data/link{number}")
        link.symlink_to(target)
        with pytest.raises(MirrorError, match=r"config.data: .*was not followed"):
            sync(mirror_of("data", f"{tmp_path}/us", f"{tmp_path}/eu"))
        link.unlink()
    Path(f"{tmp_path}/eu/inner").symlink_to(f"{tmp_path}/secret")
    with pytest.raises(MirrorError, match="was not followed"):
        sync(mirror_of("inner", f"{tmp_path}/us", f"{tmp_path}/eu"))
    assert texts(f"{tmp_path}/us") == {}


def test_link_in_own_prefix_leads_no_copy_out_of_it(tmp_path: Path) -> None:
    put(f"{tmp_path}/eu/data/raw", FILES)
    Path(f"{tmp_path}/elsewhere").mkdir()
    Path(f"{tmp_path}/us").mkdir()
    Path(f"{tmp_path}/us/data").symlink_to(f"{tmp_path}/elsewhere")
    with pytest.raises(MirrorError, match="leads out of the prefix"):
        sync(mirror_of("data/raw", f"{tmp_path}/us", f"{tmp_path}/eu"))
    assert not Path(f"{tmp_path}/us/.tradewind").exists()
    Path(f"{tmp_path}/us/data").unlink()
    mirror = mirror_of("data/raw", f"{tmp_path}/us", f"{tmp_path}/eu")
    with pytest.raises(MirrorError, match="leads out of the prefix"):
        copy_after(mirror, lambda: Path(f"{tmp_path}/us/data").symlink_to(f"{tmp_path}/elsewhere"))
    assert texts(f"{tmp_path}/elsewhere") == {}


# ---- staged copies on a disk


class FrozenBeforePublishing(StepLease):
    """Stub of a lease that is lost after the last check: the owner freezes, another copy starts."""

    def __init__(self, is_complete: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
        self._is_complete, self._meanwhile = is_complete, meanwhile

    def check(self) -> None:
        if self._is_complete():
            self._is_complete = bool  # freeze only once
            self._meanwhile()


class KilledAfterFirstFile(StepLease):
    def __init__(self) -> None:
        self._checks = itertools.count(1)

    def check(self) -> None:
        if next(self._checks) == 3:  # the first check precedes the copy, so one of two files is copied
            raise LeaseLostError("killed")


def test_foreign_file_in_unfinished_copy_is_not_published(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    put(f"{there}/data", {"a": "a", "b": "b"})
    record = record_of(here, "data")
    mirror = mirror_of("data", here, there)
    with pytest.raises(LeaseLostError):
        MirrorCopy(mirror, find_source(mirror), KilledAfterFirstFile()).make()
    [begun] = Path(record).glob("copy-*")
    put(str(begun), {"a": "other", "deep/c": "c"})
    put(record, {"copy-0/a": "a", "copy-0/deep/c": "c", "dropped-0/d": "d", "parts/x": "x", "files.json": "?"})
    sync(mirror)
    assert texts(f"{here}/data") == {"a": "a", "b": "b"}
    assert not list_files(f"{record}/parts")
    assert not list(Path(record).glob("*-*"))


def test_superseded_copier_publishes_nothing_of_newer_copy(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    mirror, record = mirror_of("data", here, there), Path(record_of(here, "data"))
    put(f"{there}/data", {"a": "old", "b": "old"})

    def begin_another() -> None:
        put(f"{there}/data", {"a": "newer", "b": "newer"})
        with pytest.raises(LeaseLostError, match="killed"):
            MirrorCopy(mirror, find_source(mirror), KilledAfterFirstFile()).make()

    def is_complete() -> bool:
        return len(list(record.glob("copy-*/*"))) == 2

    frozen = MirrorCopy(mirror, find_source(mirror), FrozenBeforePublishing(is_complete, begin_another))
    with pytest.raises(LeaseLostError, match="is gone: another process has begun another copy"):
        frozen.make()
    assert texts(f"{here}/data") == {}
    sync(mirror)
    assert texts(f"{here}/data") == {"a": "newer", "b": "newer"}
    assert [file.name for file in record.iterdir() if file.is_dir()] == ["parts"]
