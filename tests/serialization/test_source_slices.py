"""Functions of DAG files run without Airflow; a task refuses one it cannot serialize and names it."""

from __future__ import annotations

import sys
import time
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
import math, os
from collections import deque
from defaults_of_dag import DEFAULTS
from airflow.sdk import DAG, Variable, task
CONFIG = {"lr": 1}
CONFIG["lr"] = 2
CONFIG.update(steps=3)
SIZES = []
for size in (1, 2):
    if size:
        last = size
        SIZES.append(last)
class Model:
    layers = 1
    scale = math.nan
Model.layers = 2
SHUFFLED = deque([3, 1, 2])
SHUFFLED.rotate(1)
del SHUFFLED[0]
if SIZES:
    DEEP = {"a": {"b": 0}}
    DEEP["a"]["b"] += 5
DEFAULTS.append(1)
with DAG("one"):
    CONFIG["in"] = "dag"
@task
def changed():
    return [CONFIG, SIZES, Model.layers, list(SHUFFLED), DEEP, DEFAULTS]
os.environ["SEEN"] = "yes"
PATH = __file__
@task
def here():
    return PATH
"""


def test_plain_changes_of_a_constant_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "defaults_of_dag.py").write_text("DEFAULTS = [0]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SEEN", "no")
    module = load_dag_file(tmp_path, CHANGED)
    config = {"lr": 2, "steps": 3, "in": "dag"}
    values = [config, [1, 2], 2, [3, 1], {"a": {"b": 5}}, [0, 1]]
    call = call_to(module.changed.function, code=CodeFolder(tmp_path))
    assert "environ" not in call.to_json()
    assert result_of(call, tmp_path) == module.changed.function() == values
    line = CHANGED.splitlines().index("PATH = __file__") + 1
    with pytest.raises(SpecError, match=rf"uses '__file__' \(line {line}\), and the file does not exist on a cluster"):
        call_to(module.here.function)


@pytest.mark.parametrize(
    ("text", "name", "line", "later"),
    [
        ("class C:\n    a = 1\ndef widen(m):\n    m.b = 2\nwiden(C)", "C", 1, 5),
        ("C = [{'seed': 0}]\nfor run in C:\n    run['seed'] = 1", "C", 1, 2),
        ("class C:\n    a = 1\nprint(C)\nsetattr(C, 'heads', 4)", "C", 1, 4),
        ("import random\nC = [*range(50)]\nrandom.shuffle(C)", "C", 2, 3),
        ("C = {}\ndef register(f):\n    C[f.__name__] = f\n    return f\n@register\ndef g(): ...", "C", 1, None),
        ("C = {}\nC['x'] = Variable", "C", 1, 2),
        ("C = 0\ndef count():\n    global C\n    C += 1\ncount()", "C", 1, None),
        ("C = {}\nD = C\nD['x'] = 1", "C", 1, 2),
        ("C = {}\ng = lambda: C.update(x=1)\ng()", "C", 1, 2),
        ("C = []\nD = [C.append(n) for n in range(3)]", "C", 1, 2),
        ("from types import SimpleNamespace\nC = SimpleNamespace(a=[])\nvars(C)['a'] = [1]", "C", 2, 3),
        ("C = {1, 2}\nset.add(C, 3)", "C", 1, 2),
        ("C = {}\ntry:\n    C['x'] = 1\nexcept KeyError: ...", "C", 1, 2),
        ("class M:\n    def __init__(self): self.a = 0\n    def go(self): self.a = 1\nC = M()\nC.go()", "C", 4, 5),
    ],
)
def test_other_changes_of_a_constant_are_refused(
    tmp_path: Path, text: str, name: str, line: int, later: int | None
) -> None:
    text = f"from airflow.sdk import DAG, Variable, task\n{text}\n@task\ndef uses():\n    return C\n"
    module = load_dag_file(tmp_path, text)
    hint = rf" \(line {later + 1} may change it\)" if later else ""
    expected = f"uses '{name}', which has another value in the DAG file than line {line + 1} gives it{hint}: set its"
    with pytest.raises(SpecError, match=expected):
        call_to(module.uses.function)


@pytest.mark.parametrize(
    "text",
    [
        "with DAG('d'):\n    for cfg in RUNS:\n        cfg.setdefault('seed', 1)\n        uses(cfg)",
        "with DAG('d'):\n    uses.override(task_id='x')(C)",
        "print(C)",
        "def validate(config):\n    assert config\n    print('validated')\nvalidate(C)",
        "OUT.joinpath('made').mkdir(exist_ok=True)",
        "with DAG('d') as d: ...\nif __name__ == '__main__':\n    C['lr'] = 9\n    d.test()",
        "if __name__ == '__main__':\n    C = {}",
        "def other():\n    C['never'] = 'called'",
        "from contextlib import suppress\nwith suppress(KeyError):\n    del C['not there']",
    ],
)
def test_statements_that_change_nothing_do_not_travel(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = (
        "import datetime, itertools, re, time\nfrom enum import Enum\nfrom pathlib import Path\n"
        f"from airflow.sdk import DAG, Variable, task\nOUT = Path({str(tmp_path)!r})\n"
        "class Kind(Enum):\n    A = 1\n"
        "C = {'lr': 1, 'kinds': {Kind.A}, 'kind': Kind.A, 'nan': float('nan'), 're': re.compile('a')}\n"
        "RUNS = [{'seed': 0}]\nNOW, DAY = time.time(), datetime.date(2026, 11, 20)\n"
        "CYCLE = [object()]\nCYCLE.append(CYCLE)\n"
        "STAMP = time.strftime('%H%M%S', time.gmtime(next(itertools.count(int(NOW)))))\n"
    )
    uses = "@task\ndef uses(cfg=None):\n    return [OUT, C, RUNS, NOW, DAY, CYCLE, STAMP]\n"
    module = load_dag_file(tmp_path, start + uses + text + "\n")
    module.__dict__["STAMP"] = "000000"  # the file was loaded at another time
    capsys.readouterr()
    call = call_to(module.uses.function)
    assert capsys.readouterr().out == ""
    assert call.function.source is not None
    taken = "".join(piece for _, piece in call.function.source.pieces)
    assert taken == "".join(
        line for line in (start + uses).splitlines(True) if "airflow" not in line and "@" not in line
    )


def test_constants_are_not_changed_again_by_the_comparison(tmp_path: Path) -> None:
    """A list of another module, also by another name, is changed once, when the file is loaded."""
    (tmp_path / "shared_lists.py").write_text("ONE = []\nTWO = []\n")
    sys.path.insert(0, str(tmp_path))
    try:
        module = load_dag_file(
            tmp_path,
            "import airflow\nfrom shared_lists import ONE, TWO\nONE.append(1)\nSAME = TWO\nSAME.append(1)\n"
            "def uses(): return [ONE, SAME]\n",
        )
        call_to(module.uses)
        assert module.uses() == [[1], [1]]
    finally:
        sys.path.remove(str(tmp_path))


def test_slices_of_long_files_take_little_time(tmp_path: Path) -> None:
    changes = "".join(f"C['{number}'] = {number}\n" for number in range(5000))
    deep = "TEXT = " + " + ".join(["'a'"] * 1500) + "\nNESTED = []\nfor _ in range(5000):\n    NESTED = [NESTED]\n"
    module = load_dag_file(tmp_path, f"import airflow\nC = {{}}\n{changes}{deep}def uses(): return C, TEXT, NESTED\n")
    start = time.process_time()
    call = call_to(module.uses)
    assert time.process_time() - start < 10
    assert call.function.source is not None and len(call.function.source.pieces) == 5005


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
