"""Loading a file restores the process state, also after an error; the sandbox limits files."""

from __future__ import annotations

import contextvars
import decimal
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, made_name, names, refusal, run, run_text, write_checkout
from tradewind.steps import ExecutorStep

CHANGES = """
import gc, logging, os, random, sys, warnings, types
import numpy, levanter.optim, experiments.defaults
assert sys.argv == [__file__] and os.getcwd() == os.path.dirname(os.path.dirname(__file__))
assert sys.modules["__main__"].executor_main is executor_main and sys.modules["experiments.defaults"]
sys.argv += ["--force"]; sys.path.insert(0, "/nowhere"); sys.meta_path.clear(); sys.setrecursionlimit(5000)
sys.modules["put.by.hand"] = types.ModuleType("put.by.hand")
os.chdir("/"); os.environ["ADDED"] = "1"; os.environ["HOME"] = "elsewhere"; random.seed(3); gc.disable()
logging.basicConfig(level=logging.DEBUG, force=True); logging.disable(logging.CRITICAL)
logging.getLogger("tests.known").setLevel(logging.ERROR); logging.getLogger("tests.known").propagate = False
logging.getLogger("tests.new").addHandler(logging.NullHandler()); warnings.simplefilter("error")
import builtins, contextvars, decimal, locale, signal, socket, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN); socket.setdefaulttimeout(3); threading.excepthook = print
sys.settrace(lambda *args: None); sys.setprofile(lambda *args: None); sys.setswitchinterval(9)
sys.unraisablehook = print; decimal.getcontext().prec = 3; builtins.open = print
locale.setlocale(locale.LC_ALL, "C"); [each for each in contextvars.copy_context()][0].set(None)
"""


def state() -> dict[str, Any]:
    known = logging.getLogger("tests.known")
    return {
        "modules": {name: id(module) for name, module in sys.modules.items() if name.partition(".")[0] not in STDLIB},
        "sys": (list(sys.argv), list(sys.path), list(sys.meta_path), sys.getrecursionlimit(), id(sys.argv)),
        "os": (os.getcwd(), dict(os.environ)),
        "random": random.getstate(),
        "root": (logging.getLogger().level, logging.getLogger().handlers[:], logging.getLogger().manager.disable),
        "known": (known.level, known.propagate, known.handlers[:]),
        "new": logging.getLogger("tests.new").handlers[:],
        "warnings": warnings.filters[:],
        "gc": gc.isenabled(),
        "profile": (sys.getprofile(), sys.getswitchinterval()),
        "hooks": (sys.gettrace(), threading.excepthook, sys.unraisablehook, id(open), socket.getdefaulttimeout()),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGURG)],
        "context": (KNOWN.get(), decimal.getcontext().prec, locale.setlocale(locale.LC_ALL)),
    }


STDLIB = sys.stdlib_module_names
KNOWN: contextvars.ContextVar[str | None] = contextvars.ContextVar("KNOWN", default="default")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["executor_main([])", "1 / 0", "raise SystemExit(3)", "int(levanter.optim.x)"])
def test_process_state_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    real = types.ModuleType("levanter")
    for name in ("levanter", "experiments", "marin"):
        monkeypatch.setitem(sys.modules, name, real)
    KNOWN.set("ours")
    before = state()
    if end.startswith("executor_main"):
        run_text(tmp_path, f"{CHANGES}{end}\n")
    else:
        refusal(tmp_path, f"{CHANGES}{end}\n", "")
    assert state() == before


@pytest.mark.slow
def test_ci_is_unset_for_a_file_and_what_it_reads_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("SIZE", "3")
    text = "import os\nassert os.getenv('CI') is None and 'CI' not in os.environ\nassert os.environ['SIZE'] == '3'\n"
    text += "os.environ['OWN_TOKEN'] = 'x'; assert os.environ.get('OWN_TOKEN') == 'x' and os.getenv('NO', 'd') == 'd'\n"
    found = run_text(tmp_path, f"{text}executor_main([])\n")
    assert found.environment == {"CI": "true", "SIZE": "3", "OWN_TOKEN": None, "NO": None}
    assert "OWN_TOKEN" not in os.environ and os.environ["CI"] == "true"


FORBIDDEN = {
    "import sys; sys.exit()": r"it ends itself with exit\(\) before it has called executor_main",
    "exit(2)": r"it ends itself with exit\(2\)",
    "import os; os._exit(0)": r"it ends or changes this process with os._exit\(\)",
    "import socket; socket.socket()": "it opens a network connection",
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')": "it opens a network connection",
    "import socket; socket.getaddrinfo('localhost', 1)": "it opens a network connection",
    "import subprocess; subprocess.run(['true'])": "it starts a process",
    "import os; os.system('true')": "it starts a process",
    "import os; os.fork()": "it starts a process",
    "import threading; threading.Thread(target=print).start()": "it starts a thread",
    "import concurrent.futures as c; list(c.ThreadPoolExecutor().map(print, [1]))": "it starts a thread",
    "import os; os.environ['SOME_API_KEY']": "it reads the secret SOME_API_KEY",
    "import os; os.getenv('HF_TOKEN')": "it reads the secret HF_TOKEN",
    "from os import environ; environ.get('DB_PASSWORD')": "it reads the secret DB_PASSWORD",
    "import pathlib; (pathlib.Path.home() / '.netrc').read_text()": "it reads the secret file .netrc",
    "open('/home/ada/.aws/config')": "it reads the secret file config",
    "open(b'/home/ada/.netrc')": "it reads the secret file .netrc",
    "import io, pathlib; io.FileIO(pathlib.Path('.env'))": "it reads the secret file .env",
    "open('/home/ada/.cache/huggingface/token')": "it reads the secret file token",
    "open('/run/secrets/db')": "it reads the secret file db",
    "open('/proc/self/environ')": "it reads the secret file environ",
    "import os; os.environ['PGPASSWORD']": "it reads the secret PGPASSWORD",
    "import os; os.environ['AIRFLOW_CONN_DB']": "it reads the secret AIRFLOW_CONN_DB",
    "import os; os.environ['AIRFLOW__DATABASE__SQL_ALCHEMY_CONN']": "it reads the secret AIRFLOW__DATABASE__SQL",
    "import os; os.environ['SOME_URL']": "it reads the secret SOME_URL",
    "import os; os.path.expandvars('$HF_TOKEN')": "it reads the secret HF_TOKEN",
    "import ctypes; ctypes.CDLL(None)": "it calls a library of C",
    "import _thread; _thread.start_new_thread(print, ())": "it starts a thread",
    "from multiprocessing import util; util.spawnv_passfds(b'/bin/true', [b'true'], [])": "it starts a process",
    "open('experiments/new.txt', 'a')": "it writes the file new.txt",
    "import os; os.open('experiments/defaults.py', os.O_RDWR)": "it writes the file defaults.py",
    "import os; os.rename('experiments/defaults.py', 'experiments/other.py')": "it moves or changes files",
    "import os; os.truncate('experiments/defaults.py', 0)": "it moves or changes files",
    "import os; os.remove('experiments/defaults.py')": "it deletes files",
    "import shutil; shutil.rmtree('experiments')": "it deletes files",
    "import os; os.umask(0)": r"it ends or changes this process with os.umask\(\)",
    "import posix; posix.abort()": r"it ends or changes this process with os.abort\(\)",
    "import os; os.dup2(2, 1)": r"it ends or changes this process with os.dup2\(\)",
    "import os; os.chmod('experiments/defaults.py', 0)": "it moves or changes files",
    "import sqlite3; sqlite3.connect('new.db')": "it opens a database",
    "import sys; sys.addaudithook(print)": "it adds an audit hook, which cannot be removed",
    "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0))": "it changes the limits of this process",
    "import signal, threading as t; signal.pthread_kill(t.get_ident(), 9)": "it signals a process",
    "import os; os.environb[b'A'] = b'b'": "TypeError: 'mappingproxy' object does not support item assignment",
    "import posix; posix.environ[b'A'] = b'b'": "TypeError: 'mappingproxy' object does not support item assignment",
    "import tradewind.marin as m; m.marin_experiment(__file__)": "it loads Marin's files while it is itself",
    "input()": r"it calls input\(\)",
}
CAUGHT = "try:\n    {}\nexcept BaseException:\n    pass"


def is_own_error(line: str) -> bool:
    """Return whether a file that catches this line's exception may continue."""
    ends = "exit" in line and "_exit" not in line
    return ends or "environb" in line or "posix.environ" in line


@pytest.mark.slow
@pytest.mark.parametrize("around", ["{}", CAUGHT], ids=["alone", "caught"])
def test_forbidden_action_is_refused_in_one_sentence(
    around: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for name in ("SOME_API_KEY", "HF_TOKEN", "DB_PASSWORD", "PGPASSWORD", "AIRFLOW_CONN_DB"):
        monkeypatch.setenv(name, "never shown")
    monkeypatch.setenv("SOME_URL", "postgres://ada:never%20shown@host/db")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "never shown")
    for line, why in FORBIDDEN.items():
        if around == CAUGHT and is_own_error(line):
            continue
        with subtests.test(line):
            text = around.format(line) + "\nexecutor_main([])\n"
            message = str(refusal(tmp_path, text, f":[23] cannot become a DAG: {why}"))
            assert "never shown" not in message and message.count(". ") == 0
            assert (tmp_path / "experiments/defaults.py").stat().st_size
            assert not (tmp_path / "experiments/new.txt").exists()


def test_no_copy_of_the_environment_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "never shown")
    monkeypatch.setenv("SOME_URL", "postgres://ada:never%20shown@host/db")
    monkeypatch.setenv("SIZE", "3")
    text = "import os\ncopies = [dict(os.environ), os.environ.copy(), os.environb, [os.getenvb(b'HF_TOKEN')]]\n"
    text += "assert os.path.expandvars('$SIZE-${SIZE}-$NO') == '3-3-$NO' and os.environb[b'SIZE'] == b'3'\n"
    text += "executor_main([ExecutorStep('s', None, str(copies))])\n"
    (step,) = run_text(tmp_path, text).calls[0].steps
    assert isinstance(step, ExecutorStep) and "SIZE" in step.config and "HF_TOKEN" not in step.config
    assert "never" not in step.config


def test_terminal_control_characters_are_escaped(tmp_path: Path) -> None:
    error = refusal(tmp_path, "raise ValueError('\\x1b[2J \\x9b31m')\n", ":2 ")
    assert str(error).endswith(r"ValueError: \x1b[2J \x9b31m")
    assert error.reason is not None and error.reason.text == r"ValueError: \x1b[2J \x9b31m"


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop",
    [
        "while True: pass",
        "import time\ntime.sleep(1000)",
        "for n in range(3):\n    try:\n        while True: abs(1)\n    except BaseException: pass",
        "for n in 1, 2:\n  try:\n    for m in 1, 2:\n      try:\n        while 1: abs(1)\n      except: 1\n  except: 2",
        "for n in range(3):\n    try:\n        while True: abs(1)\n    finally: continue",
        "import contextlib\nwith contextlib.suppress(BaseException):\n    while True: abs(1)",
        "import contextlib, os, threading, time\nbegun = time.monotonic()\nwith contextlib.ExitStack() as stack:\n"
        "    stack.callback(lambda: time.monotonic() > begun + 20 and os.mkdir('went on'))\n"
        "    threading.Event().wait(25)",
    ],
)
def test_endless_file_is_stopped_at_time_limit(tmp_path: Path, loop: str) -> None:
    text = f"{loop}\nimport os\nos.mkdir('went on')\n"
    refusal(tmp_path, text, r":?\d* cannot become a DAG: it does not end: after 0.2 s", limit_s=0.2)
    assert "suppress" in loop or not (tmp_path / "went on").exists()


def test_other_threads_see_real_modules_during_sandbox_run(tmp_path: Path) -> None:
    waits = "import numpy, os, time\nos.makedirs('begun', exist_ok=True)\n"
    waits += "while not os.path.exists('seen'): time.sleep(0.01)\n"
    begun, seen = tmp_path / "begun", tmp_path / "seen"

    def look() -> None:
        while not begun.exists():
            time.sleep(0.01)
        import numpy

        with socket.socket():
            seen.write_text(str(numpy.array([1]).sum()))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    run_text(tmp_path, f"{waits}executor_main([])\n")
    thread.join()
    assert seen.read_text() == "1"


@pytest.mark.slow
def test_concurrent_loads_wait_for_each_other(tmp_path: Path) -> None:
    files = [f"a{number}" for number in range(4)]
    write_checkout(
        tmp_path, **{name: f"{EXECUTOR}import time\ntime.sleep(0.02)\nname = {name!r}\n{MAKE}" for name in files}
    )
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda name: names(run(tmp_path, name)), files)
    assert list(found) == [[[name]] for name in files]


def test_late_import_of_function_finds_its_own_sandbox(tmp_path: Path) -> None:
    text = "def later(config):\n    from levanter.own_name import Config\n    return Config(lr=1)\n"
    before = set(sys.modules)
    (step,) = run_text(tmp_path, f"{text}executor_main([ExecutorStep('s', later, None)])\n").calls[0].steps
    assert type(step.fn(None)).__name__ == "Stub"  # type: ignore[union-attr,misc]
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] not in STDLIB | {"tradewind"}}


PREFIX_READS = ["os.environ['MARIN_PREFIX']", "os.environ.get('MARIN_PREFIX')", "os.getenv('MARIN_PREFIX', 'x')"]


@pytest.fixture
def no_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MARIN_PREFIX", "TRADEWIND_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("no_prefix")
@pytest.mark.parametrize("variable", ["MARIN_PREFIX", "TRADEWIND_PREFIX"])
@pytest.mark.parametrize("read", PREFIX_READS)
def test_file_reads_prefix_from_either_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, read: str
) -> None:
    text = f"import os\nname = os.path.join({read}, 'a')\n"
    refusal(tmp_path, text + MAKE, ":3 .* it reads MARIN_PREFIX, which is not set where")
    for value in ("gs://one", "gs://two"):
        monkeypatch.setenv(variable, value)
        assert made_name(tmp_path, text) == f"{value}/a"


@pytest.mark.usefixtures("no_prefix")
def test_branching_on_presence_of_prefix_variable_is_refused(tmp_path: Path) -> None:
    text = f"import os\nname = 'a' if 'MARIN_PREFIX' in os.environ else 'b'\n{MAKE}"
    refusal(tmp_path, text, ":3 .* it reads MARIN_PREFIX")
