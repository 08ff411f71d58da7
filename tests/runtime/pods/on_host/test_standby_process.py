"""A standby imports libraries with the garbage collector paused and restores it afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tradewind.runtime.pods.on_host.standby_process import import_quickly


@pytest.fixture(params=[True, False])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Set the garbage collector on or off before the test and restore it afterwards."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@pytest.mark.slow
def test_garbage_collector_is_paused_only_during_imports(
    collects: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"large_library_{collects}"
    (tmp_path / f"{name}.py").write_text("import gc\nassert not gc.isenabled()\n")
    frozen = gc.get_freeze_count()
    import_quickly([name])
    assert gc.isenabled() is collects and gc.get_freeze_count() > frozen


def test_garbage_collector_is_restored_after_failed_import(collects: bool) -> None:
    with pytest.raises(ModuleNotFoundError):
        import_quickly(["no_such_library"])
    assert gc.isenabled() is collects
