"""What the store says of a step: its config, its inputs and its other versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.plans.stored_versions import (
    MAX_ENTRIES,
    MAX_SHOWN,
    compare_stored_versions,
    list_versions,
    path_of_version,
    read_step_config,
    read_step_result,
    result_path,
)
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.storage import Roots
from tradewind.storage.files import write_text


def write_info(output: str, config: Any, version: dict[str, Any], reads: list[str] | None = None, **more: Any) -> None:
    record = {"name": "train", "config": version, "dependencies": more.pop("inputs", [])}
    info = {"name": "train", "fn_name": "demo.train", "config": config, "version": record, "dependencies": reads or []}
    write_text(f"{output}/{INFO_FILE}", json.dumps(info | more))


def entries(tmp_path: Path, config: Any, version: dict[str, Any], **more: Any) -> list[Any]:
    write_info(f"{tmp_path}/train-aaaaaa", config, version, **more)
    found = read_step_config(f"{tmp_path}/train-aaaaaa", Roots.of([str(tmp_path)]))
    return [(each.depth, each.key, each.text, each.size, each.is_versioned, each.is_input) for each in found.entries]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (None, None),
        ("null", None),
        ('{"loss": 1.25, "parts": {"a": [1]}}', [("loss", "1.25"), ("parts", None), ("a", "[1]")]),
        ("3", [("result", "3")]),
        ("NaN", [("result", "NaN")]),
        ("{", []),
        ("[" + "[]," * 200_000 + "0]", []),
    ],
    ids=["none", "null", "object", "number", "NaN", "broken", "long"],
)
def test_result_is_what_the_function_returned(tmp_path: Path, text: str | None, lines: Any) -> None:
    if text is not None:
        write_text(result_path(str(tmp_path)), text)
    found = read_step_result(str(tmp_path))
    assert (found and [(each.key, each.text) for each in found.entries]) == lines
    assert (found is not None and found.problem is not None) == (lines == [])


def test_config_is_a_tree_with_versioned_values_marked(tmp_path: Path) -> None:
    config = {
        "data": "/store/data-bbbbbb/shards",
        "optimizer": {"rate": 0.1, "betas": [0.9, 0.95], "steps": [{"a": 1}]},
        "paths": ["/x"],
        "seed": 7,
    }
    version = {"data": "DEP[0]/shards", "optimizer.rate": 0.1, "optimizer.steps.[0]": {"a": 1}, "paths.[0]": "DEP[1]"}
    assert entries(tmp_path, config, version, inputs=["data-bbbbbb"], reads=["/store/data-bbbbbb"]) == [
        (0, "data", '"/store/data-bbbbbb/shards"', 0, False, True),
        (0, "optimizer", None, 5, False, False),
        (1, "rate", "0.1", 0, True, False),
        (1, "betas", "[0.9, 0.95]", 0, False, False),
        (1, "steps", None, 2, False, False),
        (2, "[0]", None, 1, True, False),
        (3, "a", "1", 0, True, False),
        (0, "paths", None, 1, False, False),
        (1, "[0]", '"/x"', 0, False, True),
        (0, "seed", "7", 0, False, False),
    ]


@pytest.mark.parametrize(
    ("config", "version", "expected"),
    [
        ({}, {}, [(0, "config", "{}", 0, False, False)]),
        (None, {}, [(0, "config", "null", 0, False, False)]),
        (3, {"": 3}, [(0, "config", "3", 0, True, False)]),
        ({"a": {"b": 1}}, {"": {"a": {"b": 1}}}, [(0, "a", None, 1, True, False), (1, "b", "1", 0, True, False)]),
    ],
)
def test_config_of_one_value(tmp_path: Path, config: Any, version: dict[str, Any], expected: list[Any]) -> None:
    assert entries(tmp_path, config, version) == expected


def test_large_config_is_cut(tmp_path: Path) -> None:
    config: dict[str, Any] = {"text": "x" * 100_000, "many": {f"k{at}": {"x": at} for at in range(MAX_ENTRIES)}}
    deep: Any = 1
    for _ in range(150):
        deep = {"d": deep}
    write_info(f"{tmp_path}/t-aaaaaa", {**config, "deep": deep}, {})
    found = read_step_config(f"{tmp_path}/t-aaaaaa", Roots.of([str(tmp_path)]))
    assert len(found.entries) == MAX_ENTRIES and found.left_out > MAX_ENTRIES // 2
    assert len(found.entries[0].text or "") < 1100
    assert max(len(each.text or "") for each in found.entries) < 2100


def test_inputs_outside_the_roots_have_no_path(tmp_path: Path) -> None:
    inside = f"{tmp_path}/data-bbbbbb"
    nested = {"name": "more", "config": {}, "dependencies": []}
    inputs = ["data-bbbbbb", "secret-cccccc", nested]
    write_info(f"{tmp_path}/t-aaaaaa", {}, {}, inputs=inputs, reads=[inside, "/etc", f"{tmp_path}/more-dddddd"])
    found = read_step_config(f"{tmp_path}/t-aaaaaa", Roots.of([str(tmp_path)]))
    assert [(each.version, each.output_path) for each in found.inputs] == [
        ("data-bbbbbb", inside),
        ("secret-cccccc", None),
        ("more-dddddd", f"{tmp_path}/more-dddddd"),
    ]


def test_step_without_readable_info_says_why(tmp_path: Path) -> None:
    roots = Roots.of([str(tmp_path)])
    assert "no attempt has started, or" in (read_step_config(f"{tmp_path}/t-aaaaaa", roots).problem or "")
    write_text(f"{tmp_path}/t-aaaaaa/{INFO_FILE}", "[")
    assert "cannot be read, because" in (read_step_config(f"{tmp_path}/t-aaaaaa", roots).problem or "")
    write_text(f"{tmp_path}/t-aaaaaa/{INFO_FILE}", '{"name": "t", "config": {"a": 1}, "version": 7}')
    found = read_step_config(f"{tmp_path}/t-aaaaaa", roots)
    assert found.problem is None and [each.text for each in found.entries] == ["1"] and found.inputs == ()


def write_lease(output: str, at: float) -> None:
    write_text(lease_path(output), Lease("w", at, Phase.COMMITTED, attempt=1, by={"run": "r", "dag": "d"}).to_json())


def test_versions_beside_an_output_are_listed_newest_first(tmp_path: Path) -> None:
    for at, name in enumerate(["a/train-aaaaaa", "a/train-bbbbbb", "a/train-cccccc"]):
        write_lease(f"{tmp_path}/{name}", 1e9 + at)
    for other in ("a/train-x-aaaaaa", "a/train-zzzzzz", "a/trains-aaaaaa", "train-aaaaaa"):
        write_lease(f"{tmp_path}/{other}", 2e9)
    found = list_versions(f"{tmp_path}/a/train-bbbbbb")
    assert [(each.hash, each.is_this, each.producer) for each in found.versions] == [
        ("cccccc", False, "run r of d"), ("bbbbbb", True, "run r of d"), ("aaaaaa", False, "run r of d"),
    ]  # fmt: skip
    for name, version in (("aaaaaa", {"rate": 0.1, "seed": 1}), ("bbbbbb", {"rate": 0.2, "seed": 1, "size": 4})):
        write_info(f"{tmp_path}/a/train-{name}", {}, version)
    write_info(f"{tmp_path}/a/train-cccccc", {}, {"a": 1, "b": 2, "rate": 0.2, "seed": 1, "size": 4, "z": 3})
    differs = [each.differs for each in list_versions(f"{tmp_path}/a/train-bbbbbb").versions]
    assert differs == ["a 1, b 2 and 1 more", "", "rate 0.1, size unset"]
    alone = list_versions(f"{tmp_path}/a/overridden")
    assert [(each.hash, each.made_at) for each in alone.versions] == [("", None)]


def test_list_of_versions_is_bounded_and_has_the_own(tmp_path: Path) -> None:
    for at in range(MAX_SHOWN + 20):
        write_lease(f"{tmp_path}/train-{at:06x}", 1e9 + at)
    found = list_versions(f"{tmp_path}/train-000000")
    assert len(found.versions) == MAX_SHOWN + 1 and found.left_out == 19 and found.versions[-1].is_this


def test_any_two_versions_can_be_compared(tmp_path: Path) -> None:
    roots, old, new = Roots.of([str(tmp_path)]), f"{tmp_path}/train-aaaaaa", f"{tmp_path}/train-bbbbbb"
    write_info(old, {"rate": 0.1}, {"rate": 0.1})
    assert "has no version record" in (compare_stored_versions(old, new, roots).problem or "")
    write_info(new, {"rate": 0.2}, {"rate": 0.2})
    found = compare_stored_versions(old, new, roots)
    assert [change.what for change in found.changes] == ["config.rate 0.1 → 0.2"]
    assert [row.mark.value for row in found.rows] == ["CHANGED"]
    assert compare_stored_versions(old, old, roots).changes == ()


@pytest.mark.parametrize(
    ("path", "hash_", "expected"),
    [
        ("/s/t-aaaaaa", "bbbbbb", "/s/t-bbbbbb"),
        ("/s/t-aaaaaa/", "bbbbbb", "/s/t-bbbbbb"),
        ("/s/t-aaaaaa", "bbbbb", None),
        ("/s/t-aaaaaa", "../../x", None),
        ("/s/t", "bbbbbb", None),
        ("/s/t-x/y", "bbbbbb", None),
    ],
)
def test_path_of_another_version(path: str, hash_: str, expected: str | None) -> None:
    assert path_of_version(path, hash_) == expected
