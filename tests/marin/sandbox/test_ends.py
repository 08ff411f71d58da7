"""A file that ends itself does not affect other files; a user's Ctrl-C still ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, STEP, made_name, refusal, run, write_checkout
from tradewind.marin import marin_experiments

pytestmark = pytest.mark.slow

CALL = "executor_main(steps=[step])\n"
FILLED_IN = """
from dataclasses import dataclass
made = []
@dataclass
class Config:
    a: int = 1
    def __post_init__(self):
        made.append(1)
        if len(made) > 1:
            raise ERROR
step = ExecutorStep("made", None, Config())
"""
SHOWN = """
class Value:
    def __repr__(self):
        raise ERROR
step = ExecutorStep("made", None, versioned(Value()))
"""
ERRORS = {
    "End": "type('End', (BaseException,), {'__module__': 'elsewhere'})",
    "GeneratorExit": "GeneratorExit",
    "SystemExit": "SystemExit(3)",
    "KeyboardInterrupt": "KeyboardInterrupt",
}
ENDS = {
    f"{error} {when}": text.replace("ERROR", made)
    for error, made in ERRORS.items()
    for when, text in (
        ("as it is loaded", "raise ERROR\n"),
        ("when its config is filled in", FILLED_IN),
        ("when its values are shown", SHOWN),
    )
    if (error, when) != ("SystemExit", "as it is loaded")
}
ENDLESS = "while True:\n    pass\n"


@pytest.mark.parametrize("end", ENDS)
def test_exception_refuses_only_its_file(tmp_path: Path, end: str) -> None:
    text = EXECUTOR + STEP + ENDS[end] + CALL
    write_checkout(tmp_path, b=text, c=EXECUTOR + STEP + CALL)
    found = marin_experiments(tmp_path / "experiments", prefix="gs://b", exclude=["tutorials/*"])
    assert [dag.dag_id for dag in found] == ["c"]
    (refused,) = found.refused
    assert refused.reason is not None and refused.reason.place is not None
    assert refused.reason.place.file == "experiments/b.py"
    assert end.partition(" ")[0] in str(refused)
    assert ("cannot be inspected" in str(refused)) == (end.endswith("are shown"))


def test_error_with_failing_text_is_named_by_class(tmp_path: Path) -> None:
    text = "class E(Exception):\n    def __str__(self):\n        raise GeneratorExit\nraise E()\n"
    refusal(tmp_path, text, ":5 cannot become a DAG: E$")


def _exit(number: int, frame: Any) -> None:
    sys.exit(5)


@pytest.mark.parametrize(
    ("number", "handler", "error"),
    [(signal.SIGINT, signal.default_int_handler, KeyboardInterrupt), (signal.SIGTERM, _exit, SystemExit)],
)
@pytest.mark.parametrize("text", [ENDLESS, SHOWN.replace("raise ERROR", "while True: pass")])
def test_a_signal_ends_the_process_while_a_file_is_loaded(
    tmp_path: Path, number: signal.Signals, handler: Callable[..., Any], error: type[BaseException], text: str
) -> None:
    write_checkout(tmp_path, a=EXECUTOR + STEP + text + CALL)
    before = signal.signal(number, handler)
    sender = threading.Thread(target=_signal_once_in, args=(tmp_path / "experiments" / "a.py", number))
    try:
        sender.start()
        with pytest.raises(error):
            run(tmp_path, "a")
        assert signal.getsignal(number) is handler
    finally:
        sender.join()
        signal.signal(number, before)


def _signal_once_in(file: Path, number: signal.Signals) -> None:
    """Signal this process while its main thread executes the file, since Python ignores exceptions in a finalizer."""
    main = threading.main_thread().ident
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        frame = sys._current_frames()[main]
        if frame.f_code.co_filename == str(file):
            return os.kill(os.getpid(), number)
        time.sleep(0.01)


RECURSIONS = {
    "in_python": "def f(): return f()\nf()\n",
    "in_repr": "class A:\n    def __repr__(self): return repr(self)\nrepr(A())\n",
    "in_sorted": "def f(x): return sorted([x], key=f)\nf(1)\n",
    "in_values": "x = []\nfor _ in range(100_000): x = [x]\nrepr(x)\n",
}


def test_endless_recursion_refuses_file_without_killing_process(tmp_path: Path) -> None:
    raised = "from sys import setrecursionlimit\nsetrecursionlimit(10**7)\n"
    write_checkout(tmp_path, **{name: EXECUTOR + STEP + raised + text + CALL for name, text in RECURSIONS.items()})
    code = (
        "import sys, threading\nfrom tradewind.marin import marin_experiments\nbefore = sys.getrecursionlimit()\n"
        f"found = marin_experiments({str(tmp_path / 'experiments')!r}, prefix='gs://b')\n"
        "assert sys.getrecursionlimit() == before\n"
        "print([dag.dag_id for dag in found], *found.refused, sep='\\n')\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "CI"}  # a line about CI would follow
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    dags, *refused = done.stdout.splitlines()
    assert dags == "['tutorials.train_tiny']"
    assert len(refused) == len(RECURSIONS) and all("RecursionError" in line for line in refused)


def test_recursion_limit_set_by_file_applies_within_safe_bound(tmp_path: Path) -> None:
    text = "import sys\nsys.setrecursionlimit(5000)\ndef f(n): return n and 1 + f(n - 1)\nname = str(f(2000))\n"
    assert made_name(tmp_path, text) == "2000"
