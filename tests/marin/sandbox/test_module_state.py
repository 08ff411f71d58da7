"""Assignments of a file to shared modules affect this file only."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import posix
import signal
import string
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, names, run, run_text, write_checkout
from tradewind.marin import RefusedFileError
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate
from tradewind.marin.sandbox.import_map import ModuleSandbox
from tradewind.marin.sandbox.process_state import preserved_process_state
from tradewind.steps import ExecutorStep

pytestmark = pytest.mark.slow

ASSIGNED = {
    "json.dumps = print": "json.dumps is not print",
    "json.JSONEncoder.default = lambda self, value: 1": "json.JSONEncoder.default.__module__ == 'json.encoder'",
    "setattr(pathlib.Path, 'exists', lambda self: True)": "not pathlib.Path('/nowhere').exists()",
    "pathlib.Path.more = 3": "not hasattr(pathlib.Path, 'more')",
    "string.digits = 'x'; del string.hexdigits; string.more = 3": "string.digits[0] == '0' and string.hexdigits",
    "logging.Logger.info = print": "logging.Logger.info is not print",
    "os.getcwd = print; os.path.join = print": "os.path.join('a', 'b') == 'a/b' and os.getcwd()",
    "sys.modules['os'].environ = {}; sys.getsizeof = 3": "os.environ and callable(sys.getsizeof)",
    "sys.modules['posix'].environ[b'ADDED'] = b'1'": "b'ADDED' not in sys.modules['posix'].environ",
    "import wave; wave.open = print": "__import__('wave').open is not print",
    "random.seed(3); random.random = lambda: 4": "random.random() != 4",
    "ExecutorStep.__add__ = print": "not hasattr(ExecutorStep, '__add__')",
}
HEAD = EXECUTOR + "import json, logging, os, pathlib, random, string, sys\n"


def of_process() -> dict[str, Any]:
    modules = (json, os, os.path, string, pathlib, logging, sys, sys.modules["random"])
    owners = (*modules, json.JSONEncoder, pathlib.Path, logging.Logger, ExecutorStep)
    return {
        **{f"{owner}.{name}": id(value) for owner in owners for name, value in vars(owner).items() if name[0] != "_"},
        **{f"{module} has": len(dir(module)) for module in owners},
        "posix": dict(posix.environ),
        "add": hasattr(ExecutorStep, "__add__"),
    }


@pytest.mark.parametrize("line", ASSIGNED)
@pytest.mark.parametrize("end", ["executor_main([])", "1 / 0"])
def test_assignment_in_shared_module_ends_with_load(tmp_path: Path, line: str, end: str) -> None:
    checks = f"{HEAD}assert {ASSIGNED[line]}\nexecutor_main([])\n"
    write_checkout(tmp_path, b=f"{HEAD}{line}\n{end}\n", a=checks, c=checks)
    evaluate(tmp_path, [tmp_path / "experiments/c.py"], 20)
    before = of_process()
    outcomes = evaluate(tmp_path, [tmp_path / f"experiments/{name}.py" for name in "bac"], 20)
    assert of_process() == before
    changing, *checking = outcomes.values()
    assert all(isinstance(outcome, Evaluated) for outcome in checking)
    assert isinstance(changing, Evaluated) if end.startswith("exec") else "ZeroDivisionError" in str(changing)


def test_assignment_in_newly_imported_module_ends_with_load(tmp_path: Path) -> None:
    assert "poplib" not in sys.modules
    lines = {"a": "import poplib; poplib.POP3 = print", "b": "assert __import__('poplib').POP3 is not print"}
    write_checkout(tmp_path, **{name: f"{EXECUTOR}{line}\nexecutor_main([])\n" for name, line in lines.items()})
    outcomes = evaluate(tmp_path, [tmp_path / f"experiments/{name}.py" for name in "ab"], 20)
    assert all(isinstance(outcome, Evaluated) for outcome in outcomes.values())


def test_environment_bytes_are_restored(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    with preserved_process_state() as for_file, for_file(ModuleSandbox(tmp_path), []):
        posix.environ[b"ADDED"] = b"1"
    assert b"ADDED" not in posix.environ


def test_module_patch_by_helper_applies_to_each_importing_file(tmp_path: Path) -> None:
    helper = "import json\njson.JSONEncoder.default = lambda self, value: 'helped'\n"
    uses = EXECUTOR + "import experiments.helper, json\nname = json.loads(json.dumps({1: ExecutorStep}))['1']\n"
    alone = EXECUTOR + "import json\ntry: name = json.dumps(ExecutorStep)\nexcept TypeError: name = 'plain'\n"
    write_checkout(tmp_path, a=uses + MAKE, b=uses + MAKE, c=alone + MAKE, d=uses + MAKE, helper=helper)
    outcomes = evaluate(tmp_path, [tmp_path / f"experiments/{name}.py" for name in "abcd"], 20)
    made = [names(outcome.run)[0][0] for outcome in outcomes.values() if isinstance(outcome, Evaluated)]
    assert made == ["helped", "helped", "plain", "helped"]


def test_state_of_the_modules_themselves_stays(tmp_path: Path) -> None:
    text = "import mimetypes, tempfile, platform\nmimetypes.guess_type('a.txt'); platform.uname()\n"
    text += "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor\n"
    run_text(tmp_path, f"{text}executor_main([])\n")
    futures = sys.modules["concurrent.futures"]
    assert isinstance(vars(futures).get("thread"), types.ModuleType) and futures.ThreadPoolExecutor


def test_airflow_timer_is_restored(tmp_path: Path) -> None:
    signals: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: signals.append(number))
    try:
        for line, before_s in (("alarm(0)", 300.0), ("setitimer(0, 0.3)", 0.0), ("alarm(900)", 300.0)):
            signal.setitimer(signal.ITIMER_REAL, before_s)
            run_text(tmp_path, f"import signal\nsignal.{line}\nexecutor_main([])\n")
            left_s, interval_s = signal.getitimer(signal.ITIMER_REAL)
            assert (left_s > 0) == (before_s > 0) and left_s <= before_s and interval_s == 0, line
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert signals == [] and time.monotonic() > 0


def test_module_named_like_stdlib_beside_file_is_refused(tmp_path: Path) -> None:
    text = f"{EXECUTOR}import statistics\nexecutor_main([])\n"
    write_checkout(tmp_path, a=text, b=text.replace("import statistics", "from statistics import mean"), deep__a=text)
    run(tmp_path, "a")
    for name in ("statistics", "tradewind"):
        (tmp_path / f"experiments/{name}.py").write_text("")
    for file in ("a", "b"):
        line = "^experiments/[ab].py:2 .* it imports statistics, which is a module of P"
        with pytest.raises(RefusedFileError, match=line):
            run(tmp_path, file)
    run(tmp_path, "deep/a")
