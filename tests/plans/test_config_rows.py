"""``compare_configs`` marks the leaves of a config that differ between two versions."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.plans import config_rows
from tradewind.plans.config_rows import ConfigRow, compare_configs


def version(config: dict[str, Any], *inputs: Any) -> dict[str, Any]:
    return {"name": "train", "config": config, "dependencies": list(inputs)}


def marks(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, str]:
    return {".".join(row.keys): row.mark.value for row in compare_configs(old, new).rows}


def texts(row: ConfigRow) -> tuple[str | None, str | None]:
    return (row.old.text if row.old else None, row.new.text if row.new else None)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, {"a": "SAME"}),
        ({"a": 1}, {"a": 1.0}, {"a": "CHANGED"}),
        ({"a": 1}, {"b": 1}, {"a": "REMOVED", "b": "ADDED"}),
        ({"a": {"x": 1, "y": [1]}}, {"a": {"x": 2, "y": [1]}}, {"a.x": "CHANGED", "a.y.[0]": "SAME"}),
        ({"a.b": []}, {"a.b": {}}, {"a.b": "CHANGED"}),
        ({"": 1}, {"": 2}, {"": "CHANGED"}),
    ],
)
def test_leaves_are_marked(old: dict[str, Any], new: dict[str, Any], expected: dict[str, str]) -> None:
    assert marks(version(old), version(new)) == expected


def test_list_indexes_are_sorted_by_number() -> None:
    rows = compare_configs(None, version({"a": list(range(11))})).rows
    assert [row.keys[-1] for row in rows] == [f"[{index}]" for index in range(11)]
    assert {row.mark.value for row in rows} == {"SAME"} and {row.old for row in rows} == {None}


def test_input_in_another_version_has_its_own_mark() -> None:
    config = {"data": "DEP[0]/shards", "more": "DEP[1]"}
    [data, more] = compare_configs(
        version(config, "data-aaaaaa", "raw-111111"), version(config, "data-bbbbbb", "other-111111")
    ).rows
    assert (data.mark.value, more.mark.value) == ("INPUT", "CHANGED")
    assert texts(data) == ("shards", "shards")
    assert data.old and data.new and (data.old.reads, data.new.reads) == ("data-aaaaaa", "data-bbbbbb")


def test_changed_rows_are_kept_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_rows, "MAX_ROWS", 3)
    old, new = {f"k{index}": 0 for index in range(9)}, {f"k{index}": int(index > 7) for index in range(9)}
    found = compare_configs(version(old), version(new))
    assert [row.keys[0] for row in found.rows] == ["k0", "k1", "k8"] and found.left_out == 6
