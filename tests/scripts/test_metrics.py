"""Code metrics of a small package with known faults."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from scripts.metrics import Metrics, measure, report


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
