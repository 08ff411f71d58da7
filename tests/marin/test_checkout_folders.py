"""Checkout folders: links, read-only folders, two loaders, a kill, and an edit during a load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, names, put, run, write_checkout
from tradewind.marin.checkouts import checkout_of, find_given
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate

pytestmark = pytest.mark.slow

LOAD = """
import sys
from pathlib import Path
from tradewind.marin.sandbox.evaluation import evaluate
from tradewind.marin.loading import runnable_files
root = Path(sys.argv[1])
for file, outcome in evaluate(root, runnable_files(root / "experiments"), 20).items():
    print(file.name, [[step.name for step in call.steps] for call in outcome.run.calls])
"""


def in_folder(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        found[str(path)] = (stat.st_mode, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


def loading(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOAD, str(root)]
    return subprocess.Popen(command, cwd=root.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_killed_load_leaves_no_files_and_parallel_loads_agree(tmp_path: Path) -> None:
    root = tmp_path / "marin"
    waits = "import os, time\nopen('fifo').close()\nwhile os.path.exists('hold'): time.sleep(0.01)\n"
    write_checkout(root, a=f"{EXECUTOR}{waits}executor_main([ExecutorStep('a', None, None)])\n")
    os.mkfifo(root / "fifo")
    (root / "hold").write_text("")
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    killed = loading(root)
    open(root / "fifo", "w").close()  # returns when the sandbox runs the file
    before = {name: each for name, each in in_folder(root).items() if not name.endswith("fifo")}
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert {name: each for name, each in in_folder(root).items() if not name.endswith("fifo")} == before
    for path in (root, root / "experiments"):
        path.chmod(0o755)
    (root / "fifo").unlink()
    (root / "fifo").write_text("")
    (root / "hold").unlink()
    before = in_folder(root)
    first, second = (process.communicate()[0] for process in [loading(root), loading(root)])
    assert first == second and "a.py [['a']]" in first and "train_tiny.py [[" in first
    assert in_folder(root) == before


@pytest.mark.parametrize("linked", ["marin", "marin/experiments", "marin/experiments/a.py", "marin/src"])
def test_checkout_behind_links_is_found(tmp_path: Path, linked: str) -> None:
    text = EXECUTOR + "import marin.processing.tokens\nopen('data.txt').close()\n"
    write_checkout(tmp_path / "marin", a=f"{text}executor_main([ExecutorStep('a', None, None)])\n")
    (tmp_path / "marin/data.txt").write_text("")
    real, place = tmp_path / "elsewhere", tmp_path / linked
    place.rename(real)
    place.symlink_to(real)
    path = find_given("marin/experiments/a.py", str(tmp_path / "dag.py"))
    root = checkout_of(path, None)
    assert root == (tmp_path / "marin").resolve()
    outcome = evaluate(root, [path], 20)[path]
    assert isinstance(outcome, Evaluated), outcome
    assert names(outcome.run) == [["a"]] and outcome.run.file == "experiments/a.py"


@pytest.mark.parametrize("first", ["SIZE = 'one'\n", "SIZE = \n"])
def test_edit_during_load_is_noticed(tmp_path: Path, first: str) -> None:
    size = put(tmp_path / "experiments/size.py", first)
    gate, edited = tmp_path / "gate", tmp_path / "edited"
    os.mkfifo(gate)
    text = "import os\ntry:\n    from experiments.size import SIZE\nfinally:\n"
    text += "    if not os.path.exists('edited'): open('gate').read()\n"
    last = "executor_main([ExecutorStep(SIZE, None, None)])\n"
    write_checkout(tmp_path, a=EXECUTOR + text + last, b=EXECUTOR + "executor_main([])\n")

    def edit() -> None:
        with open(gate, "w"):  # opens when the file waits for it; closing ends the wait
            size.write_text("SIZE = 'two'  # edited\n")
            edited.write_text("")

    editing = threading.Thread(target=edit)
    editing.start()
    files = [tmp_path / f"experiments/{name}.py" for name in "ab"]
    outcomes = evaluate(tmp_path, files, 20)
    editing.join()
    outcome = outcomes[files[0]]
    if "one" in first:
        assert isinstance(outcome, Evaluated) and names(outcome.run) == [["two"]]
    else:
        reason = "experiments/a.py cannot become a DAG: experiments/size.py was changed while it was being loaded: "
        assert str(outcome).startswith(reason)
    assert isinstance(outcomes[files[1]], Evaluated)
    assert names(run(tmp_path, "a")) == [["two"]]
