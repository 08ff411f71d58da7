"""YAML with lines: the values of PyYAML; documents that are too large, too deep or ambiguous are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.fleet.errors import BadFileError
from tradewind.fleet.yaml_schema import YamlDocument, read_yaml
from tradewind.storage.bounded_read import SMALL


def document(folder: Path, text: str) -> YamlDocument:
    file = folder / "a.yaml"
    file.write_text(text)
    return read_yaml(file)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(BadFileError) as caught:
        document(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


NAMES = st.text("abcdefghij-_", min_size=1, max_size=5).map(lambda name: f"k{name}")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@settings(deadline=None)
@given(value=st.dictionaries(NAMES, VALUES, max_size=4), flow=st.booleans())
def test_any_document_has_the_value_of_pyyaml(
    value: dict[str, Any], flow: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow)
    assert document(tmp_path_factory.getbasetemp(), text).value == value


def test_value_has_its_line_and_missing_value_that_of_its_parent(tmp_path: Path) -> None:
    read = document(tmp_path, "a:\n  b: 1\n\n  c:\n    - x\n    - y: 2\nd: {e: 3}\n")
    paths: list[tuple[str | int, ...]] = [
        ("a",), ("a", "b"), ("a", "c"), ("a", "c", 1, "y"), ("d", "e"), ("d", "z"), (),
    ]  # fmt: skip
    assert [read.line_of(path) for path in paths] == [1, 2, 4, 6, 7, 7, 1]


def test_empty_file_is_a_table_and_merges_are_as_in_pyyaml(tmp_path: Path) -> None:
    merges = "base: &a {a: 1, b: {c: 2}}\nother: &b {b: 3, d: 4}\nown:\n  b: 9\n  <<: [*a, *b]\nsame: *a\n"
    assert document(tmp_path, merges).value == yaml.safe_load(merges)
    assert document(tmp_path, "# nothing\n").value == {}


ALIASES = "a0: &a0 [x, x]" + "".join(f"\na{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 4)}]" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: a is here and in line 1"),
        ("a:\n  b: 1\n  b: 1\n", "a.yaml:3: a.b is here and in line 2"),
        ("a: 1\n b: 2\n", "a.yaml:2: this is no YAML"),
        ("a: [1\n", "this is no YAML"),
        ("a: \x07\n", "this is no YAML"),
        ("a: 1\n---\nb: 2\n", "this is no YAML"),
        ("a: *nobody\n", "this is no YAML"),
        ("a: !!python/object/apply:os.system [id]\n", "the tag tag:yaml.org,2002:python/object/apply:os.system means"),
        ("a: !secret x\n", "a.yaml:1: 'x' is not what its tag !secret says"),
        ("a: !!int x\n", "is not what its tag"),
        ("a: " + "9" * 5000, "is a number in base 60, or too long"),
        ("a: 12:30:45", "a.yaml:1: '12:30:45' is a number in base 60"),
        ("a: 1" + ":10" * 99_999, "is a number in base 60"),
        ("a: -1:30.5", "is a number in base 60"),
        ("".join(f"k{number}: 1\n" for number in range(20_000)), "the file has more than 10,000 values: split it"),
        ("1: a\n", "the key '1' is no text"),
        ("on: a\n", "the key 'on' is no text"),
        ("? [a]\n: b\n", "is no text"),
        ("a: " + "[" * 100_000, "a.yaml:1: values nest more than 30 deep"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(40)), "nest more than 30 deep"),
        ("a: 1\na: 2\nb: {c: 1, c: 2}\n", "b.c is here and in line 3"),
        (ALIASES, "repeat too much"),
        ("a: &a\n  - *a\n", "repeat too much, or themselves"),
        ("a: &a {<<: *a}\n", "repeat too much, or themselves"),
        ("a: 1\n" * (SMALL // 5 + 1), "a.yaml:1: the file cannot be read (it has more than 1,048,576 bytes)"),
    ],
)
def test_unreadable_document_is_reported_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    assert says in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.yaml", "missing.yaml:1: the file cannot be read"), ("folder", "folder:1: the file cannot be read"),
        ("bytes.yaml", "is no text"), ("pipe.yaml", "it is no regular file"), ("a\0", "cannot be read"),
    ],
)  # fmt: skip
def test_file_that_is_missing_or_no_text_is_refused(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(BadFileError, match=says):
        read_yaml(tmp_path / name)
