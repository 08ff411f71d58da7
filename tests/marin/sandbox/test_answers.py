"""Functions of heavy libraries that the sandbox answers during a load, only with certain values."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, made_name, names, put, refusal, run, write_checkout
from tradewind.marin.sandbox.answers import KNOWN_FUNCTIONS
from tradewind.marin.sandbox.evaluation import evaluate


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["import regex", "from regex import regex"])
def test_regex_pattern_is_known_but_branching_on_match_refused(tmp_path: Path, imported: str) -> None:
    made = f"{imported}\nword = regex.compile(r'[a-z]+', regex.VERBOSE | regex.V1)\n"
    assert made_name(tmp_path, f"{made}name = regex.compile(f'<{{word.pattern}}>').pattern\n") == "<[a-z]+>"
    text = f"{made}name = 'a' if word.match('a') else 'b'\n{MAKE}"
    refusal(tmp_path, text, r":4 .* it needs the truth value of regex.*\.match")


@pytest.mark.parametrize(
    ("a", "b"), [(0.1 + 0.2, 0.3), (1, 1.00001), (1, 1.0001), (0, 1e-8), (0, 2e-8), (1e-9, 2e-9), (-1.0, 1.0), (7, 7)]
)
def test_numbers_are_close_where_numpy_says_so(a: float, b: float) -> None:
    is_close = KNOWN_FUNCTIONS["numpy"]["isclose"]
    assert bool(is_close(a, b)) is bool(np.isclose(a, b))
    assert bool(is_close(b, a, rtol=1e-3)) is bool(np.isclose(b, a, rtol=1e-3))
    assert bool(is_close(a, b, atol=1.0)) is bool(np.isclose(a, b, atol=1.0))


@pytest.mark.parametrize(
    "call",
    ["np.array([1, 3]) * 1_000_000_000", "10 - np.array([1, 3]) + 5", "np.array((1, 2.5)) / 3", "1 / np.array([3, 7])"],
)
def test_array_arithmetic_equals_numpy(call: str) -> None:
    real = eval(call, {"np": np})
    ours = eval(call, {"np": SimpleNamespace(**KNOWN_FUNCTIONS["numpy"])})
    assert len(ours) == len(real)
    for number, expected in zip(ours, real, strict=True):
        assert (str(number), repr(number), f"{number:.3f}") == (str(expected), repr(expected), f"{expected:.3f}")
        assert isinstance(number, int) is isinstance(expected, int) is False
        assert repr(number / 7) == repr(expected / 7)
        assert math.ceil(number / 7) == math.ceil(expected / 7)
        assert (int(number), float(number), hash(number)) == (int(expected), float(expected), hash(expected))
        assert [bool(number < 3), bool(number >= 3), bool(number == 3)] == [expected < 3, expected >= 3, expected == 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        *((f"1 if np.isclose({given}) else 2", "numpy.isclose") for given in ("[1], 1", "SIZE, 1", "2**60, 2**60 + 1")),
        *(
            (call.format("np.isclose(1, 1)"), "it needs the .* of numpy.isclose")
            for call in ("str({})", "~{}", "{} + 1", "[1, 2][{}]")
        ),
        *(
            (f"fsspec_utils.exists({path}) + 1", "it needs the .* of levanter.utils.fsspec_utils.exists")
            for path in ("'gs://bucket/a'", "'zip::data'", "SIZE")
        ),
        *(
            (f"len(np.{call})", "it needs the .* of numpy")
            for call in (
                "linspace(0, SIZE)", "linspace(0, 1, dtype=int)", "linspace(0, 1, 10**12)",
                "linspace(0, 1, num=10**12)", "geomspace([1], 2)", "logspace(0, 400, 3)",
                "arange(2**60)", "arange(0, 1, 1e-6)", "arange(1e12)",
            )
        ),
        ("versioned(number)", r"versioned\(\) is given numpy.int64\(4\)"),
        ("number // 2", "the value of numpy.int64"),
        ("number * 2**53", "the value of numpy.int64"),
        ("number * SIZE", "the value of numpy.int64"),
        ("number / 0", "the value of numpy.int64"),
        ("np.array([[1], [2]])[0] * 2", "the value of numpy.array"),
        ("list(np.array([1], dtype='int8'))", "the elements of numpy.array"),
        ("list(np.array([2**60]))", "the elements of numpy.array"),
    ],
)  # fmt: skip
def test_answer_that_is_not_certain_is_refused(tmp_path: Path, call: str, reason: str) -> None:
    text = "import numpy as np\nfrom heavy import SIZE\nfrom levanter.utils import fsspec_utils\n"
    refusal(tmp_path, f"{text}number = list(np.array([4]))[0]\nname = str({call})\n{MAKE}", rf":6 .*{reason}")


def test_fsspec_exists_checks_checkout_for_local_paths(tmp_path: Path) -> None:
    text = "from levanter.utils import fsspec_utils\nname = f\"x-{fsspec_utils.exists('data/words')}\"\n"
    assert made_name(tmp_path, text) == "x-False"
    put(tmp_path / "data/words", "a b\n")
    assert names(run(tmp_path, "a")) == [["x-True"]]


KINDS = ["tuple[heavy.Response, int | None] | tuple[None, str]", "list[heavy.Response] | None", "heavy.Response | None"]


@pytest.mark.parametrize("kind", KINDS)
def test_annotations_may_use_types_known_only_on_cluster(tmp_path: Path, kind: str) -> None:
    text = f"import dataclasses, heavy\ndef fetch(url: {kind}) -> {kind}: ...\nname = 'x'\n"
    text += f"@dataclasses.dataclass\nclass Held:\n    value: {kind}\nname = dataclasses.fields(Held)[0].name\n"
    text += f"later: {kind}\n"
    assert made_name(tmp_path, text) == "value"


def test_text_annotations_stay_unchanged(tmp_path: Path) -> None:
    text = f"from __future__ import annotations\n{EXECUTOR}value: int | None\nname = __annotations__['value']\n{MAKE}"
    write_checkout(tmp_path, a=text)
    assert names(run(tmp_path, "a")) == [["int | None"]]


def test_union_outside_annotations_is_compared(tmp_path: Path) -> None:
    text = f"import heavy\nkind = tuple[heavy.Response] | tuple[None]\nname = 'x'\n{MAKE}"
    refusal(tmp_path, text, ":3 .* it needs the equality of heavy.Response")


def test_module_failing_beside_stub_fails_for_later_files_too(tmp_path: Path) -> None:
    put(tmp_path / "src/marin/speedrun/speedrun.py", "from heavy import SIZE\nCOUNT = int(SIZE)\n")
    text = EXECUTOR + "from marin.speedrun.speedrun import default_speedrun\nname = 'x'\n" + MAKE
    write_checkout(tmp_path, a=text, b=text, c=text)
    files = [tmp_path / f"experiments/{name}.py" for name in "abc"]
    for outcome in evaluate(tmp_path, files, 20.0).values():
        assert str(outcome).startswith("src/marin/speedrun/speedrun.py:2 cannot become a DAG: it needs the number")


@pytest.mark.slow
def test_marin_imported_from_src_is_marin(tmp_path: Path) -> None:
    text = "import src.marin.processing.tokens\nfrom src.marin.processing.tokens import tokenize\n"
    text += "from src.marin.execution.executor import ExecutorStep as Same\nimport marin.processing.tokens as tokens\n"
    text += "name = f'{Same is ExecutorStep}-{tokenize is tokens.tokenize}-{src.marin.processing.tokens is tokens}'\n"
    assert made_name(tmp_path, text) == "True-True-True"


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "linspace(0.001, 0.1, 7)", "linspace(1, 2, num=5, endpoint=False)", "linspace(3, 3, 1)",
        "logspace(-5, -1, 9)", "logspace(0, 3, num=4, base=2)",
        "geomspace(1e-4, 0.3, 11)", "geomspace(1, 1000, num=4, endpoint=False)",
        "arange(5)", "arange(0.1, 1, 0.1)", "arange(10, 0, -3)",
    ],
)  # fmt: skip
def test_spaced_numbers_are_numpys_to_the_last_bit(tmp_path: Path, call: str) -> None:
    real = eval(f"np.{call}", {"np": np})
    text = f"import numpy as np\nfound = np.{call}\n"
    text += "name = ' '.join([*(float(each).hex() for each in found), *map(repr, found.tolist()), f'{len(found)}'])\n"
    expected = [*(float(each).hex() for each in real), *map(repr, real.tolist()), f"{len(real)}"]
    assert made_name(tmp_path, text) == " ".join(expected)


@pytest.mark.slow
def test_numpy_is_imported_only_for_a_file_that_calls_it(tmp_path: Path) -> None:
    """The test uses a separate process, because this one has imported numpy."""
    text = "import numpy as np\n{line}executor_main([ExecutorStep('s', None, None)])\n"
    write_checkout(tmp_path, a=EXECUTOR + text.format(line=""), b=EXECUTOR + text.format(line="np.linspace(0, 1, 3)\n"))
    code = f"""
import sys
from pathlib import Path
from tests.marin.checkouts import run
for name in ("a", "b"):
    run(Path({str(tmp_path)!r}), name)
    print("numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
