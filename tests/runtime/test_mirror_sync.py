"""Sync copies a mirrored path once into the run's prefix, complete and verified, or publishes nothing."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.runtime.driven import REPOSITORY
from tests.runtime.regions import QUICK_S, OwnTurn, bring, copy_after, lease_of_copy, mirror_of, put, texts
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.runtime.mirror_copies import MirrorCopyError, MirrorError, is_mirrored, record_of
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


@pytest.mark.slow
def test_missing_path_is_copied_once_and_read_without_source(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw", here, there)
    bring(mirror)
    assert texts(f"{here}/data/raw") == FILES == texts(f"{there}/data/raw")
    fs, name = file_system_at(there)
    fs.rm(name, recursive=True)
    bring(mirror, mirror_of("data/raw/deep/b.txt", here, there))
    assert (lease_of_copy(mirror).phase, lease_of_copy(mirror).attempt) == (Phase.COMMITTED, 1)
    left = {file.path for file in list_files(record_of(here, "data/raw"))}
    assert left - {".executor_status.lock.guard"} == {".executor_status.lock", "files.json"}


@pytest.mark.slow
def test_a_single_file_is_copied_alone(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw/deep/b.txt", here, there)
    bring(mirror)
    bring(mirror)
    assert texts(here) == {"data/raw/deep/b.txt": FILES["deep/b.txt"]}
    assert lease_of_copy(mirror).attempt == 1


@pytest.mark.slow
def test_path_in_own_prefix_is_read_in_place_without_writes(regions: tuple[str, str]) -> None:
    here, there = regions
    put(f"{here}/data/raw", {"a.txt": "our own"})
    bring(mirror_of("data/raw", here, there))
    assert texts(here) == {"data/raw/a.txt": "our own"}
    assert not list_files(f"{here}/.tradewind")


def test_records_of_steps_stay_where_the_step_ran(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    put(f"{there}/tokens-abc123", {"shard": "x", ".executor_status": "SUCCESS", ".attempts/1.json": "{}"})
    bring(mirror_of("tokens-abc123", here, there))
    assert texts(here) == {"tokens-abc123/shard": "x"}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "gs"])
def test_two_runs_that_want_one_path_at_once_copy_it_once(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = str(tmp_path) if place == "local" else str(request.getfixturevalue("gs_folder"))
    here, there = f"{folder}/us", f"{folder}/eu"
    files = {f"{number:02}.txt": str(number) * 2000 for number in range(40)}
    put(f"{there}/data", files)
    mirror = mirror_of("data", here, there)
    with ThreadPoolExecutor(4) as pool:
        both = [pool.submit(bring, mirror, by=str(run)) for run in range(4)]
        for one in both:
            one.result()
    assert texts(f"{here}/data") == files
    assert lease_of_copy(mirror).attempt == 1
    if place == "gs":
        server: LocalCloudStorage = request.getfixturevalue("gcs")
        assert server.requests["copy"] == 40


def test_bucket_to_bucket_copy_transfers_no_bytes_locally(gcs: LocalCloudStorage, buckets: tuple[str, str]) -> None:
    here, there = buckets
    gcs.requests.clear()
    bring(mirror_of("data/raw", here, there))
    assert gcs.requests["copy"] == 3
    assert gcs.requests["read"] == 0
    assert texts(f"{here}/data/raw") == FILES


def test_copy_works_between_local_disk_and_bucket(tmp_path: Path, buckets: tuple[str, str]) -> None:
    us, eu = buckets
    bring(mirror_of("data/raw", f"{tmp_path}/us", eu))
    assert texts(f"{tmp_path}/us/data/raw") == FILES
    bring(mirror_of("data/raw", us, f"{tmp_path}/us"))
    assert texts(us) == {f"data/raw/{name}": text for name, text in FILES.items()}


@pytest.mark.slow
def test_waiting_mirror_leaves_lease_of_running_copy_alone(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw", here, there)
    store = LeaseStore(record_of(here, "data/raw"))
    held = store.claim(None, LeaseClaim(1, "theirs", "", {"run": "other"}, ""))
    assert held is not None

    class Over(OwnTurn):
        """Stub of a lease that is lost while the step waits for its mirror."""

        def check(self) -> None:
            raise LeaseLostError("over")

    with pytest.raises(LeaseLostError):
        MirrorSync({}, 30.0, Over()).sync_all([mirror])
    assert (lease_of_copy(mirror).job, lease_of_copy(mirror).phase) == ("theirs", Phase.CLAIMED)
    store.change(held, phase=Phase.STOPPED)
    bring(mirror)
    assert texts(f"{here}/data/raw") == FILES


# ---- budgets


@pytest.mark.slow
def test_no_byte_is_copied_if_one_path_is_over_its_budget(regions: tuple[str, str]) -> None:
    here, there = regions
    put(f"{there}/small", {"x": "x"})
    with pytest.raises(MirrorError) as refused:
        bring(
            mirror_of("small", here, there),
            mirror_of("data/raw", here, there, budget_gb=1.499e-6, field="config.data.train"),
        )
    assert str(refused.value).startswith(
        f"config.data.train: 1.5 kB (3 files) would be copied from {there} to {here}/data/raw, and the budget is 1.5 kB"
    )
    assert not list_files(here)
    bring(mirror_of("data/raw", here, there, budget_gb=1.5e-6), mirror_of("small", here, there, budget_gb=None))


def test_the_budget_does_not_count_what_is_there_already(regions: tuple[str, str]) -> None:
    here, there = regions
    put(f"{here}/data/raw", FILES)
    bring(mirror_of("data/raw", here, there, budget_gb=0))


# ---- wrong checksums and changing sources


@pytest.mark.parametrize("goes_to", ["bucket", "disk"])
def test_checksum_mismatch_refuses_copy_and_publishes_nothing(
    goes_to: str, gcs: LocalCloudStorage, buckets: tuple[str, str], tmp_path: Path
) -> None:
    here, there = buckets if goes_to == "bucket" else (f"{tmp_path}/us", buckets[1])
    bucket, _, folder = there.removeprefix("gs://").partition("/")
    objects = gcs.buckets.bucket(bucket).objects
    name = f"{folder}/data/raw/a.txt"
    objects[name] = dataclasses.replace(objects[name], data=b"A" * 1000)
    with pytest.raises(MirrorCopyError, match=r"config.data: .*a.txt gave 1,000 bytes with md5:.* its store says"):
        bring(mirror_of("data/raw", here, there))
    assert texts(here) == {}
    assert lease_of_copy(mirror_of("data/raw", here, there)).phase is Phase.STOPPED


@pytest.mark.slow
def test_a_composite_object_is_compared_by_its_crc32c(
    gcs: LocalCloudStorage, buckets: tuple[str, str], tmp_path: Path
) -> None:
    bucket, _, folder = buckets[1].removeprefix("gs://").partition("/")
    objects = gcs.buckets.bucket(bucket).objects
    for name in FILES:  # Cloud Storage has no MD5 of a composite object
        composed = objects[f"{folder}/data/raw/{name}"]
        objects[f"{folder}/data/raw/{name}"] = dataclasses.replace(composed, md5="")
    bring(mirror_of("data/raw", f"{tmp_path}/us", buckets[1]))
    bring(mirror_of("data/raw/a.txt", *buckets))
    name = f"{folder}/data/raw/deep/b.txt"
    objects[name] = dataclasses.replace(objects[name], data=b"B" * 500)
    for here in (f"{tmp_path}/another", buckets[0]):
        with pytest.raises(MirrorCopyError, match="crc32c:"):
            bring(mirror_of("data/raw/deep", here, buckets[1]))
        assert "data/raw/deep/b.txt" not in texts(here)


@pytest.mark.slow
def test_vanished_source_file_refuses_copy_and_publishes_nothing(regions: tuple[str, str]) -> None:
    here, there = regions
    fs, name = file_system_at(f"{there}/data/raw/deep/b.txt")
    with pytest.raises(MirrorCopyError, match=r"config.data: .*(gone|changed)"):
        copy_after(mirror_of("data/raw", here, there), lambda: fs.rm(name))
    assert texts(here) == {}


@pytest.mark.slow
def test_a_file_that_is_replaced_while_it_is_copied_is_refused(regions: tuple[str, str]) -> None:
    here, there = regions
    other = {"deep/b.txt": "B" * 500}
    if there.startswith("memory://"):  # has no checksum and no tag: only the size differs
        other = {"deep/b.txt": "B" * 501}
    with pytest.raises(MirrorCopyError, match=r"config.data: .*(changed|gave)"):
        copy_after(mirror_of("data/raw", here, there), lambda: put(f"{there}/data/raw", other))
    assert texts(here) == {}


def test_file_added_during_copy_is_detected(regions: tuple[str, str]) -> None:
    here, there = regions
    with pytest.raises(MirrorCopyError, match="changed while it was copied"):
        copy_after(mirror_of("data/raw", here, there), lambda: put(f"{there}/data/raw", {"new": "x"}))
    assert texts(here) == {}


# ---- a lease owner killed during the copy


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "gs"])
def test_waiting_mirror_resumes_killed_copy_without_recopying(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = str(tmp_path) if place == "local" else str(request.getfixturevalue("gs_folder"))
    here, there = f"{folder}/us", f"{folder}/eu"
    put(f"{there}/data", {name: name * 300 for name in "abcdef"})
    mirror = mirror_of("data", here, there)
    arguments = ["data", here, there, "4", str(QUICK_S)]
    killed = subprocess.run([sys.executable, "-m", "tests.runtime.killed_copy", *arguments], cwd=REPOSITORY)
    assert killed.returncode == -9
    first = lease_of_copy(mirror)
    assert first.phase is Phase.RUNNING
    assert not is_mirrored(mirror)
    root = str(next(Path(record_of(here, "data")).glob("copy-*"))) if place == "local" else f"{here}/data"
    before = {file.path: file.tag for file in list_files(root)}
    assert len(before) == 4
    if place == "local":
        assert not Path(here, "data").exists()
    bring(mirror)
    assert texts(f"{here}/data") == {name: name * 300 for name in "abcdef"}
    after = {file.path: file.tag for file in list_files(f"{here}/data")}
    assert before.items() <= after.items()
    assert (lease_of_copy(mirror).phase, lease_of_copy(mirror).attempt) == (Phase.COMMITTED, first.attempt + 1)


@pytest.mark.slow
def test_leftovers_of_copy_from_other_source_are_not_reused(gcs: LocalCloudStorage, gs_folder: str) -> None:
    here, there = f"{gs_folder}/us", f"{gs_folder}/eu"
    put(f"{there}/data", {"a": "old", "b": "old", "c": "old"})
    arguments = ["data", here, there, "2", str(QUICK_S)]
    subprocess.run([sys.executable, "-m", "tests.runtime.killed_copy", *arguments], cwd=REPOSITORY)
    put(f"{there}/data", {"a": "new", "c": "new"})
    file_system_at(there)[0].rm(f"{there}/data/b")
    bring(mirror_of("data", here, there))
    assert texts(f"{here}/data") == {"a": "new", "c": "new"}


@pytest.mark.slow
def test_forged_file_list_removes_nothing_elsewhere(buckets: tuple[str, str]) -> None:
    here, there = buckets
    put(f"{there}/theirs", {"x": "theirs"})
    path = f"/{there.removeprefix('gs://')}/theirs/x"
    for number, text in enumerate([json.dumps({"files": [{"path": path}]}), "[]", "{", '{"files": 1}']):
        name = f"data/raw/{sorted(FILES)[0]}" if number else "data/raw"
        put(record_of(f"{here}/{number}", name), {"files.json": text})
        bring(mirror_of(name, f"{here}/{number}", there))
    assert texts(f"{there}/theirs") == {"x": "theirs"}


# ---- sources


def test_prefix_with_missing_or_partial_output_is_skipped(tmp_path: Path) -> None:
    here, empty, at_work, copying, whole = (f"{tmp_path}/{name}" for name in ("us", "a", "b", "c", "d"))
    for prefix, text in ((at_work, "half"), (copying, "half"), (whole, "whole")):
        put(f"{prefix}/raw-123456/part", {"x": text})
    LeaseStore(f"{at_work}/raw-123456").claim(None, LeaseClaim(1, "job", "", {}, "v"))
    LeaseStore(record_of(copying, "raw-123456")).claim(None, LeaseClaim(1, "job", "", {}, ""))
    bring(mirror_of("raw-123456/part", here, empty, at_work, copying, whole))
    assert texts(here) == {"raw-123456/part/x": "whole"}


def test_missing_path_error_gives_reason_for_each_prefix(tmp_path: Path) -> None:
    LeaseStore(f"{tmp_path}/b/raw").claim(None, LeaseClaim(1, "job", "", {}, "v"))
    put(f"{tmp_path}/b/raw", {"x": "half"})
    with pytest.raises(MirrorError) as missing:
        bring(mirror_of("raw", f"{tmp_path}/us", f"{tmp_path}/a", f"{tmp_path}/b"))
    assert str(missing.value).splitlines()[1:] == [
        f"  {tmp_path}/a: it is not there",
        f"  {tmp_path}/b: the output {tmp_path}/b/raw is no result, its state is 'at work'",
    ]
    with pytest.raises(MirrorError, match="mirror_prefixes"):
        bring(mirror_of("raw", f"{tmp_path}/us"))


def test_a_folder_of_outputs_is_whole_only_if_each_of_them_is(tmp_path: Path) -> None:
    put(f"{tmp_path}/eu/tokens/a-111111", {"x": "whole"})
    put(f"{tmp_path}/eu/tokens/b-222222", {"x": "half"})
    LeaseStore(f"{tmp_path}/eu/tokens/b-222222").claim(None, LeaseClaim(1, "job", "", {}, "v"))
    with pytest.raises(MirrorError, match="b-222222 is no result"):
        bring(mirror_of("tokens", f"{tmp_path}/us", f"{tmp_path}/eu"))


def test_object_name_escaping_its_folder_is_refused(
    gcs: LocalCloudStorage, buckets: tuple[str, str], tmp_path: Path
) -> None:
    bucket, _, folder = buckets[1].removeprefix("gs://").partition("/")
    gcs.buckets.put(bucket, f"{folder}/data/raw/../../../x", b"x", {}, {})
    with pytest.raises(MirrorError, match="a name that leads elsewhere"):
        bring(mirror_of("data/raw", f"{tmp_path}/deep/us", buckets[1]))
    assert not list_files(str(tmp_path))


# ---- files at the destination


@pytest.mark.slow
def test_partially_mirrored_folder_is_not_taken_as_complete(regions: tuple[str, str]) -> None:
    here, there = regions
    bring(mirror_of("data/raw/deep", here, there))
    with pytest.raises(MirrorError, match=r"holds parts mirrored by themselves, such as data/raw/deep"):
        bring(mirror_of("data/raw", here, there))


def test_an_output_that_is_being_made_in_the_place_is_left_alone(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    put(f"{there}/raw", {"x": "x"})
    LeaseStore(f"{here}/raw").claim(None, LeaseClaim(1, "job", "", {}, "v"))
    with pytest.raises(MirrorError, match="whose state is 'at work': refer to its step"):
        bring(mirror_of("raw", here, there))


def test_files_of_other_writer_are_never_overwritten(regions: tuple[str, str]) -> None:
    here, there = regions
    mirror = mirror_of("data/raw", here, there)
    with pytest.raises(MirrorError, match=r"config.data: "):
        copy_after(mirror, lambda: put(f"{here}/data/raw", {"a.txt": "theirs"}))
    assert texts(here)["data/raw/a.txt"] == "theirs"


# ---- links


def test_a_link_out_of_the_source_is_not_followed(tmp_path: Path) -> None:
    put(f"{tmp_path}/secret", {"key": "k"})
    put(f"{tmp_path}/eu/data", {"a": "a"})
    for number, target in enumerate((f"{tmp_path}/secret/key", f"{tmp_path}/secret", f"{tmp_path}/nothing")):
        link = Path(f"{tmp_path}/eu/data/link{number}")
        link.symlink_to(target)
        with pytest.raises(MirrorError, match=r"config.data: .*was not followed"):
            bring(mirror_of("data", f"{tmp_path}/us", f"{tmp_path}/eu"))
        link.unlink()
    Path(f"{tmp_path}/eu/inner").symlink_to(f"{tmp_path}/secret")
    with pytest.raises(MirrorError, match="was not followed"):
        bring(mirror_of("inner", f"{tmp_path}/us", f"{tmp_path}/eu"))
    assert texts(f"{tmp_path}/us") == {}


def test_a_link_in_the_runs_prefix_leads_no_copy_out_of_it(tmp_path: Path) -> None:
    put(f"{tmp_path}/eu/data/raw", FILES)
    Path(f"{tmp_path}/elsewhere").mkdir()
    Path(f"{tmp_path}/us").mkdir()
    Path(f"{tmp_path}/us/data").symlink_to(f"{tmp_path}/elsewhere")
    with pytest.raises(MirrorError, match="leads out of the prefix"):
        bring(mirror_of("data/raw", f"{tmp_path}/us", f"{tmp_path}/eu"))
    assert not Path(f"{tmp_path}/us/.tradewind").exists()
    Path(f"{tmp_path}/us/data").unlink()
    mirror = mirror_of("data/raw", f"{tmp_path}/us", f"{tmp_path}/eu")
    with pytest.raises(MirrorError, match="leads out of the prefix"):
        copy_after(mirror, lambda: Path(f"{tmp_path}/us/data").symlink_to(f"{tmp_path}/elsewhere"))
    assert texts(f"{tmp_path}/elsewhere") == {}
