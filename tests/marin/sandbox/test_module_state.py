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

from tests.marin.checkouts import EXECUTOR, names, run, write_checkout
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
def test_what_is_assigned_in_a_module_outlives_no_load(tmp_path: Path, line: str, end: str) -> None:
    looks = EXECUTOR + "import json, logging, os, pathlib, random, string, sys\n" + f"assert {ASSIGNED[line]}\n"
    write_checkout(
        tmp_path, b=f"{HEAD}{line}\n{end}\n", a=looks + "executor_main([])\n", c=looks + "executor_main([])\n"
    )
    evaluate(tmp_path, [tmp_path / "experiments/c.py"], 20)
    before = of_process()
    outcomes = evaluate(tmp_path, [tmp_path / f"experiments/{name}.py" for name in "bac"], 20)
    assert of_process() == before
    told = {file.stem: isinstance(outcome, Evaluated) or str(outcome) for file, outcome in outcomes.items()}
    assert told["a"] is True and told["c"] is True
    assert told["b"] is True if end.startswith("exec") else "ZeroDivisionError" in str(told["b"])


def test_assignment_in_newly_imported_module_ends_with_load(tmp_path: Path) -> None:
    assert "poplib" not in sys.modules
    looks = "assert __import__('poplib').POP3 is not print"
    write_checkout(
        tmp_path,
        a=f"{EXECUTOR}import poplib; poplib.POP3 = print\nexecutor_main([])\n",
        b=f"{EXECUTOR}{looks}\nexecutor_main([])\n",
    )
    outcomes = evaluate(tmp_path, [tmp_path / f"experiments/{name}.py" for name in "ab"], 20)
    assert all(isinstance(outcome, Evaluated) for outcome in outcomes.values())


def test_the_bytes_of_the_environment_are_put_back(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    with preserved_process_state() as for_file, for_file(ModuleSandbox(tmp_path), []):
        posix.environ[b"ADDED"] = b"1"
    assert b"ADDED" not in posix.environ


def test_module_patch_by_helper_applies_to_each_importing_file(tmp_path: Path) -> None:
    helper = "import json\njson.JSONEncoder.default = lambda self, value: 'helped'\n"
    uses = EXECUTOR + "import experiments.helper, json\nname = json.loads(json.dumps({1: ExecutorStep}))['1']\n"
    alone = EXECUTOR + "import json\ntry: name = json.dumps(ExecutorStep)\nexcept TypeError: name = 'plain'\n"
    end = "executor_main([ExecutorStep(name, None, None)])\n"
    write_checkout(tmp_path, a=uses + end, b=uses + end, c=alone + end, d=uses + end, helper=helper)
    outcomes = evaluate(tmp_path, [tmp_path / f"experiments/{name}.py" for name in "abcd"], 20)
    made = [outcome for outcome in outcomes.values() if isinstance(outcome, Evaluated)]
    assert [names(each.run) for each in made] == [[["helped"]], [["helped"]], [["plain"]], [["helped"]]]


def test_what_modules_keep_themselves_stays(tmp_path: Path) -> None:
    text = "import mimetypes, tempfile, platform\nmimetypes.guess_type('a.txt'); platform.uname()\n"
    text += "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor\n"
    write_checkout(tmp_path, a=EXECUTOR + text + "executor_main([])\n")
    run(tmp_path, "a")
    futures = sys.modules["concurrent.futures"]
    assert isinstance(vars(futures).get("thread"), types.ModuleType) and futures.ThreadPoolExecutor


def test_a_timer_of_airflows_is_as_before(tmp_path: Path) -> None:
    heard: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    try:
        for line, begun_s in (
            ("signal.alarm(0)", 300.0),
            ("signal.setitimer(0, 0.3)", 0.0),
            ("signal.alarm(900)", 300.0),
        ):
            signal.setitimer(signal.ITIMER_REAL, begun_s)
            write_checkout(tmp_path, a=f"{EXECUTOR}import signal\n{line}\nexecutor_main([])\n")
            run(tmp_path, "a")
            left_s, interval_s = signal.getitimer(signal.ITIMER_REAL)
            assert (left_s > 0) == (begun_s > 0) and left_s <= begun_s and interval_s == 0, line
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert heard == [] and time.monotonic() > 0


def test_module_named_like_stdlib_beside_file_is_refused(tmp_path: Path) -> None:
    text = f"{EXECUTOR}import statistics\nexecutor_main([])\n"
    write_checkout(tmp_path, a=text, b=text.replace("import statistics", "from statistics import mean"), deep__a=text)
    run(tmp_path, "a")
    for name in ("statistics", "tradewind"):
        (tmp_path / f"experiments/{name}.py").write_text("")
    for file in ("a", "b"):
        with pytest.raises(
            RefusedFileError, match="^experiments/[ab].py:2 .* it imports statistics, which is a module of P"
        ):
            run(tmp_path, file)
    run(tmp_path, "deep/a")
