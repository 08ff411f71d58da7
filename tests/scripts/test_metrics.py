"""The figures of the house: each is right for a small package whose faults are known."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from scripts.metrics import PACKAGE, ROOT, House, check_out, measure, report, timed

FACE = "__init__.py"


def build(folder: Path, **files: str) -> House:
    """The figures of a package whose modules are named ``plans__places`` for ``plans/places.py``."""
    package = folder / "us"
    write(package, {"": ""} | files)
    return measure(package)


def write(package: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = package.joinpath(*name.split("__")).with_suffix(".py") if name else package / FACE
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / FACE).touch()
        path.write_text(textwrap.dedent(text))


def figures(house: House) -> dict[str, str]:
    return dict(report(house))


def test_modules_and_folders_are_counted_without_the_faces(tmp_path: Path) -> None:
    house = build(tmp_path, main="def f(): ...", a__b="", a__c="", a__d__e="")
    assert house.siblings == {".": 1, "a": 2, "a/d": 1}
    assert figures(house)["modules"] == "4"
    assert figures(house)["folders"] == "3"
    assert figures(house)["most siblings"] == "2 (a)"
    assert figures(house)["folders over 12"] == "0"


def test_a_folder_of_thirteen_modules_is_over(tmp_path: Path) -> None:
    house = build(
        tmp_path, main="def f(): ...", **{f"a__m{i}": "" for i in range(12)}, **{f"b__m{i}": "" for i in range(13)}
    )
    assert figures(house)["folders over 12"] == "1 (b)"


@pytest.mark.parametrize(
    "back",
    [
        "from us.a.x import y",
        "from us import a",
        "import us.a",
        "from .. import a",
        "from ..a import x",
        "def f():\n    import us.a.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from us.a import x",
    ],
)
def test_an_import_of_any_kind_closes_a_ring(tmp_path: Path, back: str) -> None:
    house = build(tmp_path, a__x="import us.b.x", b__x=back, c__x="import us.a, us.b")
    assert house.rings == [["a", "b"]]


def test_a_ring_may_go_through_several_packages(tmp_path: Path) -> None:
    house = build(tmp_path, a__x="import us.b.x", b__x="import us.c", c="import us.a", d__x="def f(): import us.a")
    assert house.rings == [["a", "b", "c"]]
    assert figures(house)["packages in rings"] == "3 (a, b, c)"


@pytest.mark.parametrize("other", ["import us.a.y", "from . import y", "import other.b", "from us import VERSION"])
def test_what_is_no_import_of_another_package_closes_no_ring(tmp_path: Path, other: str) -> None:
    assert build(tmp_path, a__x=other, b__x="import us.a").rings == []


def test_the_face_of_the_whole_may_import_from_everywhere(tmp_path: Path) -> None:
    write(tmp_path / "us", {"": "from us.a import x", "a__x": "from us import VERSION"})
    (tmp_path / "us" / FACE).write_text("from us.a import x")
    assert measure(tmp_path / "us").rings == []


def test_a_class_name_that_stands_twice_is_doubled(tmp_path: Path) -> None:
    house = build(tmp_path, a="class Task: ...\nclass Only: ...", b__c="def f():\n    class Task: ...")
    assert house.doubled == {"Task": 2}


def test_a_short_private_helper_with_one_caller_is_told(tmp_path: Path) -> None:
    text = """
    def run():
        _once(), _twice(), _twice(), _long(), _decorated(), public(), Thing()._method(), map(_handed, [])

    def _once():
        a = 1
        b = 2
        return a + b

    def _twice(): ...

    def _long():
        a = 1
        b = 2
        c = 3
        return a + b + c

    @cache
    def _decorated(): ...

    def _handed(each): ...

    def public(): ...

    class Thing:
        def _method(self): ...

        def __init__(self): ...
    """
    assert build(tmp_path, a__b=text).short_helpers == ["a.b._once", "a.b._method"]


def test_lengths_are_those_of_functions_and_methods_with_their_docstrings(tmp_path: Path) -> None:
    bodies = [f"def f{n}():\n" + "    pass\n" * (n - 1) for n in range(2, 10)]
    method = "class C:\n    async def m(\n        self,\n    ):\n" + '        """Why."""\n' + "        pass\n" * 16
    house = build(tmp_path, a="\n".join(bodies), b=method + "def g(): ...")
    assert house.lengths == [1, 2, 3, 4, 5, 6, 7, 8, 9, 20]
    assert figures(house)["function lines, median"] == "5.5"
    assert figures(house)["function lines, 90th percentile"] == "20"


def test_the_package_of_a_commit_is_measured_as_it_was(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        author = ["-c", "user.name=us", "-c", "user.email=us@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", tmp_path, *author, *command], check=True, capture_output=True)

    git("init")
    write(tmp_path / PACKAGE, {"a__b": "", "old": ""})
    git("add", ".")
    git("commit", "-m", "before")
    (tmp_path / PACKAGE / "old.py").unlink()
    git("commit", "-am", "after")
    then, now = (check_out(tmp_path, commit, tmp_path / commit) for commit in ("HEAD~1", "HEAD"))
    assert measure(then).siblings == {".": 1, "a": 1}
    assert measure(now).siblings == {".": 0, "a": 1}


@pytest.mark.slow
def test_in_this_package_no_class_name_stands_twice_and_no_room_is_too_full() -> None:
    house = measure(ROOT / PACKAGE)
    assert (house.doubled, house.rings) == ({}, [])
    assert max(house.siblings.values()) <= 12


@pytest.mark.slow
def test_an_import_and_the_parsing_of_a_dag_take_time() -> None:
    seconds = {name: float(figure) for name, figure in timed(ROOT / PACKAGE, steps=3, repeats=1)}
    assert [*seconds] == ["seconds of import tradewind", "seconds to parse a DAG of 3 steps"]
    assert min(seconds.values()) > 0 and max(seconds.values()) < 60
