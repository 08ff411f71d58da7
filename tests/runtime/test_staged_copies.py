"""On a disk, sync stages a copy and publishes it complete, without files of other processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.regions import OwnTurn, bring, mirror_of, put, texts
from tradewind.runtime.mirror_copies import MirrorCopy, find_source, record_of
from tradewind.storage.errors import LeaseLostError
from tradewind.storage.trees import list_files


class FrozenBeforeItShows(OwnTurn):
    """Stub of a lease that is lost after the last check: the owner freezes, another copy starts."""

    def __init__(self, whole: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
        self._whole, self._meanwhile = whole, meanwhile

    def check(self) -> None:
        if self._whole():
            self._whole = bool  # freeze only once
            self._meanwhile()


class KilledHalfWay(OwnTurn):
    def __init__(self) -> None:
        self._looks = itertools.count(1)

    def check(self) -> None:
        if next(self._looks) == 3:  # the first check precedes the copy, so one of two files is copied
            raise LeaseLostError("killed")


def test_foreign_file_in_unfinished_copy_is_not_published(tmp_path: Path) -> None:
    here, there = f"{tmp_path}/us", f"{tmp_path}/eu"
    put(f"{there}/data", {"a": "a", "b": "b"})
    record = record_of(here, "data")
    mirror = mirror_of("data", here, there)
    with pytest.raises(LeaseLostError):
        MirrorCopy(mirror, find_source(mirror), KilledHalfWay()).make()
    [begun] = Path(record).glob("copy-*")
    put(str(begun), {"a": "other", "deep/c": "c"})
    put(record, {"copy-0/a": "a", "copy-0/deep/c": "c", "dropped-0/d": "d", "parts/x": "x", "files.json": "?"})
    bring(mirror)
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
            MirrorCopy(mirror, find_source(mirror), KilledHalfWay()).make()

    def is_whole() -> bool:
        return len(list(record.glob("copy-*/*"))) == 2

    frozen = MirrorCopy(mirror, find_source(mirror), FrozenBeforeItShows(is_whole, begin_another))
    with pytest.raises(LeaseLostError, match="is gone: another process has begun another copy"):
        frozen.make()
    assert texts(f"{here}/data") == {}
    bring(mirror)
    assert texts(f"{here}/data") == {"a": "newer", "b": "newer"}
    assert [file.name for file in record.iterdir() if file.is_dir()] == ["parts"]
