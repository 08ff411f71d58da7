"""A standby imports libraries with the garbage collector paused and restores it afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tradewind.runtime.pods.on_host.standby_process import import_quickly


@pytest.mark.slow
@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_collector_is_paused_only_during_imports(
    is_enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, frozen = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if is_enabled else gc.disable)()
    try:
        monkeypatch.syspath_prepend(tmp_path)
        name = f"large_library_{is_enabled}"
        (tmp_path / f"{name}.py").write_text("import gc\nassert not gc.isenabled()\n")
        import_quickly([name])
        assert gc.isenabled() is is_enabled and gc.get_freeze_count() > frozen
        with pytest.raises(ModuleNotFoundError):
            import_quickly(["no_such_library"])
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if before else gc.disable)()
