"""Locations that steps may write to, before and after the prefix is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tradewind import experiment_dag
from tradewind.plans.output_locations import ExperimentError, check_given_places, check_output_places
from tradewind.plans.prefixes import configured_roots, roots_in
from tradewind.steps import ExecutorStep, resolve
from tradewind.storage import NO_ROOTS, Roots, StorageError


def step(name: str = "s", override: str | None = None) -> ExecutorStep:
    return ExecutorStep(name, None, None, override_output_path=override)


SECRET = "hunter2hunter2"
INVALID_NAMES = {
    "'..'": ["../other", "a/../../b", "..", "a/.."],
    "an absolute path": ["/etc/x", "//host/x", "gs://bucket/x", "file:///etc/x", f"https://me:{SECRET}@host/x"],
    "'::'": ["reference://::x", "a::b"],
    "NUL": ["a\0b", "\0"],
    "half of a character": ["a\udc80"],
    "a control character": ["a\nb", "a\x1bb", "a\u202eb"],
    "its own records": [".attempts/x", "a/.attempts/1", ".tradewind/pins"],
}
INVALID_PATHS: dict[str, list[Any]] = {
    "'..'": ["../other", "a/../b", "a/../..", "./../x", "/..", "/data/../x"],
    "the prefix itself": ["", ".", "./", "././."],
    "NUL": ["a\0"],
    "half of a character": ["\udcff"],
    "no store that Tradewind supports": ["http://host/x", "http://["],
    "not a valid path": [f"gs://me:{SECRET}@bucket/x", "gs://", "s3://", "file:x"],
    "a whole store": ["gs://bucket", "s3://bucket/", "gs://bucket//", "/", "//", "file:///", "memory://"],
    "neither a path below the prefix": ["train:v1", "C:\\data", "mailto:x"],
    "'::'": ["zip://a::b", "a::", "::", "simplecache::gs://bucket/x", "/data/a::b"],
    "text, not": [b"bytes", 5],
    "its own records": [".tradewind", "x/.attempts"],
}


@pytest.mark.parametrize(("name", "why"), [(each, why) for why, names in INVALID_NAMES.items() for each in names])
def test_name_leaving_prefix_is_dag_file_error(name: str, why: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(why)) as refused:
        check_given_places([step(name)])
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(("override", "why"), [(each, why) for why, paths in INVALID_PATHS.items() for each in paths])
def test_override_invalid_for_any_prefix_is_dag_file_error(override: str, why: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(why)) as refused:
        check_given_places([step("mine", override)])
    assert "Step 'mine': override_output_path" in str(refused.value) and SECRET not in str(refused.value)


def test_other_names_are_accepted() -> None:
    check_given_places(map(step, ["a", "a/b", "data/raw v2", "x:y", "a.b", "...", "a..b", ".", "é", "~", "a=1"]))


@pytest.mark.slow
def test_dag_file_with_invalid_output_path_is_refused() -> None:
    with pytest.raises(ExperimentError, match="override_output_path: the path '../other'"):
        experiment_dag("made", [step("s", "../other")])


def checked(override: str | None, prefix: str, roots: Roots = NO_ROOTS, outside: tuple[str, ...] = ()) -> Roots:
    return check_output_places(resolve([step("s", override)], prefix).steps, prefix, lambda: roots, outside)


def test_absolute_output_must_be_below_prefix_root_or_allowed() -> None:
    assert checked("/store/mine", "/store") == Roots(("/store",))
    both = Roots(("/store", "gs://b/x"))
    assert checked("gs://b/x", "/store", Roots(("gs://b",))) == both
    assert checked("gs://b/x", "/store", outside=("s",)) == both
    assert checked("gs://b/x", "/store", outside=("gs://b",)) == both
    for outside in ((), ("gs://b/y",), ("other",), ("gs://b2",)):
        with pytest.raises(ExperimentError, match=r"Step 's': override_output_path: .*allow_outside=\('s',\)"):
            checked("gs://b/x", "/store", Roots(("gs://other",)), outside)


@pytest.mark.parametrize("override", ["/store", "/store/", "/", "/store/."])
def test_output_at_or_above_prefix_is_refused_despite_roots(override: str) -> None:
    with pytest.raises(ExperimentError):
        checked(override, "/store", Roots(("/",)), ("s", "/"))


def test_roots_are_not_read_while_outputs_are_below_prefix() -> None:
    def never() -> Roots:
        raise AssertionError

    steps = resolve([step("a"), step("b", "fixed")], "gs://bucket").steps
    assert check_output_places(steps, "gs://bucket", never) == Roots(("gs://bucket",))


def test_linked_folder_may_be_output_unless_it_is_the_prefix(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "store/disk").symlink_to(tmp_path / "disk")
    (tmp_path / "store/top").symlink_to(tmp_path / "store")
    checked("disk/mine", f"{tmp_path}/store")
    with pytest.raises(ExperimentError, match="is the prefix of the run"):
        checked("top", f"{tmp_path}/store")


def test_roots_are_the_configured_ones_or_the_prefix() -> None:
    assert roots_in(None) is None and roots_in(" \n,") is None
    assert roots_in("gs://a, gs://b/c\n /data ") == Roots(("gs://a", "gs://b/c", "/data"))
    with pytest.raises(StorageError, match="^allowed_roots in the .tradewind. section"):
        roots_in("gs://a, relative")
    environ = {"TRADEWIND_PREFIX": "/env", "MARIN_PREFIX": ""}
    assert configured_roots(None, environ, "gs://b") == Roots(("/env", "gs://b"))
    assert configured_roots("/only", environ, "gs://b") == Roots(("/only",))
    assert configured_roots(None, {}, None) == Roots()
