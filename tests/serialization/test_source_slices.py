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

from airflow.sdk import DAG, dag, task
from helpers import tripled

LIMIT = 3
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
    @task
    def nested(value):
        return value + LIMIT

    FOUND.update(nested=nested)
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
    call = call_to(dag_file.tidy.function, 4, code=CodeFolder(folder))
    assert call.travels and CodeFolder(folder).files_of(call.modules) == ["helpers.py"]
    assert not call_to(dag_file.falls.function, 4, code=CodeFolder(folder)).travels
    assert not call_to(dag_file.tidy.function, 4, code=CodeFolder(folder / "elsewhere")).travels


def test_function_does_not_bring_the_rest_of_its_file(dag_file: ModuleType, folder: Path) -> None:
    text = call_to(dag_file.falls.function, 4, code=CodeFolder(folder)).to_json()
    assert "bad" in text
    assert not any(word in text for word in ("airflow", "LIMIT", "tripled", "@task", "pipeline"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(): return Variable.get('x')", "'f' of nightly.py uses 'Variable', which needs Airflow"),
        ("SECRET = Variable\ndef f(): return SECRET", "uses 'SECRET', which needs Airflow"),
        (
            "def g(n):\n    def h(): return n\n    return h\nf = g(1)",
            "'g.<locals>.h' .* uses 'n' of the function around it",
        ),
        (
            "def g(): return h()\ndef h(): ...\ndef d():\n    def h(): g()\n    return h\nf = d()",
            "uses another 'h' of its",
        ),
        ("f = lambda: 1", "is a lambda or a coroutine"),
        ("async def f(): ...", "is a lambda or a coroutine"),
        ("def f():\n    from . import helpers", "uses a relative import"),
        ("from math import *\ndef f(): return sqrt(2)", r"import it by its name rather than with '\*'"),
    ],
)
def test_function_that_cannot_travel_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    module = load_dag_file(tmp_path, f"from airflow.sdk import Variable\n{text}\n")
    with pytest.raises(SpecError, match=message):
        call_to(module.f)


REPRODUCED = """
import attrs, enum, functools, itertools, random, threading
from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from values_of_dag import VALUES
from airflow.sdk import DAG, Variable, dag
try:
    from airflow.sdk import task
except ImportError:
    from airflow.decorators import task
try:
    import no_such_module as absent
except ImportError:
    absent = 5
if TYPE_CHECKING:
    from airflow.sdk import Context
    def typed(context: Context): ...
class Kind(enum.Enum):
    A = 1
@dataclass(frozen=True)
class Point:
    x: int
    made: list = field(default_factory=list)
class Named(NamedTuple):
    x: int = 2
Pair = namedtuple("Pair", "a b", defaults=(3,))
@attrs.define
class Given:
    n: int = 1
class Model:
    @functools.cached_property
    def size(self): return 4
    @property
    def name(self): return "m"
SHOWN = Model().size + Given().n
LOCK, COUNT, ITEMS = threading.Lock(), itertools.count(3), (n for n in range(3))
RANDOM = random.Random(1)
DRAWN = RANDOM.random()
OBJECTS = {Model(), Model()}
def cycle():
    found = []
    found.append(found)
    return found
CYCLE = cycle()
match [1, 2]:
    case [first, *others]: ...
if (walrus := 3) > 2: ...
for last in range(4): ...
(head, *tail), end = [1, 2, 3], 4
added = 1
added += 1
joined = VALUES
joined += [2]
except_text = ""
try:
    1 / 0
except ZeroDivisionError as error:
    except_text = str(error)
LOOKUP = {Kind.A: [Point(1), Named(), Pair(1)], "nan": float("nan"), "counts": [Counter("aa"), defaultdict(list)]}
@functools.cache
def cached(n): return n + added
cached(1)
def twice(function):
    @functools.wraps(function)
    def wrapper(*given): return 2 * function(*given)
    return wrapper
@twice
def one(): return 1
our_task = task
double = lambda n: 2 * n
if SHOWN > 9:
    LOOKUP["large"] = 9
with DAG("values", default_args=dict(enumerate(VALUES))): ...
@our_task
@twice
def values():
    return [
        absent, Model().size, Model().name, LOCK.locked(), next(COUNT), list(ITEMS), RANDOM.random(), DRAWN,
        len(OBJECTS), len(CYCLE), first, others, walrus, last, head, tail, end, added, joined, except_text, str(LOOKUP),
        cached(1), one(), double(2), len(VALUES), Given().n,
    ]
"""

CHANGED = """
import enum, functools, itertools, numpy
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from values_of_dag import VALUES
from airflow.sdk import DAG, task
MODELS = {}
def register(name):
    def decorate(definition):
        MODELS[name] = definition
        return definition
    return decorate
@register("one")
def one(): return 1
@register("two")
class Two:
    size = 2
Two.depth = 3
setattr(Two, "heads", 4)
Two.name = lambda self: "two"
CONFIG = {"lr": 1, "old": 0}
CONFIG["lr"] = 2
CONFIG.update(lr=3)
del CONFIG["old"]
ALIAS = CONFIG
ALIAS["alias"] = 3
for name in ("a", "b"):
    CONFIG[name] = len(CONFIG)
with DAG("changed"):
    CONFIG["block"] = 1
try:
    CONFIG["tried"] = CONFIG["absent"]
except KeyError:
    CONFIG["tried"] = 0
def tune(config, **values):
    inner = config.setdefault("inner", {})
    inner.update(values)
tune(CONFIG, lr=3)
RUNS = [{"seed": 0}, {"seed": 0}]
for number, run in enumerate(RUNS):
    run["seed"] = number
GROUPS = defaultdict(list)
GROUPS["a"].append(1)
SIZES = [3, 1, 0.0]
SIZES.sort()
SIZES[0] = -0.0
[SIZES.append(n) for n in range(2)]
FROM_MODULE = {}
FROM_MODULE.update(values=VALUES)
SET = {1, 2}
set.add(SET, 3)
COUNT = 0
def count():
    global COUNT
    COUNT += 1
count()
COUNTER = itertools.count()
next(COUNTER)
@dataclass
class Settings:
    lr: int = 1
SETTINGS, SPACE = Settings(), SimpleNamespace(a=[])
SETTINGS.lr = 5
SPACE.a.append(1)
class Hidden:
    def __getstate__(self): return None
HIDDEN = Hidden()
HIDDEN.a = 1
class Kind(enum.Enum):
    A = 1
Kind.A.label = "a"
ARRAYS = [numpy.zeros(4)]
ARRAYS[0] = ARRAYS[0].reshape(2, 2)
def kept(found=[]):
    found.append(1)
    return len(found)
kept()
kept.limit = 9
@task
def values():
    return [
        MODELS["one"](), MODELS["two"].size, Two.depth, Two.heads, Two().name(), CONFIG, RUNS, GROUPS, str(SIZES),
        sorted(SET), FROM_MODULE, COUNT, next(COUNTER), SETTINGS.lr, SPACE.a, HIDDEN.a, Kind.A.label, str(ARRAYS),
        kept(), kept.limit,
    ]
"""


@pytest.mark.parametrize("text", [REPRODUCED, CHANGED])
def test_names_have_the_values_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "values_of_dag.py").write_text("VALUES = [0]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "values_of_dag", raising=False)
    module = load_dag_file(tmp_path, text)
    call = call_to(module.values.function, code=CodeFolder(tmp_path))
    assert result_of(call, tmp_path) == module.values.function()


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("C = 1\ndel C", "C", 2),
        ("C = [{}]\n@task\ndef run(c): ...\nfor cfg in C:\n    cfg['seed'] = 1\n    run(cfg)", "C", 4),
        ("C = []\n@task\ndef run(): ...\ndef make():\n    run()\n    C.append(1)\nmake()", "C", 6),
        ("C = {}\ndef register(f):\n    C[f.__name__] = f\n    return f\n@register\n@task\ndef g(): ...", "C", 3),
        ("import os\nC = {}\nif os.environ['C']:\n    C['x'] = 1", "C", 4),
        ("from pathlib import Path\nC = {}\nfor file in Path('/etc').glob('h*'):\n    C[file.name] = 1", "C", 4),
        ("C = {}\ntry:\n    import airflow\n    C['x'] = 1\nexcept ImportError: ...", "C", 4),
        ("import uuid\nC = {}\nC['x'] = uuid.uuid4()", "C", 3),
        ("C = []\nNAMES = {'a', 'b'}\nfor name in NAMES:\n    C.append(name)", "C", 4),
        ("C = {}; C['x'] = 1", "C", 1),
        ("C = \\\n[]; C.append(1)", "C", 2),
        ("C = {}\nwith DAG('d'): C['x'] = 1", "C", 2),
        ("from values_of_dag import D\nC = {}\nC['d'] = D\nC['d']['e']['x'] = 1\nC['y'] = 2", "C", 3),
        ("class C:\n    f = property(lambda self: 1)\nC.f = property(lambda self: 2)", "C", 3),
        ("class C:\n    subs = []\n    def __init_subclass__(cls): C.subs.append(1)\nclass D(C): ...", "C", 1),
        ("class M:\n    def __init__(self): self.a = 0\n    def go(self): self.a = 1\nC = M()\nC.go()", "C", 5),
        ("import random\nC = [*range(50)]\nrandom.Random(0).shuffle(C)", "C", 3),
        ("import random\nC = random.Random(1)\nC.random()", "C", 3),
        ("import random\nrandom.seed(1)\nC = random.random()", "random", 2),
        ("import numpy\nnumpy.random.seed(1)\nC = numpy.random.rand()", "numpy", 2),
        ("import numpy\nC = numpy.zeros(2)\nnumpy.put(C, 0, 1)", "C", 3),
        ("C = {}\nC['x'] = Variable", "C", 2),
        ("C = 1\nglobals()['C'] = 2", "C", 1),
        ("C = {}\ng = lambda: C.update(x=1)\ng()", "C", 2),
        ("def make(n=0):\n    def inc():\n        nonlocal n\n        n += 1\n    return inc\nC = make()\nC()", "C", 7),
        ("C = (n for n in range(3))\nD = list(C)", "C", 2),
        ("C = map(str, [1, 2])\nfor n in C: break", "C", 2),
        ("C = open('/dev/null')\nC.read()", "C", 2),
        ("import threading\nC = [threading.Lock()]\ndef hold(lock): lock.acquire()\nhold(C[0])", "C", 4),
        ("import time\nC = {'at': time.time(), 'lr': 1}\nC['lr'] = 2", "C", 3),
        ("import random\nC = [1] * random.randint(1, 10**5)\nC[0] = 2", "C", 3),
        ("import os\nos.environ['C'] = 'x'\ndef C(): return os.environ['C']", "os", 2),
        ("import sys\nsys.path += []\ndef C(): return sys.path", "sys", 2),
        ("import values_of_dag as C\nC.VALUES = [1]", "C", 2),
        ("import values_of_dag as V\nfrom values_of_dag import C\nV.C.append(1)", "C", 3),
        ("import values_of_dag\ndef C():\n    from values_of_dag import C\nvalues_of_dag.C = 1", "values_of_dag", 4),
        ("from values_of_dag import C\nC.append(1)", "C", 2),
        ("from values_of_dag import C\nD = C\nD.append(1)", "C", 3),
        ("from values_of_dag import C\ndef go(): C.append(1)\ngo()", "C", 2),
        ("from values_of_dag import C\ndef go(given): given.append(1)\ngo(C)", "C", 3),
        ("from values_of_dag import C\ndef go(given): given.append(1)\ndef goes(): go(given=C)\ngoes()", "C", 3),
        ("from values_of_dag import D as C\nE = C['e']\nE['x'] = 1", "C", 3),
        ("from values_of_dag import C\nadd = C.append\nadd(1)", "C", 2),
        ("from values_of_dag import C as held\nC = {'held': held}\nC['held'].append(1)", "held", 3),
        ("def C():\n    return absent", "absent", 1),
        ("def C():\n    return __file__", "__file__", 1),
        ("def C():\n    return globals().get('D')\nD = 1", "globals", 1),
    ],
)  # fmt: skip
def test_later_change_is_refused_by_name_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, line: int
) -> None:
    (tmp_path / "values_of_dag.py").write_text("VALUES = [0]\nC = [0]\nD = {'e': {}}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("C", "y")
    monkeypatch.delitem(sys.modules, "values_of_dag", raising=False)
    text = f"from airflow.sdk import DAG, Variable, task\n{text}\n@task\ndef uses():\n    return C\n"
    module = load_dag_file(tmp_path, text)
    with pytest.raises(SpecError, match=rf"uses '{name}'.*\bline {line + 1}\b"):
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
        "CYCLE = [object()]\n"
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


def test_comparison_changes_nothing_of_other_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared_lists.py").write_text("ONE = []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import airflow\nfrom shared_lists import ONE\nfor n in range(2):\n    ONE.append(n)\n"
    module = load_dag_file(tmp_path, f"{text}def uses(): return [ONE, n]\n")
    call_to(module.uses)
    assert module.uses() == [[0, 1], 1]


def test_slices_of_long_files_take_little_time(tmp_path: Path) -> None:
    constants = "".join(f"C{number} = {number}\n" for number in range(5000))
    functions = "".join(f"def f{number}(): return f{number - 1}()\n" for number in range(1, 1000))
    deep = "TEXT = " + " + ".join(["'a'"] * 1500) + "\nNESTED = []\nfor _ in range(5000):\n    NESTED = [NESTED]\n"
    used = ", ".join(f"C{number}" for number in range(5000))
    text = f"import airflow\n{constants}{functions}{deep}LARGE = [*range(10**6)]\ndef f0(): ...\n"
    module = load_dag_file(tmp_path, f"{text}def uses(): return TEXT, NESTED, LARGE, f999, {used}\n")
    start = time.process_time()
    call = call_to(module.uses)
    assert time.process_time() - start < 10
    assert call.function.source is not None and len(call.function.source.pieces) == 6005


def test_file_edited_after_loading_is_refused(tmp_path: Path) -> None:
    module = load_dag_file(tmp_path, "import airflow\ndef f():\n    return 1\n")
    (tmp_path / "nightly.py").write_text("import airflow\n\n\ndef f():\n    return 2\n")
    with pytest.raises(SpecError, match="the file was edited after it was loaded"):
        call_to(module.f)


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
