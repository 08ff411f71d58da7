"""A function of a DAG file runs where there is no Airflow; what cannot travel is refused by name, before it is sent."""

from __future__ import annotations

import datetime
import enum
import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.runtime.callable_parts import Holder, Point, doubled, fails, far, returns
from tradewind.runtime.call_results import decode_result, result_line, result_marker
from tradewind.runtime.callables import Call, describe_call, describe_callable
from tradewind.runtime.errors import ResultError, SpecError
from tradewind.runtime.references import CodeFolder
from tradewind.runtime.shipping import CALL_VARIABLE, MOST_BYTES_IN_VARIABLE, call_runtime_env, ship_tradewind

REPOSITORY = Path(__file__).parents[2]
HERE = CodeFolder(REPOSITORY)
NO_AIRFLOW = Path(__file__).with_name("no_airflow")
MARKER = result_marker("job-1")


def load_dag_file(folder: Path, text: str, name: str = "nightly") -> ModuleType:
    """The file as Airflow loads it: under a made-up module name."""
    file = folder / f"{name}.py"
    file.write_text(text)
    made_up = f"unusual_prefix_{abs(hash((str(file), text))):x}_{name}"
    spec = importlib.util.spec_from_file_location(made_up, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[made_up] = module
    spec.loader.exec_module(module)
    return module


def run(call: Call, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program as a cluster without Airflow runs it, with ``folder`` as working directory."""
    env = {**os.environ, "PYTHONPATH": f"{NO_AIRFLOW}:{folder}", CALL_VARIABLE: call.to_json()}
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_callable"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def result_of(call: Call, folder: Path) -> Any:
    done = run(call, folder)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(MARKER)
    return decode_result(last.removeprefix(MARKER), "job-1")


def call_to(function: Any, *args: Any, code: CodeFolder = HERE, **kwargs: Any) -> Call:
    return Call.from_json(describe_call(function, args, kwargs, code, MARKER).to_json())


# ---- functions of a DAG file

DAG_FILE = '''
"""A DAG file as people write it."""
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
def needs_what_is_not_there():
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


def test_a_function_brings_what_it_uses_of_its_file(dag_file: ModuleType, folder: Path) -> None:
    call = call_to(dag_file.tidy.function, 4, code=CodeFolder(folder))
    assert result_of(call, folder) == {
        "scores": {"best": 2.0, "when": "2026-11-20", "all": [0, 3, 6]},
        "word": "big",
        "lines": "one\n    two",
        "tripled": 12,
        "text": "[1]",
    }


def test_code_travels_if_a_module_of_the_folder_is_imported(dag_file: ModuleType, folder: Path) -> None:
    assert call_to(dag_file.tidy.function, 4, code=CodeFolder(folder)).travels
    assert not call_to(dag_file.falls.function, 4, code=CodeFolder(folder)).travels
    assert not call_to(dag_file.tidy.function, 4, code=CodeFolder(folder / "elsewhere")).travels


def test_a_function_leaves_the_rest_of_its_file_behind(dag_file: ModuleType, folder: Path) -> None:
    text = call_to(dag_file.falls.function, 4, code=CodeFolder(folder)).to_json()
    assert "bad" in text
    assert not any(word in text for word in ("airflow", "LIMIT", "tripled", "@task", "pipeline"))


def test_functions_inside_a_with_block_and_inside_a_dag_function_travel(dag_file: ModuleType, folder: Path) -> None:
    assert result_of(call_to(dag_file.inside.function, 1), folder) == [4, "kept\n    as it is"]
    assert result_of(call_to(dag_file.FOUND["nested"].function, 1), folder) == 4


def test_a_function_may_call_itself(dag_file: ModuleType, folder: Path) -> None:
    plain = DAG_FILE.replace("@task\ndef counts_down", "def counts_down")
    module = load_dag_file(folder, plain, "plain")
    assert result_of(call_to(module.counts_down, 3), folder) == [3, 2, 1]
    assert result_of(call_to(dag_file.counts_down.function, 3), folder) == [3, 2, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs_airflow", "'needs_airflow' of nightly.py uses 'Variable', which needs Airflow"),
        (
            "needs_airflow_by_another_name",
            "uses 'SECRET', which needs Airflow",
        ),
        ("needs_what_is_not_there", "uses 'not_there', which its file does not define"),
        ("closes", "'pipeline.<locals>.closes' of nightly.py uses 'outer' of the function around it"),
    ],
)
def test_what_cannot_travel_is_refused_by_its_name(dag_file: ModuleType, folder: Path, name: str, message: str) -> None:
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
def test_odd_functions_of_a_dag_file_are_refused(tmp_path: Path, text: str, message: str) -> None:
    module = load_dag_file(tmp_path, f"import airflow\n{text}\n")
    with pytest.raises(SpecError, match=message.replace("*", r"\*")):
        call_to(module.f)


def test_a_file_that_was_edited_after_it_was_loaded_is_noticed(tmp_path: Path) -> None:
    module = load_dag_file(tmp_path, "import airflow\ndef f():\n    return 1\n")
    (tmp_path / "nightly.py").write_text("import airflow\n\n\ndef f():\n    return 2\n")
    with pytest.raises(SpecError, match="the file was edited after it was loaded"):
        call_to(module.f)


def test_a_decorator_of_the_files_own_stays_and_one_of_airflow_goes(tmp_path: Path) -> None:
    text = (
        "from airflow.sdk import task\nimport functools\nour_task = task\n"
        "def louder(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a) + '!'\n    return g\n"
        "@our_task\n@louder\ndef speak(word):\n    return word\n"
    )
    module = load_dag_file(tmp_path, text)
    assert result_of(call_to(module.speak.function, "hi"), tmp_path) == "hi!"


def test_a_function_of_a_module_that_imports_airflow_travels_as_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our_tasks.py").write_text("from airflow.sdk import task\n@task\ndef f(n):\n    return n + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import our_tasks  # type: ignore[import-not-found]

    assert describe_callable(our_tasks.f.function, CodeFolder(tmp_path)).source is not None
    (tmp_path / "our_tasks.py").unlink()  # so the cluster has no such module
    assert result_of(call_to(our_tasks.f.function, 1), tmp_path) == 2


def test_an_argument_of_a_class_of_the_dag_file_is_refused(dag_file: ModuleType, folder: Path) -> None:
    with pytest.raises(SpecError, match="holds 'Scores', which is defined in a file that imports Airflow"):
        call_to(dag_file.tidy.function, [dag_file.Scores(1.0)], code=CodeFolder(folder))


# ---- functions of importable modules


def test_a_function_of_a_module_is_called_by_its_name_with_its_arguments() -> None:
    call = call_to(doubled, Point(3, 1), times=5)
    assert call.function.reference == "tests.runtime.callable_parts:doubled"
    assert call.travels
    assert result_of(call, REPOSITORY) == {"x": 30, "y": 1}


def test_installed_functions_and_class_methods_can_be_called(tmp_path: Path) -> None:
    assert not call_to(json.dumps, [1]).travels
    assert result_of(call_to(json.dumps, [1]), tmp_path) == "[1]"
    assert call_to(Holder.made).function.reference == "tests.runtime.callable_parts:Holder.made"


def test_the_options_of_a_remote_function_go_along() -> None:
    assert call_to(far, 1).function.ray_task == {"num_cpus": 0.5}
    assert call_to(doubled, Point(1)).function.ray_task is None


@pytest.mark.parametrize("function", [functools.partial(doubled, Point(1)), Holder().method])
def test_what_is_bound_to_values_is_refused(function: Any) -> None:
    with pytest.raises(SpecError, match="is bound to values that cannot travel"):
        call_to(function)


@pytest.mark.parametrize("function", [Holder(), 5, None])
def test_what_is_no_function_is_refused(function: Any) -> None:
    with pytest.raises(SpecError, match="cannot be imported on a cluster"):
        call_to(function)


def test_an_argument_without_a_written_form_is_refused_by_its_place() -> None:
    with pytest.raises(SpecError, match="argument 'value' is a object"):
        call_to(returns, value=object())
    with pytest.raises(SpecError, match=r"argument 1\.\[0\] is a object"):
        call_to(returns, [object()])


class Results(Sequence[Any]):
    """What Airflow gives for the results of a mapped task."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return [Point(1), Point(2)][index]


def test_the_results_of_a_mapped_task_arrive_as_a_list() -> None:
    assert call_to(returns, Results()).load_arguments() == ([[Point(1), Point(2)]], {})


# ---- how it ends


def test_the_traceback_starts_at_the_function_and_shows_its_lines(dag_file: ModuleType, folder: Path) -> None:
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


def test_an_error_in_a_module_is_shown_without_our_frames() -> None:
    done = run(call_to(fails, 4), REPOSITORY)
    assert done.returncode == 1
    assert "tradewind/runtime" not in done.stderr
    assert done.stderr.endswith("ValueError: no good: 4\n")


@pytest.mark.parametrize(("code", "exit_code", "has_result"), [("", 0, True), ("0", 0, True), ("3", 3, False)])
def test_an_exit_is_the_functions_own(tmp_path: Path, code: str, exit_code: int, has_result: bool) -> None:
    module = load_dag_file(tmp_path, f"import sys\nimport airflow\ndef f():\n    sys.exit({code})\n", f"exits{code}")
    done = run(call_to(module.f), tmp_path)
    assert done.returncode == exit_code
    assert (f"{MARKER}null" in done.stdout) is has_result


def test_an_import_that_fails_on_the_cluster_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    try:
        module = load_dag_file(tmp_path, "import airflow\nimport only_here\ndef f():\n    return only_here\n")
    finally:
        sys.path.remove(str(tmp_path))
    (tmp_path / "only_here.py").unlink()
    done = run(call_to(module.f), tmp_path)
    assert done.returncode == 1
    assert (
        "'f' of nightly.py cannot be set up on the cluster (ModuleNotFoundError: No module named 'only_here')"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_the_result_is_a_line_of_its_own_whatever_was_printed_before(tmp_path: Path) -> None:
    module = load_dag_file(tmp_path, "import airflow\ndef f(end):\n    print('half', end=end)\n    return 1\n")
    log = tmp_path / "log"
    for end in ("", "\n"):
        with log.open("wb") as output:
            env = {**os.environ, CALL_VARIABLE: call_to(module.f, end).to_json()}
            command = [sys.executable, "-m", "tradewind.runtime.run_callable"]
            subprocess.run(command, env=env, stdout=output, check=True)
        assert log.read_text() == f"half\n{MARKER}1\n"


def test_a_program_without_a_call_says_so() -> None:
    env = {name: value for name, value in os.environ.items() if name != CALL_VARIABLE}
    command = [sys.executable, "-m", "tradewind.runtime.run_callable"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("SpecError: TRADEWIND_CALL names no call")) == (1, True)


# ---- results


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Report:
    points: list[Point]
    on: datetime.date


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ({"a": [1, 2.5, "x", True]}, {"a": [1, 2.5, "x", True]}),
        ((1, {2}), [1, [2]]),
        (
            Report([Point(1)], datetime.datetime(2026, 11, 20)),
            {"points": [{"x": 1, "y": 0}], "at": "2026-11-20T00:00:00"},
        ),
        ([Color.RED, Level.LOW], ["red", 1]),
        ({1: math.nan, Color.RED: math.inf}, {"1": None, "red": None}),
        ([datetime.timedelta(minutes=1), Path("/x")], [60.0, "/x"]),
    ],
)
def test_a_result_is_plain_json(result: Any, expected: Any) -> None:
    line = result_line(result, MARKER)
    assert "\n" not in line
    assert decode_result(line.removeprefix(MARKER), "job-1") == expected


def test_a_number_of_numpy_is_a_number() -> None:
    import numpy

    assert result_line({"loss": numpy.float32(0.5), "n": numpy.int64(3)}, "") == '{"loss": 0.5, "n": 3}'


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (object(), "returned a object, which JSON cannot hold"),
        (b"x", "returned a bytes"),
        ({(1, 2): 3}, "a mapping with a key of type tuple"),
        (
            "x" * 1_000_000,
            "returned 1,000,002 bytes of JSON, and a result may have 1,000,000: write the data",
        ),
    ],
)
def test_a_result_that_cannot_be_carried_is_refused(result: Any, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        result_line(result, MARKER)


def test_a_result_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ResultError, match="holds itself"):
        result_line(loop, MARKER)


@pytest.mark.parametrize("text", [None, "", '{"a": 1'])
def test_a_result_that_did_not_arrive_whole_is_no_result(text: str | None) -> None:
    with pytest.raises(ResultError, match="Ray job 'job-1' succeeded, but its log does not end with the result"):
        decode_result(text, "job-1")


# ---- what a job brings along


def test_a_small_call_is_a_variable_and_a_large_one_a_package_that_is_gone_afterwards() -> None:
    base = {"env_vars": {"A": "1"}, "py_modules": ["s3://x/y.zip"], "pip": ["numpy"]}
    with call_runtime_env(call_to(returns, "x"), base) as small:
        assert small["env_vars"]["A"] == "1" and '"x"' in small["env_vars"][CALL_VARIABLE]
        assert (small["py_modules"], small["pip"]) == (base["py_modules"], ["numpy"])
    with call_runtime_env(call_to(returns, "x" * MOST_BYTES_IN_VARIABLE), base) as large:
        assert len(large["env_vars"][CALL_VARIABLE]) < 100
        first, module = large["py_modules"]
        assert (first, Path(module, "call.json").is_file()) == ("s3://x/y.zip", True)
    assert not Path(module).exists()
    assert base == {"env_vars": {"A": "1"}, "py_modules": ["s3://x/y.zip"], "pip": ["numpy"]}


def test_shipping_adds_the_package_itself() -> None:
    (module,) = ship_tradewind({})["py_modules"]
    assert Path(module, "runtime", "run_callable.py").is_file()


def test_the_program_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, tradewind.runtime.run_callable, tradewind.runtime.with_secrets\n"
        "names = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'tradewind'}\n"
        "print(sorted(name for name in names if not name.startswith(('__', '_'))))\n"
    )
    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(sorted(sys.modules))"], capture_output=True, text=True
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in json.loads(done.stdout.replace("'", '"')) if name not in plain.stdout] == []
