"""The sandbox runs a file unchanged and records each call of ``executor_main``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, STEP, made_name, names, put, refusal, run, run_text, write_checkout
from tradewind.marin import RefusedFileError
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import resolve

CALLS = {
    "at module level": "executor_main(steps=[step])\n",
    "under the guard": "if __name__ == '__main__':\n    executor_main([step], 'Said.')\n",
    "in a function": "def main():\n    executor_main([step])\nif __name__ == '__main__':\n    main()\n",
    "with exit at the end": "def main():\n    executor_main([step])\nraise SystemExit(main())\n",
    "with its config first": (
        "from marin.execution import ExecutorMainConfig\nexecutor_main(ExecutorMainConfig(prefix='gs://b'), [step])\n"
    ),
    "with its config by name": (
        "from marin.execution import ExecutorMainConfig\nexecutor_main(config=ExecutorMainConfig(), steps=[step])\n"
    ),
    "under draccus": (
        "import draccus\nfrom dataclasses import dataclass\n@dataclass\nclass Config:\n    n: int = 1\n"
        "@draccus.wrap()\ndef main(config: Config):\n    assert config.n == 1\n    executor_main([step])\nmain()\n"
    ),
    "by another name": "import marin.execution.executor as executor\nexecutor.executor_main(steps=[step])\n",
    "with a path of a step": "executor_main(steps=[step / 'part'])\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", CALLS)
def test_executor_main_is_one_dag_wherever_it_is_called(tmp_path: Path, form: str) -> None:
    assert names(run_text(tmp_path, STEP + CALLS[form])) == [["made"]]


def test_each_call_in_a_loop_is_recorded(tmp_path: Path) -> None:
    text = "for i in range(3):\n    executor_main([ExecutorStep(f's{i}', None, None)] * (i != 1), f'd{i}')\n"
    found = run_text(tmp_path, text)
    assert names(found) == [["s0"], [], ["s2"]]
    places = [(call.description, str(call.place)) for call in found.calls]
    assert places == [(f"d{number}", "experiments/a.py:3") for number in range(3)]


def test_experiment_runs_with_user_helpers_and_has_their_steps(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    (call,) = run(tmp_path, "tutorials/train_tiny").calls
    resolved = resolve(call.steps, "gs://bucket")
    assert [step.name for step in resolved.steps] == [
        "tokenized/corpus", "tokenized/paloma", "checkpoints/tiny-0.1", "checkpoints/tiny-0.01"
    ]  # fmt: skip
    assert resolved.steps[0].version["config"] == {"tokenizer": "gpt2"}
    assert resolved.steps[2].version["config"] == {"tokens": "DEP[0]"}


def test_the_same_name_is_one_object_however_it_is_imported(tmp_path: Path) -> None:
    write_checkout(
        tmp_path,
        a="""
        import marin.execution
        import marin.execution.executor as executor
        from marin.execution import ExecutorStep
        from marin.execution.executor import ExecutorStep as Step, executor_main
        import experiments.defaults
        from experiments import defaults
        import importlib
        assert marin.execution.ExecutorStep is ExecutorStep is Step is executor.ExecutorStep
        assert experiments.defaults is defaults is importlib.import_module("experiments.defaults")
        assert isinstance(defaults.default_train("x", "y", 1.0), ExecutorStep)
        executor_main(steps=[])
        """,
    )
    run(tmp_path, "a")


@pytest.mark.slow
def test_neighbours_of_a_file_are_found_and_are_its_own(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        put(tmp_path / "experiments" / folder / "near.py", f"NAME = {folder!r}\n")
    text = f"{EXECUTOR}from near import NAME as name\n{MAKE}"
    write_checkout(tmp_path, one__a=text, two__a=text)
    for folder in ("one", "two", "one"):
        assert names(run(tmp_path, f"{folder}/a")) == [[folder]]


IMPORTS_HELPER = f"{EXECUTOR}from experiments.helper import NAME as name\n{MAKE}"


@pytest.mark.slow
def test_helper_change_takes_effect_and_failed_import_is_retried(tmp_path: Path) -> None:
    write_checkout(tmp_path, a=IMPORTS_HELPER, helper="raise RuntimeError('half written')\n")
    with pytest.raises(RefusedFileError, match=r"^experiments/helper.py:1 cannot become a DAG: RuntimeError: half wr"):
        run(tmp_path, "a")
    for name in ("one", "two", "another"):
        helper = put(tmp_path / "experiments/helper.py", f"NAME = {name!r}\n")
        os.utime(helper, ns=(1, 1))  # "one" and "two" have the same size and time
        assert names(run(tmp_path, "a")) == [[name]]


@pytest.mark.slow
def test_change_of_read_file_or_listed_folder_takes_effect(tmp_path: Path) -> None:
    data = put(tmp_path / "experiments/data/one.txt", "first")
    text = "import os\nfolder = os.path.abspath('experiments/data')  # from the checkout's root\nos.chdir('/')\n"
    text += "name = '-'.join(open(f'{folder}/{each}').read() for each in sorted(os.listdir(folder)))\n"
    assert made_name(tmp_path, f"{text}open(f'{{folder}}/one.txt').close()\n") == "first"
    data.write_text("second")
    assert names(run(tmp_path, "a")) == [["second"]]
    put(tmp_path / "experiments/data/two.txt", "other")
    assert names(run(tmp_path, "a")) == [["second-other"]]


def test_star_import_of_stub_module_works(tmp_path: Path) -> None:
    write_checkout(tmp_path, a=f"from marin.execution.executor import *\nname = 's'\n{MAKE}")
    assert names(run(tmp_path, "a")) == [["s"]]


def test_oversized_file_is_not_read(tmp_path: Path) -> None:
    write_checkout(tmp_path, a="")
    os.truncate(tmp_path / "experiments/a.py", 10**12)
    with pytest.raises(RefusedFileError, match=r"^experiments/a.py cannot .* a.py has more than 4,000,000 bytes"):
        run(tmp_path, "a")


@pytest.mark.slow
def test_failed_import_is_retried_by_the_next(tmp_path: Path) -> None:
    text = "from experiments import flag\ntry:\n    import experiments.helper\n"
    text += "except RuntimeError:\n    flag.READY = True\n"
    helper = "from experiments import flag\nif not flag.READY:\n    raise RuntimeError\nNAME = 'late'\n"
    write_checkout(tmp_path, a=text + IMPORTS_HELPER, helper=helper, flag="READY = False\n")
    assert names(run(tmp_path, "a")) == [["late"]]


@pytest.mark.slow
def test_module_added_to_checkout_replaces_its_stub(tmp_path: Path) -> None:
    refusal(tmp_path, f"import sizes\nname = str(sizes.SMALL)\n{MAKE}", ":3 .* it needs the text of sizes.SMALL")
    put(tmp_path / "sizes.py", "SMALL = 3\n")
    assert names(run(tmp_path, "a")) == [["3"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import marin.no_such", "ModuleNotFoundError: No module named 'marin.no_such': neither the checkout .* nor T"),
        ("from experiments.gone import x", r"No module named 'experiments.gone'"),
        ("from experiments.llama import no", r"ImportError: cannot import name 'no' from 'experiments.llama': neither"),
        ("import experiments.llama as m; m.no", "AttributeError: module 'experiments.llama' has no attribute 'no': n"),
        ("from marin.processing.tokenize import no", r"ImportError: cannot import name 'no' from .* nor Tradewind has"),
        ("import heavy; executor_main([heavy.make()])", r"and one is heavy.make\(...\), known only on the cluster"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = = 1", "SyntaxError: invalid syntax"),
        ("executor_main(range(10**12))", "executor_main needs steps, and one is a int"),
        ("import itertools; executor_main(itertools.count())", "executor_main needs a list of steps, not a count"),
        ("executor_main('a' * (2 << 30))", "MemoryError: it takes more than 512 MB of memory"),
        ("executor_main([], description=3)", "executor_main needs a text as description"),
    ],
)
def test_broken_file_is_refused_with_line_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    refusal(tmp_path, f"{STEP}{line}\n", f":3 cannot become a DAG: .*{reason}")


def test_attributes_missing_from_stub_come_from_user_module(tmp_path: Path) -> None:
    put(
        tmp_path / "src/marin/execution/executor.py",
        """
        import ray
        from dataclasses import dataclass

        @dataclass(frozen=True)
        class ExecutorStep:
            name: str

        def chain(names):
            return [ExecutorStep(name, None, None) for name in names]
        """,
    )
    text = "from marin.execution.executor import chain\nfrom marin.execution import ExecutorStep, executor_main\n"
    text += "steps = chain(['a', 'b'])\nassert isinstance(steps[0], ExecutorStep)\nexecutor_main(steps)\n"
    write_checkout(tmp_path, a=text)
    assert names(run(tmp_path, "a")) == [["a", "b"]]


@pytest.mark.slow
@pytest.mark.parametrize("has_checkout", [True, False])
def test_function_named_like_its_module_is_the_function(tmp_path: Path, has_checkout: bool) -> None:
    if has_checkout:
        put(tmp_path / "src/marin/processing/tokenize/__init__.py", "from .tokenize import tokenize\n")
        text = "import ray\n@ray.remote(num_cpus=0.1)\ndef tokenize(config): ...\n"
        put(tmp_path / "src/marin/processing/tokenize/tokenize.py", text)
    text = "from marin.processing.tokenize.tokenize import TokenizeConfig, tokenize as direct\n"
    text += "from marin.processing.tokenize import TokenizeConfig as Same, tokenize\nassert TokenizeConfig is Same\n"
    text += "executor_main([ExecutorStep(f'{i}', fn, {}) for i, fn in enumerate((tokenize, direct))])\n"
    steps = resolve(run_text(tmp_path, text).calls[0].steps, "gs://b").steps
    first, second = (step_spec(step, CodeFolder(tmp_path)).function for step in steps)
    assert second == "marin.processing.tokenize.tokenize:tokenize"
    assert first == (second if has_checkout else "marin.processing.tokenize:tokenize")


def test_long_chain_of_steps_in_configs_is_not_traversed(tmp_path: Path) -> None:
    chain = "for i in range(120):\n    step = ExecutorStep(f's{i}', None, {'from': step})\n"
    (call,) = run_text(tmp_path, f"{STEP}{chain}executor_main(steps=[step])\n").calls
    assert len(resolve(call.steps, "gs://bucket").steps) == 121
