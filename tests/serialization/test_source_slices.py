"""Functions of DAG files run without Airflow; a task refuses one it cannot serialize and names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.runtime.dag_files import MARKER, call_to, load_dag_file, result_of, run
from tradewind.serialization.callables import describe_callable
from tradewind.serialization.errors import SpecError
from tradewind.serialization.references import CodeFolder

DAG_FILE = '''
"""A DAG file."""
import datetime
import json
import math as maths
from dataclasses import dataclass, field
from functools import lru_cache

from airflow.sdk import DAG, Variable, dag, task
from helpers import tripled

LIMIT = 3
SECRET = Variable
if LIMIT > 2:
    WORD = "big"
else:
    WORD = "small"
LINES = """one
    two"""


@dataclass
class Scores:
    best: float
    when: datetime.date = datetime.date(2026, 11, 20)
    all: list = field(default_factory=list)


@lru_cache
def helper(n):
    return n * LIMIT


@task
def tidy(value, scale=LIMIT):
    """Uses most of its file."""
    scores = Scores(maths.sqrt(value), all=[helper(n) for n in range(scale)])
    return {"scores": scores, "word": WORD, "lines": LINES, "tripled": tripled(value), "text": json.dumps([1])}


@task
def needs_airflow(value):
    return Variable.get("x")


@task
def needs_airflow_by_another_name():
    return SECRET


@task
def needs_undefined():
    return not_there(1)


@task
def falls(value):
    raise ValueError(f"bad {value}")


@task
def counts_down(n):
    return [n, *counts_down(n - 1)] if n else []


with DAG("with_block"):

    def inside_helper(n):
        return n + LIMIT

    @task(retries=2)
    def inside(n):
        text = """kept
    as it is"""
        return [inside_helper(n), text]


@dag(schedule=None)
def pipeline():
    outer = 5

    @task
    def nested(value):
        return value + LIMIT

    @task
    def closes(value):
        return value + outer

    FOUND.update(nested=nested, closes=closes)
    nested(1)


FOUND = {}
pipeline()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dags")
    (folder / "helpers.py").write_text("def tripled(n):\n    return 3 * n\n")
    return folder


@pytest.fixture(scope="module")
def dag_file(folder: Path) -> Iterator[ModuleType]:
    sys.path.insert(0, str(folder))
    try:
        yield load_dag_file(folder, DAG_FILE)
    finally:
        sys.path.remove(str(folder))


TIDY = {
    "scores": {"best": 2.0, "when": "2026-11-20", "all": [0, 3, 6]},
    "word": "big",
    "lines": "one\n    two",
    "tripled": 12,
    "text": "[1]",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "argument", "result"),
    [
        ("tidy", 4, TIDY),
        ("counts_down", 3, [3, 2, 1]),
        ("inside", 1, [4, "kept\n    as it is"]),
        ("inside_helper", 1, 4),
        ("nested", 1, 4),
    ],
)
def test_function_brings_what_it_uses_of_its_file(
    dag_file: ModuleType, folder: Path, name: str, argument: int, result: Any
) -> None:
    task = dag_file.FOUND.get(name) or getattr(dag_file, name)
    call = call_to(getattr(task, "function", task), argument, code=CodeFolder(folder))
    assert result_of(call, folder) == result


def test_code_travels_if_a_module_of_the_folder_is_imported(dag_file: ModuleType, folder: Path) -> None:
    assert call_to(dag_file.tidy.function, 4, code=CodeFolder(folder)).travels
    assert not call_to(dag_file.falls.function, 4, code=CodeFolder(folder)).travels
    assert not call_to(dag_file.tidy.function, 4, code=CodeFolder(folder / "elsewhere")).travels


def test_function_does_not_bring_the_rest_of_its_file(dag_file: ModuleType, folder: Path) -> None:
    text = call_to(dag_file.falls.function, 4, code=CodeFolder(folder)).to_json()
    assert "bad" in text
    assert not any(word in text for word in ("airflow", "LIMIT", "tripled", "@task", "pipeline"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs_airflow", "'needs_airflow' of nightly.py uses 'Variable', which needs Airflow"),
        ("needs_airflow_by_another_name", "uses 'SECRET', which needs Airflow"),
        ("needs_undefined", "uses 'not_there', which its file does not define"),
        ("closes", "'pipeline.<locals>.closes' of nightly.py uses 'outer' of the function around it"),
    ],
)
def test_name_that_cannot_travel_is_refused(dag_file: ModuleType, folder: Path, name: str, message: str) -> None:
    task = dag_file.FOUND.get(name) or getattr(dag_file, name)
    with pytest.raises(SpecError) as refusal:
        call_to(task.function, code=CodeFolder(folder))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f = lambda: 1", "is a lambda or a coroutine"),
        ("async def f(): ...", "is a lambda or a coroutine"),
        ("def f():\n    from . import helpers", "uses a relative import"),
        ("from math import *\ndef f(): return sqrt(2)", "import it by its name rather than with '*'"),
    ],
)
def test_unsupported_functions_of_a_dag_file_are_refused(tmp_path: Path, text: str, message: str) -> None:
    module = load_dag_file(tmp_path, f"import airflow\n{text}\n")
    with pytest.raises(SpecError, match=message.replace("*", r"\*")):
        call_to(module.f)


CHANGED = """
import os, random
from airflow.sdk import DAG, Variable, task
CONFIG = {"lr": 1}
CONFIG["lr"] = 2
CONFIG.update(steps=3)
SIZES = []
for size in (1, 2):
    SIZES.append(size)
RUNS = [{"seed": 0}, {"seed": 0}]
for number, run in enumerate(RUNS):
    run["seed"] = number
SAME = CONFIG
SAME["same"] = True
class Model:
    layers = 1
Model.layers = 2
def widen(model, by):
    model.width = by
def count():
    global TOTAL
    TOTAL = TOTAL + 1
TOTAL = 0
count()
widen(Model, by=8)
SHUFFLED = [3, 1, 2]
random.shuffle(SHUFFLED)
SHUFFLED.sort()
setattr(Model, "heads", 4)
if SIZES:
    DEEP = {"a": {"b": 0}}
    DEEP["a"]["b"] += 5
HOOKED = {}
HOOKED["x"] = Variable
LOGGED = []
os.environ["SEEN"] = "yes"
PATH = __file__
@task
def changed():
    return [CONFIG, SIZES, RUNS, Model.layers, Model.width, Model.heads, TOTAL, SHUFFLED, DEEP]
@task
def hooked():
    return HOOKED
@task
def here():
    return PATH
@task
def plain(values):
    return [*values, *LOGGED, os.name]
with DAG("one"):
    plain(LOGGED)
print(LOGGED)
"""


def test_changes_of_a_constant_travel_or_are_refused(tmp_path: Path) -> None:
    module = load_dag_file(tmp_path, CHANGED)
    config = {"lr": 2, "steps": 3, "same": True}
    values = [config, [1, 2], [{"seed": 0}, {"seed": 1}], 2, 8, 4, 1, [1, 2, 3], {"a": {"b": 5}}]
    assert result_of(call_to(module.changed.function), tmp_path) == module.changed.function() == values
    hooked, here = (CHANGED.splitlines().index(line) + 1 for line in ('HOOKED["x"] = Variable', "PATH = __file__"))
    with pytest.raises(SpecError, match=f"uses 'HOOKED', which line {hooked} changes with 'Variable', which needs Air"):
        call_to(module.hooked.function)
    with pytest.raises(SpecError, match=rf"uses '__file__' \(line {here}\), and the file does not exist on a cluster"):
        call_to(module.here.function)
    source = call_to(module.plain.function, []).to_json()
    assert "LOGGED = []" in source and "print" not in source and "environ" not in source


def test_file_edited_after_loading_is_refused(tmp_path: Path) -> None:
    module = load_dag_file(tmp_path, "import airflow\ndef f():\n    return 1\n")
    (tmp_path / "nightly.py").write_text("import airflow\n\n\ndef f():\n    return 2\n")
    with pytest.raises(SpecError, match="the file was edited after it was loaded"):
        call_to(module.f)


def test_own_decorator_is_kept_and_airflow_decorator_removed(tmp_path: Path) -> None:
    text = (
        "from airflow.sdk import task\nimport functools\nour_task = task\n"
        "def louder(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a) + '!'\n    return g\n"
        "@our_task\n@louder\ndef speak(word):\n    return word\n"
    )
    module = load_dag_file(tmp_path, text)
    assert result_of(call_to(module.speak.function, "hi"), tmp_path) == "hi!"


def test_function_of_module_importing_airflow_ships_as_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_tasks.py").write_text("from airflow.sdk import task\n@task\ndef f(n):\n    return n + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import our_tasks  # type: ignore[import-not-found]

    assert describe_callable(our_tasks.f.function, CodeFolder(tmp_path)).source is not None
    (tmp_path / "our_tasks.py").unlink()  # so that the cluster has no such module
    assert result_of(call_to(our_tasks.f.function, 1), tmp_path) == 2


def test_argument_of_class_of_the_dag_file_is_refused(dag_file: ModuleType, folder: Path) -> None:
    with pytest.raises(SpecError, match="holds 'Scores', which is defined in a file that imports Airflow"):
        call_to(dag_file.tidy.function, [dag_file.Scores(1.0)], code=CodeFolder(folder))


def test_traceback_starts_at_function_and_shows_its_lines(dag_file: ModuleType, folder: Path) -> None:
    done = run(call_to(dag_file.falls.function, 4, code=CodeFolder(folder)), folder)
    number = 1 + DAG_FILE.splitlines().index('    raise ValueError(f"bad {value}")')
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "nightly.py", line {number}, in falls',
        '    raise ValueError(f"bad {value}")',
        "ValueError: bad 4",
    ]
    assert MARKER not in done.stdout
