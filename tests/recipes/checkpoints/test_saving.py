"""Order of writes while a training saves a checkpoint.

The tests import Levanter themselves; otherwise every process that collects them would load it.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tradewind.recipes.checkpoints.resume import FILE_LIST, METADATA, complete_checkpoints, damage
from tradewind.recipes.checkpoints.saving import NEVER, checkpointer_config, checkpointer_like


@pytest.mark.slow
def test_checkpoint_complete_only_after_file_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax.numpy
    import levanter.checkpoint
    from levanter.tracker import NoopTracker, current_tracker

    checkpointer = checkpointer_config(str(tmp_path), None, 60.0, None).create("run")
    listed: list[str] = []
    written = levanter.checkpoint._save_metadata

    def save_metadata(path: str, *arguments: Any) -> None:
        listed.extend(json.loads(Path(path, FILE_LIST).read_text()))
        assert not Path(path, METADATA).exists()
        written(path, *arguments)

    monkeypatch.setattr(levanter.checkpoint, "_save_metadata", save_metadata)
    with current_tracker(NoopTracker()):
        checkpointer.save_checkpoint({"weights": jax.numpy.ones(8)}, 3, "step-3")
    checkpointer.wait_until_finished()
    [found] = complete_checkpoints([str(tmp_path)])
    assert (found.step, damage(found.path)) == (3, None)
    there = {str(file.relative_to(found.path)) for file in Path(found.path).rglob("*") if file.is_file()}
    assert set(listed) == there - {FILE_LIST, METADATA} != set()


@pytest.mark.slow
def test_zero_interval_saves_every_step_and_none_only_on_notice() -> None:
    import levanter.checkpoint

    for given, expected in ((timedelta(0), timedelta(0)), (None, NEVER)):
        config = levanter.checkpoint.CheckpointerConfig(save_interval=given)
        assert checkpointer_like(config, "/out", None).save_interval == expected
