"""The mutants of ``make mutants`` can be made: a guard that moved takes its mutant along."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from scripts.mutants import ROOT, Fate, Mutant, MutantError, fate_of, read_mutants


@pytest.mark.slow
def test_every_mutant_can_be_made() -> None:
    mutants = read_mutants(ROOT)
    assert len({str(mutant) for mutant in mutants}) == len(mutants) > 0
    for mutant in mutants:
        text = mutant.broken(ROOT)
        if mutant.file.endswith(".py"):
            compile(text, mutant.file, "exec")


def checkout(tmp_path: Path, test: str) -> Path:
    """A project of one guard and one test of it."""
    (tmp_path / "guard.py").write_text("def is_open(age):\n    return age >= 3\n")
    (tmp_path / "test_guard.py").write_text(f"from guard import is_open\n\n\ndef test_it():\n    {test}\n")
    (tmp_path / "conftest.py").write_text("")
    return tmp_path


def mutant(old: str = "age >= 3", new: str = "age >= 2") -> Mutant:
    return Mutant("guard", "it opens early", "guard.py", old, new, ("test_guard.py",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "fate"),
    [
        ("assert not is_open(2)", Fate.KILLED),
        ("assert is_open(5)", Fate.LIVES),
    ],
)
def test_a_mutant_is_killed_by_a_test_that_fails_and_by_nothing_else(tmp_path: Path, test: str, fate: Fate) -> None:
    root = checkout(tmp_path, test)
    found, output = fate_of(mutant(), root, 60)
    assert found is fate, output
    assert "age >= 3" in (root / "guard.py").read_text()  # mended again


@pytest.mark.slow
def test_broken_code_is_what_every_process_of_its_tests_finds(tmp_path: Path) -> None:
    package = tmp_path / "operators" / "tradewind"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    ask = "import subprocess, sys; code = 'import tradewind; print(tradewind.__file__)'"
    told = "subprocess.check_output([sys.executable, '-c', code], env={}, text=True)"
    root = checkout(tmp_path, f"{ask}; assert {told}.strip() == {str(package / '__init__.py')!r} and is_open(5)")
    found, output = fate_of(mutant(), root, 60)
    assert found is Fate.LIVES, output


@pytest.mark.slow
def test_what_broken_code_leaves_running_ends_with_its_tests(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    start = "import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    root = checkout(tmp_path, f"{start}; open({str(pid)!r}, 'w').write(str(child.pid)); assert not is_open(2)")
    assert fate_of(mutant(), root, 60)[0] is Fate.KILLED
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.slow
def test_tests_that_do_not_end_say_nothing_of_a_mutant_and_leave_nothing(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    root = checkout(tmp_path, f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    assert fate_of(mutant(), root, 10)[0] is Fate.BROKEN
    assert not pid.exists() or not psutil.pid_exists(int(pid.read_text()))  # a busy machine may not have begun it


@pytest.mark.slow
def test_a_mutant_whose_tests_cannot_be_read_is_not_called_killed(tmp_path: Path) -> None:
    root = checkout(tmp_path, "pass")
    (root / "test_guard.py").write_text("import no_such_module_at_all\n")
    assert fate_of(mutant(), root, 60)[0] is Fate.BROKEN


@pytest.mark.parametrize(("old", "new"), [("nothing like it", "x"), ("age", "x"), ("age >= 3", "age >= 3")])
def test_a_mutant_that_changes_nothing_or_more_than_one_place_is_refused(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(MutantError, match="guard: it opens early"):
        mutant(old, new).apply(checkout(tmp_path, "pass"))


@pytest.mark.slow
def test_a_mutant_of_a_test_that_is_not_there_is_refused(tmp_path: Path) -> None:
    root = checkout(tmp_path, "pass")
    (root / "test_guard.py").unlink()
    with pytest.raises(MutantError, match="no test"):
        mutant().apply(root)
