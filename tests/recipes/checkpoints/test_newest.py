"""Conditions of a sound checkpoint, on a local disk and on Cloud Storage."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tradewind.recipes.checkpoints import resume
from tradewind.recipes.checkpoints.resume import copy_files, damage, remove_checkpoint, write_file_list
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

FILES = {"manifest.ocdbt": b"tree", "d/one": b"weights", "d/two": b"moments", "metadata.json": b"{}"}


def write_checkpoint(root: str, name: str = "step-3") -> str:
    checkpoint = f"{root}/{name}"
    fs, path = fsspec.core.url_to_fs(checkpoint)
    for file, content in FILES.items():
        fs.makedirs(f"{path}/{file}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{path}/{file}", content)
    write_file_list(checkpoint)
    return checkpoint


def write_complete(root: str, step: int, stated: Any = None) -> str:
    """Write a checkpoint that Levanter considers complete; its metadata states the step ``stated``."""
    checkpoint = write_checkpoint(root, f"step-{step}")
    fs, path = fsspec.core.url_to_fs(f"{checkpoint}/metadata.json")
    metadata = {"step": step if stated is None else stated, "timestamp": "2026-01-01T00:00:00"}
    fs.pipe_file(path, json.dumps(metadata).encode())
    return checkpoint


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("d/one", None, "d/one is missing"),
        ("d/two", b"mom", "d/two has 3 bytes instead of 7"),
        ("manifest.ocdbt", b"eert", "manifest.ocdbt has other content than was written"),
        ("files.json", b"{", "files.json is no JSON"),
        ("files.json", b"[" * 100_000, "files.json is no JSON"),
        ("files.json", b"[1]", "files.json is no list of files with their sizes"),
        ("files.json", b"{}", "it has no data"),
        ("files.json", b'{"d/one": 7}', "files.json is no list of files with their sizes"),
        ("metadata.json", b"{ }", None),
    ],
)
def test_missing_cut_or_changed_file_is_named(
    root: str, name: str, content: bytes | None, sentence: str | None
) -> None:
    checkpoint = write_checkpoint(root)
    assert damage(checkpoint) is None
    fs, path = fsspec.core.url_to_fs(f"{checkpoint}/{name}")
    fs.rm_file(path) if content is None else fs.pipe_file(path, content)
    assert damage(checkpoint) == sentence


def test_checkpoint_without_file_list_needs_data(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(str(tmp_path))
    (tmp_path / "step-3/files.json").unlink()
    assert damage(checkpoint) is None
    (tmp_path / "step-3/manifest.ocdbt").unlink()
    assert damage(checkpoint) == "it has no data"


def test_copy_undamaged_but_incomplete_until_metadata_written(root: str, tmp_path: Path) -> None:
    copy_files(write_checkpoint(root), str(tmp_path / "copy"))
    assert damage(str(tmp_path / "copy")) is None
    assert not (tmp_path / "copy/metadata.json").exists()


def test_cloud_storage_reads_no_data_to_find_damage(cloud: LocalCloudStorage) -> None:
    checkpoint = write_checkpoint("gs://bucket", "unread")
    cloud.requests.clear()
    assert damage(checkpoint) is None
    assert cloud.requests["read"] == 1  # the list itself


def test_removal_of_checkpoint_is_idempotent(root: str) -> None:
    checkpoint = write_checkpoint(root)
    remove_checkpoint(checkpoint)
    fs, path = fsspec.core.url_to_fs(checkpoint)
    fs.invalidate_cache()
    assert not fs.exists(path)
    remove_checkpoint(checkpoint)  # as when Levanter's thread removed it at the same time


@pytest.mark.parametrize(
    "metadata",
    [
        "[" * 100_000,
        "[1]",
        '{"step": null, "timestamp": "2026-01-01T00:00:00"}',
        '{"step": Infinity, "timestamp": "2026-01-01T00:00:00"}',
        '{"step": 3, "timestamp": 7}',
        '{"step": 3, "timestamp": "tomorrow"}',
    ],
)
def test_invalid_metadata_of_a_whole_checkpoint_is_replaced(tmp_path: Path, metadata: str) -> None:
    """A kill, or a full disk, while Levanter writes this last file costs no step."""
    checkpoint = Path(write_checkpoint(str(tmp_path)))
    (checkpoint / "metadata.json").write_text(metadata)
    assert resume.damaged_checkpoints([str(tmp_path)]) == {}
    resume.clean_up_checkpoints([str(tmp_path)])
    found = resume.newest_checkpoint([str(tmp_path)])
    assert found is not None and (found.path, found.step, found.is_temporary) == (str(checkpoint), 3, False)


@pytest.mark.slow
def test_missing_metadata_costs_a_whole_checkpoint_nothing(root: str) -> None:
    fs, path = fsspec.core.url_to_fs(root)
    for name in ("step-3", "step-5"):
        fs.rm_file(f"{fsspec.core.url_to_fs(write_checkpoint(root, name))[1]}/metadata.json")
    fs.rm_file(f"{path}/step-5/d/one")  # its process was killed while it wrote the data
    fs.makedirs(f"{path}/step-30-export", exist_ok=True)
    fs.pipe_file(f"{path}/step-30-export/weights", b"a user's")
    resume.clean_up_checkpoints([f"{root}/permanent", root])
    found = resume.complete_checkpoints([root])
    assert [(each.step, each.is_temporary) for each in found] == [(3, True)]
    fs.invalidate_cache()
    assert not fs.exists(f"{path}/step-5") and fs.exists(f"{path}/step-30-export/weights")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"manifest.ocdbt": b"{"},
        {"files.json": b"{"},
        {"metadata.json": None, "d/one": None},
        {"metadata.json": None, "files.json": None},
    ],
)
def test_damage_of_every_checkpoint_fails_and_removes_nothing(tmp_path: Path, changes: dict[str, bytes | None]) -> None:
    """Else the training would start again at step 0, and end well."""
    checkpoints = [write_complete(str(tmp_path), step) for step in (3, 5)]
    (tmp_path / "step-7").mkdir()  # its training was killed while it wrote this one
    for file, content in ((Path(folder, name), changes[name]) for folder in checkpoints for name in changes):
        file.unlink() if content is None else file.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="Every checkpoint of this training is damaged") as refusal:
        resume.clean_up_checkpoints([str(tmp_path)])
    assert all(checkpoint in str(refusal.value) for checkpoint in checkpoints)
    assert sorted(tmp_path.rglob("*")) == before


def test_kill_during_first_saves_starts_again(tmp_path: Path) -> None:
    (tmp_path / "temporary/step-3/d").mkdir(parents=True)
    (tmp_path / "temporary/step-3/d/one").write_bytes(b"weights")
    (tmp_path / "step-5").mkdir()  # Levanter creates it before it waits for the previous save
    roots = [str(tmp_path), str(tmp_path / "temporary")]
    resume.clean_up_checkpoints(roots)
    assert resume.newest_checkpoint(roots) is None and not any((tmp_path / "temporary").iterdir())


@pytest.mark.slow
def test_whole_checkpoint_is_used_if_complete_ones_are_damaged(tmp_path: Path) -> None:
    whole, damaged, bomb = (Path(write_complete(str(tmp_path), step)) for step in (3, 5, 7))
    (whole / "metadata.json").unlink()
    (damaged / "d/one").unlink()
    os.mkfifo(damaged / "d/one")
    for name in ("metadata.json", "files.json"):
        with (bomb / name).open("r+b") as file:
            file.truncate(3 << 30)  # no memory holds this, and Levanter would read it
    resume.clean_up_checkpoints([str(tmp_path)])
    assert [(each.path, each.step) for each in resume.complete_checkpoints([str(tmp_path)])] == [(str(whole), 3)]
    assert [*tmp_path.iterdir()] == [whole]


@pytest.mark.slow
def test_damaged_copies_of_users_lose_their_metadata_alone(tmp_path: Path) -> None:
    sound = write_complete(str(tmp_path), 3)
    copies = [
        Path(shutil.copytree(sound, tmp_path / name)) for name in ("best", "step-03", "step-3 ", f"step-{10**18}")
    ]
    for copy in copies:
        (copy / "metadata.json").write_text('{"step": 9, "timestamp": "2026-01-01T00:00:00"}')
        (copy / "d/one").unlink()
    resume.clean_up_checkpoints([str(tmp_path)])
    found = resume.newest_checkpoint([str(tmp_path)])
    assert found is not None and found.path == sound
    assert all((copy / "d/two").exists() and not (copy / "metadata.json").exists() for copy in copies)


@pytest.mark.slow
def test_only_the_link_to_checkpoint_of_other_run_is_removed(tmp_path: Path) -> None:
    own, other = str(tmp_path / "own"), str(tmp_path / "other")
    linked = [write_complete(other, 4), write_checkpoint(other, "step-6")]
    Path(linked[1], "d/one").unlink()
    Path(linked[1], "metadata.json").unlink()
    write_complete(own, 3)
    Path(own, "step-60").symlink_to(linked[0])  # of step 4 by its metadata
    Path(own, "step-6").symlink_to(linked[1])
    Path(own, "step-7").symlink_to(Path(own, "step-6"))
    os.mkfifo(Path(own, "step-12"))
    for name, target in (("step-8", "step-8"), ("step-9", "step-10"), ("step-10", "step-9"), ("step-11", "/nowhere")):
        Path(own, name).symlink_to(target)
    before = sorted(Path(other).rglob("*"))
    resume.clean_up_checkpoints([own])
    assert sorted(path.name for path in Path(own).iterdir()) == ["step-12", "step-3"]
    assert sorted(Path(other).rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("step", [False, -3, 7, 5.5, "5", 10**30])
def test_resume_skips_and_removes_checkpoint_with_wrong_step(
    tmp_path: Path, step: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Levanter would load another checkpoint, or end the training for a step after the last."""
    root = str(tmp_path)
    sound, untrue = write_complete(root, 3), write_complete(root, 5, stated=step)
    resume.clean_up_checkpoints([root])
    assert not Path(untrue).exists()
    assert capsys.readouterr().out.startswith(f"removed the damaged checkpoint {untrue}: it is of step ")
    found = resume.newest_checkpoint([root])
    assert found is not None and (found.path, found.step) == (sound, 3)


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, -7])
def test_metadata_beside_checkpoints_removes_none(tmp_path: Path, step: int) -> None:
    sound = write_complete(str(tmp_path), 3)
    (tmp_path / "metadata.json").write_text(json.dumps({"step": step, "timestamp": "2026-01-01T00:00:00"}))
    resume.clean_up_checkpoints([str(tmp_path)])
    found = resume.newest_checkpoint([str(tmp_path)])
    assert found is not None and found.path == sound
