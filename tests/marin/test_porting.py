"""Verdicts of `tradewind port`: loading files, and the edits that its reasons lead to."""

from __future__ import annotations

import logging
import re
import signal
from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, STEP, put, run_text, write_checkout
from tradewind.marin import MarinFileWarning, RefusedFileError, marin_experiments
from tradewind.marin.porting import PortedFile, PortOptions, PortVerdict, port

pytestmark = pytest.mark.slow

MAIN = "executor_main(steps=[step])\n"
END = f"{STEP}{MAIN}"
BEGIN = f"from dataclasses import dataclass\n{EXECUTOR}"
MOVE = "move this into a step's function"
FIX = "replace what only the cluster knows by a fixed value"

EDITS = {
    "named": (
        "import datetime\nname = f'run-{datetime.datetime.now()}'",
        "replace what this line reads by a fixed text",
    ),
    "named_by_the_day": ("import datetime\nname = f'run-{datetime.date.today()}'", "replace .* by a fixed text"),
    "ray_task": ("import ray\n@ray.remote\ndef work(): ...\nwork.remote()", MOVE),
    "ray_get": ("import ray\nray.init()", MOVE),
    "network": ("import socket\nsocket.socket()", MOVE),
    "process": ("import os\nos.system('true')", MOVE),
    "written": ("open('notes.txt', 'w')", MOVE),
    "called_in_c": ("import ctypes\nctypes.CDLL(None)", MOVE),
    "of_a_type": ("import heavy\ntype(heavy.SIZE)", FIX),
    "secret": ("import os\nos.environ['HF_TOKEN']", r"secrets=\{'HF_TOKEN': 'projects/PROJECT/secrets/SECRET'\}"),
    "secret_not_set": ("import os\nos.environ['NO_SUCH_API_KEY']", r"secrets=\{'NO_SUCH_API_KEY': "),
    "secret_file": ("open('/nowhere/.netrc')", MOVE),
    "exited": ("exit(3)", "or call executor_main before it"),
    "exited_at_once": ("import os\nos._exit(0)", "^remove this line$"),
    "input": ("input('which?')", "replace this by the answer"),
    "arguments": (
        "import draccus\n@dataclass\nclass Main:\n    size: int\n@draccus.wrap()\ndef main(config: Main): ...\nmain()",
        "give each field of that config a default",
    ),
    "hub": (
        "from transformers import AutoTokenizer\nsize = len(AutoTokenizer.from_pretrained('gpt2'))",
        "replace this by the hub's answer",
    ),
    "tokenizer": (
        "from levanter.compat.hf_checkpoints import load_tokenizer\nload_tokenizer('users/own')",
        "set HF_HUB_CACHE, where Airflow parses its DAG files, to a Hugging Face cache",
    ),
    "prefix": ("import os\nos.environ['MARIN_PREFIX']", "^set it, or TRADEWIND_PREFIX, where Airflow parses"),
    "data_file": ("open('marin/words.txt')", r"write its path from the checkout's root, .*: marin/words\.txt$"),
    "unknown_version": ("import haliax\nversioned(haliax.size)", FIX),
    "unknown_identity": ("import haliax\nsame = haliax.get() is None", FIX),
    "unknown_attribute": ("import haliax\nhasattr(haliax.one, 'two')", FIX),
    "variable": ("import os\nos.environ['NOT_SET_HERE']", r"get\('NOT_SET_HERE', \.\.\.\), or set NOT_SET_HERE"),
    "versioned_clock": ("import time\nnow = time.time()", r"versioned\(run_param\('NAME'\)\)"),
    "counted": ("import os\ncount = os.urandom(2)[0] + os.urandom(2)[1]", "replace what this line reads by a fix"),
    "matched": ("import heavy\nmatch heavy.SIZE:", FIX),
    "unknown": ("import haliax\nif haliax.fast:", FIX),
    "large": ("executor_main(steps=[ExecutorStep(f's{n}', None, None) for n in range(12)])", "^write most_steps=12"),
}
"""File -> its text up to the line at fault, and the edit of that line."""
REST = {
    **dict.fromkeys(("named", "named_by_the_day"), MAKE),
    "versioned_clock": "executor_main(steps=[ExecutorStep('a', None, {'at': versioned(now)})])\n",
    "counted": "executor_main(steps=[ExecutorStep(f'a{n}', None, None) for n in range(count)])\n",
    "matched": f"    case None: ...\n{END}",
    "unknown": f"    pass\n{END}",
    "large": "",
}
"""The lines after it, if they are not ``END``."""
CANNOT = {
    "no_python": ("executor_main(steps=[\n", "SyntaxError"),
    "no_module": (f"import marin.gone\n{END}", "No module named 'marin.gone': neither the checkout"),
    "deep": (f"x = {'-' * 50_000}1\n{END}", "deep.py has an expression that nests too deep to be compiled"),
    "digits": (
        "executor_main(steps=[ExecutorStep('s', None, {'a': versioned(10**5000)})])\n",
        "step 's': config.a is versioned and has no text: Exceeds the limit",
    ),
    "breaks": (f"[][0]\n{END}", "IndexError"),
    "hidden_fields": (
        f"step = ExecutorStep('a', None, __import__('unheard').Config(this_output_path()))\n{MAIN}",
        "its fields, and with them the step's version, are not known",
    ),
    "own_end": (f"raise type('End', (BaseException,), {{}})('over')\n{END}", "End: over"),
    "end_of_generator": (f"raise GeneratorExit\n{END}", "GeneratorExit"),
    "long": (f"raise ValueError('a\\nb ' * 900)\n{END}", f"ValueError: {'a b ' * 125}..."),
    "no_steps": ("executor_main(steps=[])\n", "gives executor_main no steps"),
    "never_called": (f"def main():\n    {MAIN}", "does not call executor_main when it is run"),
    "too_slow": (f"while True: __import__('time').sleep(1)\n{END}", "it does not end: after 3 s"),
    "no_experiment": (
        "executor_main(steps=[ExecutorStep(name, None, None, override_output_path='one') for name in 'ab'])\n",
        "would both write to",
    ),
}
"""File -> its text, of which the first line is at fault if a line is, and the reason."""
OPTIONS = PortOptions(time_limit_s=3.0, most_steps=10)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {name: f"{BEGIN}{text}\n{REST.get(name, END)}" for name, (text, _) in EDITS.items()}
    files |= {name: BEGIN + text for name, (text, _) in CANNOT.items()}
    return write_checkout(tmp_path_factory.mktemp("checkout"), fine=BEGIN + END, **files)


def set_environment(patch: pytest.MonkeyPatch) -> None:
    """Set the environment that the files above expect."""
    patch.setenv("HF_TOKEN", "hidden")
    for name in ("MARIN_PREFIX", "TRADEWIND_PREFIX", "HF_HUB_CACHE", "HF_HOME", "NOT_SET_HERE"):
        patch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def ported(checkout: Path) -> dict[str, PortedFile]:
    """Return the verdicts on all files above by file name."""
    with pytest.MonkeyPatch.context() as patch:
        set_environment(patch)
        return {Path(each.file).stem: each for each in port([str(checkout)], OPTIONS)}


def found_place(each: PortedFile) -> str:
    assert each.finding is not None and each.finding.place is not None, each
    return str(each.finding.place)


@pytest.mark.parametrize("name", EDITS)
def test_fixable_file_is_reported_with_line_reason_and_edit(name: str, ported: dict[str, PortedFile]) -> None:
    (*before, source), edit = EDITS[name][0].splitlines(), EDITS[name][1]
    each = ported[name]
    assert each.verdict is PortVerdict.EDITS and each.dags == (), each.finding
    assert each.finding is not None and each.finding.edit is not None
    assert each.finding.source == source and re.search(edit, each.finding.edit), each.finding
    assert found_place(each) == f"experiments/{name}.py:{3 + len(before)}"


@pytest.mark.parametrize("name", CANNOT)
def test_unfixable_file_is_reported_with_line_and_reason(name: str, ported: dict[str, PortedFile]) -> None:
    text, why = CANNOT[name]
    each = ported[name]
    assert each.verdict is PortVerdict.CANNOT and each.dags == (), each.finding
    assert each.finding is not None and each.finding.edit is None and why in each.finding.why
    assert each.finding.source == ("" if name in ("never_called", "deep") else text.splitlines()[0]), each.finding


@pytest.mark.filterwarnings("ignore::tradewind.marin.MarinFileWarning")
def test_verdicts_match_loading(checkout: Path, ported: dict[str, PortedFile], monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch)
    loaded = marin_experiments(checkout / "experiments", time_limit_s=3.0, most_steps=10)
    judged = {each.file: each for each in ported.values()}
    dag_ids = {dag.dag_id for each in judged.values() for dag in each.dags}
    assert dag_ids == {dag.dag_id for dag in loaded} == {"fine", "tutorials.train_tiny"}
    unchanged = {file for file, each in judged.items() if each.verdict is PortVerdict.UNCHANGED}
    assert unchanged == {"experiments/fine.py", "experiments/tutorials/train_tiny.py"}
    refused = [str(error) for error in loaded.refused]
    without_dag = {"experiments/no_steps.py", "experiments/never_called.py"}  # warnings: no error
    for file in judged.keys() - without_dag:
        finding = judged[file].finding
        errors = [text for text in refused if finding is not None and text.startswith(f"{finding.place} ")]
        assert bool(errors) is (finding is not None), file
    assert len(refused) == len(judged) - len(without_dag) - 2


def test_file_is_unchanged_when_one_of_its_calls_has_no_steps(tmp_path: Path) -> None:
    write_checkout(tmp_path, two=EXECUTOR + STEP + "executor_main(steps=[])\n" + MAIN)
    (each,) = port([str(tmp_path / "experiments/two.py")])
    assert each.verdict is PortVerdict.UNCHANGED and [dag.dag_id for dag in each.dags] == ["two.2"]
    assert [remark for remark in each.remarks if re.match("line 3: .* gives executor_main no steps", remark)]


def test_port_reports_dag_id_collision_like_loading(tmp_path: Path) -> None:
    write_checkout(tmp_path, a_b=EXECUTOR + END)
    put(tmp_path / "experiments/a b.py", EXECUTOR + END)
    verdicts = {Path(each.file).stem: each for each in port([str(tmp_path / "experiments")])}
    assert verdicts["a b"].verdict is PortVerdict.UNCHANGED and verdicts["a_b"].verdict is PortVerdict.CANNOT
    assert verdicts["a_b"].finding is not None and "would have the id a_b, like one of" in verdicts["a_b"].finding.why


def test_reason_in_imported_file_is_reported_there(tmp_path: Path) -> None:
    write_checkout(tmp_path, shared="import ray\nray.get(1)\n", user="import experiments.shared\n" + EXECUTOR + END)
    (each,) = port([str(tmp_path / "experiments/user.py")])
    assert each.finding is not None and each.finding.source == "ray.get(1)"
    assert found_place(each) == "experiments/shared.py:2"


def test_params_of_the_dag_file_count(tmp_path: Path) -> None:
    text = "from tradewind import run_param\nstep = ExecutorStep('a', None, {'at': versioned(run_param('day'))})\n"
    write_checkout(tmp_path, asks=EXECUTOR + text + MAIN)
    file = str(tmp_path / "experiments/asks.py")
    assert [each.verdict for each in port([file])] == [PortVerdict.CANNOT]
    assert [each.verdict for each in port([file], dag_arguments={"params": {"day": "x"}})] == [PortVerdict.UNCHANGED]


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        (
            "src/marin/execution/executor.py", "class ExecutorStep: ...\n",
            "/executor.py has no executor_main, which Marin took out between June and October",
        ),
        (
            "lib/marin/src/marin/execution/executor.py", "from fray import Cluster\ndef executor_main(): ...\n",
            "/executor.py imports fray, which steps run on since the end of 2025",
        ),
        (
            "lib/marin/src/marin/execution/step_spec.py", "class StepSpec: ...\n",
            " has no executor.py, and in step_spec.py StepSpec, which came in 2026",
        ),
    ],
)  # fmt: skip
def test_unsupported_checkout_is_refused_naming_missing_part(tmp_path: Path, file: str, text: str, what: str) -> None:
    put(write_checkout(tmp_path) / file, text)
    what = f"its {file.rpartition('/')[0]}{what}"
    for load in (lambda: list(port([str(tmp_path)])), lambda: marin_experiments(tmp_path / "experiments")):
        with pytest.raises(RefusedFileError, match=f"is a Marin checkout of an unsupported version: {re.escape(what)}"):
            load()


def test_ray_based_executor_is_accepted(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    put(tmp_path / "src/marin/execution/executor.py", "import ray\n\ndef executor_main(config, steps): ...\n")
    assert [each.verdict for each in port([str(tmp_path)])] == [PortVerdict.UNCHANGED]


def test_file_logs_below_warning_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "import logging\nlogger = logging.getLogger('marins')\nlogger.info('its config')\nlogger.warning('odd')\n"
    caplog.set_level(logging.DEBUG)
    run_text(tmp_path, text + END)
    logging.getLogger("ours").info("afterwards")
    logged = [record.message for record in caplog.records if record.name in ("marins", "ours")]
    assert logged == ["odd", "odd", "afterwards"]  # the sandbox evaluates the file twice


def test_unreadable_file_does_not_affect_port_of_others(tmp_path: Path) -> None:
    write_checkout(tmp_path, fine=EXECUTOR + END)
    (tmp_path / "experiments/folder.py").mkdir()
    (tmp_path / "experiments/gone.py").symlink_to("nowhere.py")
    put(tmp_path / "experiments/coded.py", "# -*- coding: unheard -*-\nexecutor_main([])\n")
    put(tmp_path / "experiments/nul.py", "executor_main(\0)\n")
    verdicts = {Path(each.file).stem: each.verdict for each in port([str(tmp_path)])}
    unreadable = dict.fromkeys(("coded", "nul"), PortVerdict.CANNOT)
    assert verdicts == {**unreadable, **dict.fromkeys(("fine", "train_tiny"), PortVerdict.UNCHANGED)}


class _Hasty(BaseException):
    """Stands for Airflow's time limit of a DAG file."""


@pytest.mark.parametrize("end", [KeyboardInterrupt, _Hasty])
def test_signal_during_port_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    write_checkout(tmp_path, asks=f"import os\nos.environ.get('ANY')\n{EXECUTOR}{END}")

    def limit(number: int, frame: object) -> None:
        raise end

    def stop(self: object, name: str) -> str:
        signal.raise_signal(signal.SIGALRM)
        return ""

    before = signal.signal(signal.SIGALRM, limit)
    monkeypatch.setattr("tradewind.marin.sandbox.builtins.Environment.__getitem__", stop)
    try:
        with pytest.raises(end):
            list(port([str(tmp_path / "experiments/asks.py")]))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_folder_without_executor_main_call_gives_warning(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    with pytest.warns(MarinFileWarning, match="src contains no file that calls executor_main, so there is no DAG"):
        assert marin_experiments(tmp_path / "src") == []


REMOVED = ("ray_task", "ray_get", "network", "process", "secret", "secret_file", "exited", "exited_at_once")


def test_file_ports_unchanged_after_suggested_line_removal(tmp_path: Path) -> None:
    for name in REMOVED:
        before = EDITS[name][0].rpartition("\n")[0]
        write_checkout(tmp_path, **{name: f"{BEGIN}{before}\n{END}"})
    verdicts = {Path(each.file).stem: each.verdict for each in port([str(tmp_path)])}
    assert verdicts == dict.fromkeys([*REMOVED, "train_tiny"], PortVerdict.UNCHANGED)
