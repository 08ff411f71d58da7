"""A training chooses its initial checkpoint once, whatever exists there later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.recipes.checkpoints.test_newest import write_complete
from tradewind.recipes.checkpoints.resume import InitialCheckpoint, InitialCheckpointFile, newest_under

pytestmark = [pytest.mark.slow]  # Levanter's search for checkpoints takes seconds to load

FIELD = "train_config.initialize_from_checkpoint_path"


def choose(file: InitialCheckpointFile, path: str, *, is_read: bool = True, has_own: bool = False) -> str:
    return file.resolve(path, FIELD, is_read=is_read, has_own=has_own)


@pytest.fixture
def file(root: str) -> InitialCheckpointFile:
    return InitialCheckpointFile.of_begin(f"{root}/mine/checkpoints")


def test_initial_checkpoint_kept_when_newer_one_appears(root: str, file: InitialCheckpointFile) -> None:
    given = f"{root}/other"
    first = write_complete(given, 3)
    file.write(InitialCheckpoint(given, choose(file, given)))
    write_complete(given, 5)
    assert [choose(file, given, has_own=has_own) for has_own in (False, True)] == [first, first]
    assert newest_under(given, FIELD).step == 5


def test_first_of_two_concurrent_choices_wins(root: str, file: InitialCheckpointFile) -> None:
    given = f"{root}/other"
    first, second = (write_complete(given, step) for step in (3, 5))
    file.write(InitialCheckpoint(given, first))
    file.write(InitialCheckpoint(given, second))  # by an attempt that was frozen after it found no file there
    assert file.read() == InitialCheckpoint(given, first)


def test_checkpoint_chosen_again_only_if_missing_one_unused(tmp_path: Path) -> None:
    file, given = InitialCheckpointFile.of_begin(f"{tmp_path}/mine/checkpoints"), f"{tmp_path}/other"
    first, second = (write_complete(given, step) for step in (3, 5))
    file.write(InitialCheckpoint(given, first))
    shutil.rmtree(first)
    assert choose(file, given, is_read=False, has_own=True) == first, "it is needed no more"
    with pytest.raises(ValueError, match=f"{FIELD}: the checkpoint {first}, with which this training has worked so"):
        choose(file, given, has_own=True)
    assert choose(file, given) == second
    file.write(InitialCheckpoint(given, second))
    assert file.read() == InitialCheckpoint(given, second)


def test_changed_path_in_config_replaces_choice(tmp_path: Path) -> None:
    file, given, new = (
        InitialCheckpointFile.of_begin(f"{tmp_path}/mine/checkpoints"),
        f"{tmp_path}/other",
        f"{tmp_path}/new",
    )
    file.write(InitialCheckpoint(given, write_complete(given, 3)))
    taken = write_complete(new, 1)
    assert choose(file, new) == taken
    file.write(InitialCheckpoint(new, taken))
    assert file.read() == InitialCheckpoint(new, taken)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ('{"given": "GIVEN", "chec', "it holds no JSON, or only the beginning of one"),
        ("[" * 100_000, "it is nested too deeply"),
        ("7", "it holds no JSON object"),
        ("x" * (1 << 20) + "x", "it has more than 1"),
        ('{"given": "GIVEN", "checkpoint": "GIVEN/step-3"}', "its first_step is missing"),
        ('{"given": "GIVEN", "checkpoint": 3, "first_step": 0}', "its checkpoint is not a path"),
        ('{"given": "GIVEN", "checkpoint": "GIVEN/step-3", "first_step": NaN}', "its first_step is not a step"),
        ('{"given": "GIVEN", "checkpoint": "GIVEN/../step-3", "first_step": 0}', "its checkpoint is not below"),
        ('{"given": "GIVEN", "checkpoint": "GIVENstep-3", "first_step": 0}', "its checkpoint is not below"),
        ('{"given": "GIVEN", "checkpoint": "gs://away/step-3", "first_step": 0}', "its checkpoint is not below"),
        (None, "it is a folder"),
    ],
)
def test_invalid_choice_file_is_refused_once_steps_exist(tmp_path: Path, text: str | None, why: str) -> None:
    given, path = f"{tmp_path}/other", tmp_path / "mine/checkpoints/begin.json"
    checkpoint, file = write_complete(given, 3), InitialCheckpointFile(str(path))
    path.parent.mkdir(parents=True)
    path.mkdir() if text is None else path.write_text(text.replace("GIVEN", given))
    assert choose(file, given) == checkpoint, "nothing was made with another one"
    with pytest.raises(
        ValueError, match=f"{path} does not say which checkpoint this training has taken, because {why}"
    ):
        choose(file, given, has_own=True)
    if text is not None:
        file.write(InitialCheckpoint(given, checkpoint))
        assert file.read() == InitialCheckpoint(given, checkpoint)


def test_unknown_fields_of_choice_file_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "begin.json"
    path.write_text(json.dumps({"given": "/a", "checkpoint": "/a/step-1", "first_step": 2, "by": "somebody"}))
    assert InitialCheckpointFile(str(path)).read() == InitialCheckpoint("/a", "/a/step-1", 2)


@pytest.mark.parametrize("step", [False, -3, 7, 5.5, "5", 10**30])
def test_initial_checkpoint_with_wrong_step_refused(tmp_path: Path, step: Any) -> None:
    given = f"{tmp_path}/other"
    write_complete(given, 3)
    untrue = write_complete(given, 5, stated=step)
    with pytest.raises(ValueError, match=f"{FIELD}: the checkpoint {untrue} is of step .* by its metadata.json: copy "):
        newest_under(given, FIELD)
    with pytest.raises(ValueError, match=f"{FIELD}: the checkpoint {untrue} is of step .* by its metadata.json: copy "):
        newest_under(untrue, FIELD)
    newest = write_complete(given, 8)
    assert newest_under(given, FIELD).path == newest, "it is no concern of this one's"


def test_copied_checkpoint_has_step_of_its_metadata(tmp_path: Path) -> None:
    copied = Path(write_complete(str(tmp_path), 3)).rename(tmp_path / "best")
    assert newest_under(str(copied), FIELD).step == 3


def test_missing_checkpoint_refused_with_field(tmp_path: Path) -> None:
    fsspec.filesystem("file").makedirs(f"{tmp_path}/other")
    with pytest.raises(ValueError, match=f"There is no complete checkpoint under {FIELD} {tmp_path}/other."):
        newest_under(f"{tmp_path}/other", FIELD)
