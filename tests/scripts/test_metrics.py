"""Code metrics of a small package with known faults."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from scripts.metrics import PACKAGE, TESTS, Metrics, check_out, measure, report, report_tests


def build(package: Path, **files: str) -> Metrics:
    """Write modules named ``plans__places`` for ``plans/places.py``, and measure the package."""
    for name, text in files.items():
        path = package.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(text))
    return measure(package)


@pytest.mark.parametrize(
    "back",
    [
        "from us.a.x import y",
        "from us import a",
        "from ..a import x",
        "def f():\n    import us.a.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from us.a import x",
    ],
)
def test_an_import_of_any_kind_closes_a_cycle(tmp_path: Path, back: str) -> None:
    metrics = build(tmp_path / "us", main="", a__x="import us.b.x", b__x=back, c__x="import us.a, us.b")
    assert metrics.cycles == [["a", "b"]]


def test_metrics_name_single_doubled_and_long_code(tmp_path: Path) -> None:
    shorts = """
    from us.a import y

    class AnError(ValueError): ...
    class Derived(AnError): ...
    class Twice: ...

    def run():
        _once(), _twice(), _twice(), map(_handed, []), y.public()

    def _once(): ...

    def _twice(): ...

    def _handed(each): ...
    """
    long = "def public():\n" + "    pass\n" * 99 + "class Twice: ...\n"
    metrics = build(tmp_path / "us", main="from us.a import x, y", a__x=shorts, a__y=long)
    assert (metrics.modules, metrics.folders, metrics.largest) == (3, 2, (101, "a.y"))
    assert metrics.single_importer == ["a.x"]
    assert (metrics.doubled, metrics.errors) == ({"Twice": 2}, ["AnError", "Derived"])
    assert metrics.used_once == ["a.x._once", "a.x._handed", "a.y.public"]
    assert metrics.short_helpers == ["a.x._once"]
    assert dict(report(metrics))["functions over 90 lines"] == "1 (a.y.public)"
    assert dict(report(metrics))["function lines, median"] == "1"


def test_a_commit_is_measured_as_it_was(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        author = ["-c", "user.name=us", "-c", "user.email=us@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", tmp_path, *author, *command], check=True, capture_output=True)

    git("init")
    build(tmp_path / TESTS, test_x="def test_x(): ...\n")
    build(tmp_path / PACKAGE, a__b="def f(): ...", old="")
    git("add", ".")
    git("commit", "-m", "before")
    (tmp_path / PACKAGE / "old.py").unlink()
    git("commit", "-am", "after")
    then, now = (check_out(tmp_path, commit, tmp_path / commit) for commit in ("HEAD~1", "HEAD"))
    assert [measure(root / PACKAGE).modules for root in (then, now)] == [2, 1]
    assert dict(report_tests(then)) == {"test lines": "1", "mutants": "0", "mutant lines": "0"}
