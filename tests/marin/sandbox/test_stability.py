"""A file gives the same steps at every parse; otherwise the sandbox reports the line that varies."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, made_name, names, put, refusal, run, run_text, write_checkout
from tradewind.marin import RefusedFileError
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate

pytestmark = pytest.mark.slow

UNSTABLE = {
    "datetime": "from datetime import datetime\nname = datetime.now().strftime('%f')\n",
    "time": "import time\nname = str(time.time())\n",
    "uuid": "import uuid\nname = uuid.uuid4().hex\n",
    "chance": "import random\nname = str(random.random())\n",
    "a hash": "\nname = str(hash('text'))\n",
    "the first digits of a hash": "\nname = str(abs(hash('text')))[:5]\n",
    "the last digit of a hash": "\nname = str(hash('text') % 2)\n",
    "the day": "from datetime import date\nname = str(date.today())\n",
    "the month": "import datetime\nname = str(datetime.date.today().month)\n",
    "the day of the week": "import datetime as d\nname = d.datetime.now(tz=d.UTC).strftime('%a')\n",
    "the hour": "from datetime import datetime\nname = str(datetime.today().hour)\n",
    "the minute in UTC": "from datetime import datetime\nname = str(datetime.utcnow().minute)\n",
    "the day by time": "import time\nname = time.strftime('%Y-%m-%d')\n",
    "the hour by time": "import time\nname = str(time.localtime().tm_hour)\n",
    "the minute by time": "import time\nname = str(time.gmtime(None).tm_min)\n",
    "the year by time": "import time\nname = time.ctime()[-4:]\n",
    "the year by a tuple": "import time\nname = time.asctime()[-4:]\n",
    "the day in seconds": "import time\nname = str(int(time.time()) // 86400)\n",
    "the day in nanoseconds": "import time\nname = str(time.time_ns() // 86_400_000_000_000)\n",
    "the process": "import os\nname = str(os.getpid())\n",
    "the order of a set": "\nname = '-'.join({'a', 'b', 'c'})\n",
    "the order of a set that is made": "\nname = '-'.join(set('abc') | {'d'})\n",
    "the order of a comprehension": "\nname = '-'.join({letter for letter in 'abc'} - {'d'})\n",
    "the order of a frozen set": "\nname = str(frozenset('abc')).replace('\\'', '')\n",
    "the first of a set": "\nname = {'a', 'b'}.pop()\n",
    "the machine": "import socket\nname = socket.gethostname()\n",
    "how large the machine is": "import os\nname = str(os.cpu_count())\n",
    "the order of a folder": "import os\nname = '-'.join(os.listdir('.'))\n",
}


@pytest.mark.parametrize("kind", UNSTABLE)
def test_step_name_that_changes_between_runs_is_refused(tmp_path: Path, kind: str) -> None:
    text = f"{UNSTABLE[kind]}name = 'x-' + name\n{MAKE}"
    refusal(tmp_path, text, r":3 .* evaluated twice, a step is called 'x-.*', then .* fixed value\.$")


def test_set_without_use_of_its_order_is_accepted(tmp_path: Path) -> None:
    text = """
        seen, sizes, empty = {"a", "b"}, {1, 2, 3}, set()
        seen |= {"c"}
        empty.add("a")
        assert type(seen) is set and isinstance(seen, set) and isinstance(seen | {"d"}, set) and "c" in seen
        assert seen == set("abc") and set("ab") < seen and seen - {"a"} == seen & {"b", "c"} == set("bc")
        assert {"d"}.union(seen) == {*"abcd"} and hash(frozenset("ab")) == hash(frozenset("ba"))
        assert seen.copy().pop() in seen and len(set("abc") ^ {"a"}) == 2 and set[int] and not set()
        name = f"{sorted(seen)} {list(sizes)} {empty} {set()} {frozenset()} {max(seen)}"
    """
    put(tmp_path / "experiments/helper.py", text)
    name = made_name(tmp_path, "from experiments.helper import name\n")
    assert name == "['a', 'b', 'c'] [1, 2, 3] {'a'} set() frozenset() c"


@pytest.mark.parametrize(
    "made", ["[]; config.append(config)", "{}; config['a'] = config", "{'a': versioned(Broken())}", "Endless()"]
)
def test_uninspectable_step_values_refuse_only_their_file(tmp_path: Path, made: str) -> None:
    text = EXECUTOR + "import dataclasses, time\nclass Broken:\n    def __repr__(self): raise ValueError('no text')\n"
    text += "@dataclasses.dataclass\nclass Endless:\n    a: int = 1\n    def __getattribute__(self, name):\n"
    text += "        time.sleep(10)\n"
    text += f"config = {made}\nexecutor_main([ExecutorStep('s', None, config)])\n"
    write_checkout(tmp_path, a=text, b=EXECUTOR + "executor_main([ExecutorStep('s', None, None)])\n")
    files = [tmp_path / f"experiments/{name}.py" for name in "ab"]
    broken, whole = evaluate(tmp_path, files, 3.0).values()
    assert any(
        why in str(broken) for why in ("its steps cannot be inspected: ", "config.a is versioned and has no text: no ")
    )
    assert isinstance(whole, Evaluated)


def test_fixed_time_is_accepted(tmp_path: Path) -> None:
    text = """
        import datetime, os, time
        from dataclasses import dataclass, field
        from datetime import date, datetime as when

        @dataclass
        class Dated:
            day: date = field(default_factory=date.today)

        made = when(2025, 1, 2)
        assert isinstance(made, when) and isinstance(when.now(), when) and isinstance(Dated().day, date)
        assert isinstance(made, date) and issubclass(when, date) and not isinstance(date.today(), when)
        assert type(made).__name__ == "datetime" and made < when.now() and made < when.max
        given = [when.fromisoformat("2025-01-02"), when.strptime("2025", "%Y"), date(2025, 1, 2), when.fromtimestamp(0)]
        given += [time.strftime("%Y", time.gmtime(0)), time.gmtime(0), time.ctime(0), time.asctime(time.gmtime(0))]
        name = str([made, *given])
    """
    put(tmp_path / "experiments/helper.py", text)
    assert "2025, 1, 2" in made_name(tmp_path, "from experiments.helper import name\n")


def test_refusal_names_user_line_not_stdlib_internals(tmp_path: Path) -> None:
    text = "import dataclasses, time\n@dataclasses.dataclass\nclass A:\n    b: int = 1\n\nname = str(time.time())\n"
    refusal(tmp_path, text + MAKE, ":7 .* evaluated twice")


def test_clock_read_by_imported_helper_is_refused_at_its_line(tmp_path: Path) -> None:
    put(tmp_path / "experiments/stamp.py", "import time\n\nNOW = time.time_ns()\n")
    text = "from experiments.stamp import NOW\nexecutor_main([ExecutorStep(f'x-{NOW}', None, None)])\n"
    write_checkout(tmp_path, a=EXECUTOR + text)
    with pytest.raises(RefusedFileError, match=r"^experiments/stamp.py:3 .* \(loading experiments/a.py\)"):
        run(tmp_path, "a")


def test_clock_read_by_garbage_collection_is_not_blamed(tmp_path: Path) -> None:
    threshold = gc.get_threshold()
    gc.callbacks.append(_read_clock)
    gc.set_threshold(1)
    try:
        test_clock_read_by_imported_helper_is_refused_at_its_line(tmp_path)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(_read_clock)


def _read_clock(phase: str, info: dict[str, int]) -> None:
    time.perf_counter()


@pytest.mark.parametrize("config", ["versioned(time.time())", "[{'a': versioned([time.time()])}]"])
def test_unstable_version_is_refused_but_unversioned_value_not(tmp_path: Path, config: str) -> None:
    text = "import time\nexecutor_main([ExecutorStep('s', None, {})])\n"
    line = r":3 .* step 's' has another version or path.*, or take it from run_param\(\)\.$"
    refusal(tmp_path, text.format(config), line)
    assert names(run_text(tmp_path, text.format("time.time()"))) == [["s"]]


def test_varying_number_of_calls_is_refused(tmp_path: Path) -> None:
    text = "import time\nfor _ in range(2 + time.time_ns() // 1000 % 7919):\n    executor_main([])\n"
    refusal(tmp_path, text, r":3 .* executor_main is called \d+ times, then \d+")


def test_mutation_of_shared_helper_does_not_reach_other_files(tmp_path: Path) -> None:
    put(tmp_path / "experiments/shared.py", "WEIGHTS = {'a': 1}\n")
    text = EXECUTOR + "from experiments.shared import WEIGHTS\nWEIGHTS['{0}'] = 2\n"
    text += "executor_main([ExecutorStep('-'.join(WEIGHTS), None, None)])\n"
    write_checkout(tmp_path, **{name: text.format(name) for name in "xyz"})
    files = [tmp_path / f"experiments/{name}.py" for name in "xyz"]
    for _ in range(2):
        outcomes = evaluate(tmp_path, files, 20.0).values()
        assert [names(each.run)[0] for each in outcomes if isinstance(each, Evaluated)] == [["a-x"], ["a-y"], ["a-z"]]
