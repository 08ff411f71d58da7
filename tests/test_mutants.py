"""Mutation tests (``make mutants``): pattern matches, replacements and tests that kill a mutant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from scripts.mutants import ROOT, Fate, Mutant, MutantError, fate_of, read_mutants, replaced

SOURCE = '''
LIMIT = 3


def is_open(age):
    """Größe."""
    def inner(age):
        return age >= LIMIT  # a comment
    return age > LIMIT and inner(age)


class Door:
    width = 2

    @property
    def is_wide(self):
        if (
            self.width > 1
        ):
            log("wide"); log("open")
            raise ValueError(f"{self.width}")
        return self.width == self.width

    async def close(self, by):
        await by.close(self, (lambda width: width > 1)(self.width))
'''
MUTANT = Mutant("guard", "it opens early", "guard:is_open", "$age >= 3", "$age >= 2", ("test_guard.py",))


@pytest.mark.long
def test_every_mutant_can_be_made() -> None:
    mutants = read_mutants(ROOT)
    assert 0 < len({str(mutant) for mutant in mutants}) == len(mutants) <= 200
    for mutant in mutants:
        mutant.broken(ROOT)


@pytest.mark.parametrize(
    ("function", "pattern", "replacement", "old", "new"),
    [
        ("<module>", "LIMIT = 3", "LIMIT = 4", "LIMIT = 3", "LIMIT = 4"),
        ("is_open", "age > $limit and $rest", "$rest or $limit", "age > LIMIT and inner(age)", "(inner(age) or LIMIT)"),
        ("is_open.inner", "$a >= $b", "False", "age >= LIMIT  #", "(False)  #"),
        ("Door", "width = $x", "width = -$x", "width = 2", "width = -2"),
        ("Door.is_wide", "$width > 1", "$width > 2", "self.width > 1", "(self.width > 2)"),
        ("Door.is_wide", "$a == $a", "True", "self.width == self.width", "(True)"),
        ("Door.is_wide", 'log("open")', "pass", 'log("open")', "pass"),
        ("Door.is_wide", "raise ValueError($why)", "a\nb", 'raise ValueError(f"{self.width}")', f"a\n{' ' * 12}b"),
        ("Door.close", "lambda width: $x", "print", "lambda width: width > 1", "(print)"),
    ],
)
def test_pattern_replaces_its_only_match(function: str, pattern: str, replacement: str, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert replaced(SOURCE, function, pattern, replacement) == SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("function", "pattern", "replacement", "found"),
    [
        ("is_open", "age < LIMIT", "True", "0 times in 1"),
        ("is_open", "$a >= $b", "True", "0 times in 1"),  # occurs only in the inner function
        ("is_open", "age > LIMIT", "pass", "0 times in 1"),  # a statement as replacement makes the pattern one
        ("<module>", "width = $x", "width = 3", "0 times in 1"),
        ("Door.is_wide", "$a == $b.$c", "True", "0 times in 1"),
        ("Door.is_wide", "self.width", "1", "4 times in 1"),
        ("Door.is_wide", "log($text)", "pass", "2 times in 1"),
        ("inner", "$a >= $b", "True", "0 times in 0"),
        ("is_wide", "self.width > 1", "True", "0 times in 0"),
    ],
)
def test_pattern_without_one_match_is_refused(function: str, pattern: str, replacement: str, found: str) -> None:
    with pytest.raises(MutantError, match=f"{found} functions {function}"):
        replaced(SOURCE, function, pattern, replacement)
    with pytest.raises(MutantError, match=r"has no \$limit"):
        replaced(SOURCE, "is_open.inner", "$a >= LIMIT", "$a >= $limit")


def make_project(tmp_path: Path, test: str) -> Path:
    """Create a project with one guard and one test of it."""
    (tmp_path / "operators").mkdir(exist_ok=True)
    (tmp_path / "operators" / "guard.py").write_text("def is_open(age):\n    return age >= 3\n")
    (tmp_path / "test_guard.py").write_text(f"from guard import is_open\n\n\ndef test_it():\n    {test}\n")
    (tmp_path / "conftest.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pattern": "$age < 3"}, "matches 0 times"),
        ({"replacement": "$age >= 3"}, "it changes nothing"),
        ({"pattern": "return $it", "replacement": "return $it\nbreak"}, "'break' outside loop"),
        ({"replacement": "$age >="}, "invalid syntax"),
        ({"function": "guards:is_open"}, "No such file"),
        ({"tests": ("test_guards.py",)}, "No such file"),
        ({"tests": ("test_guard.py::test_that",)}, "no test_that in test_guard.py"),
    ],
)
def test_mutant_that_cannot_be_made_is_refused(tmp_path: Path, change: dict[str, str], problem: str) -> None:
    with pytest.raises(MutantError, match=f"guard: it opens early: .*{problem}"):
        replace(MUTANT, **change).broken(make_project(tmp_path, "pass"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "fate"),
    [
        ("assert not is_open(2)", Fate.KILLED),
        ("assert is_open(5)", Fate.LIVES),
        ("import no_such_module_at_all", Fate.BROKEN),
    ],
)
def test_only_a_failing_test_kills_a_mutant(tmp_path: Path, test: str, fate: Fate) -> None:
    root = make_project(tmp_path, test)
    if fate is Fate.BROKEN:
        (root / "test_guard.py").write_text(test)
    actual, output = fate_of(MUTANT, root, 60)
    assert actual is fate, output
    assert "age >= 3" in (root / "operators" / "guard.py").read_text()


@pytest.mark.slow
def test_every_process_of_a_test_imports_the_broken_code(tmp_path: Path) -> None:
    ask = "import subprocess, sys; code = 'import guard; print(guard.is_open(2))'"
    answer = "subprocess.check_output([sys.executable, '-c', code], env={}, text=True)"
    root = make_project(tmp_path, f"{ask}; assert {answer}.strip() == 'True'")
    actual, output = fate_of(MUTANT, root, 60)
    assert actual is Fate.LIVES, output


@pytest.mark.slow
def test_processes_of_a_mutant_end_with_its_tests(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    start = "import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    root = make_project(tmp_path, f"{start}; open({str(pid)!r}, 'w').write(str(child.pid)); assert not is_open(2)")
    assert fate_of(MUTANT, root, 60)[0] is Fate.KILLED
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.slow
def test_hanging_tests_do_not_kill_a_mutant(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    root = make_project(tmp_path, f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    assert fate_of(MUTANT, root, 10)[0] is Fate.BROKEN
    assert not pid.exists() or not psutil.pid_exists(int(pid.read_text()))  # the test may not have started
