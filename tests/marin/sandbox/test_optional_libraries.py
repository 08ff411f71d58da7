"""Optional libraries: the sandbox refuses a file whose two branches give different steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, names, put, refusal, run, run_text, write_checkout
from tradewind.marin import RefusedFileError
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate

pytestmark = pytest.mark.slow

MADE = "executor_main([ExecutorStep(name, None, versioned({'size': size}))])\n"
PLAIN = "name, size = 'a', 1\n"
SAME = {
    "a name for annotations": "try:\n    from vllm.inputs import Prompt\nexcept ImportError:\n    Prompt = object\n",
    "a flag": "try:\n    import vllm as v\n    HAS = True\nexcept Exception as e:\n    v, HAS = e, False\n",
    "any error": "try:\n    import vllm\nexcept:\n    vllm = None\n",
    "suppressed": "import contextlib\nwith contextlib.suppress(ImportError):\n    import json, vllm\n",
    "imported by name": "import importlib\ntry: importlib.import_module('vllm.x')\nexcept ImportError: pass\n",
    "in a function": "def f():\n    try:\n        import vllm\n    except ImportError:\n        return None\nf()\n",
    "needed further on": "try:\n    import vllm\nexcept ImportError:\n    vllm = None\nclass A(vllm.Base): pass\n",
    "needed at once": "try:\n    import vllm\nexcept ImportError:\n    raise SystemExit('install vllm')\n",
    "needed by another": "import vllm\ntry:\n    import vllm.x\nexcept ImportError:\n    pass\n",
}


@pytest.mark.parametrize("form", SAME)
def test_library_without_effect_on_steps_is_accepted(tmp_path: Path, form: str) -> None:
    assert names(run_text(tmp_path, SAME[form] + PLAIN + MADE)) == [["a"]]


DECIDES = {
    "the name": "try:\n    import vllm\n    name = 'with'\nexcept ImportError:\n    name = 'without'\nsize = 1\n",
    "the version": "name = size = 'a'\ntry:\n    import json, vllm\nexcept ModuleNotFoundError:\n    size = 0\n",
    "a later branch": "vllm = None\ntry:\n    from vllm import x as vllm\nexcept Exception: pass\n"
    "name, size = 'a', 1 if vllm is None else 2\n",
    "by a function": "import contextlib\nname = size = 'a'\nwith contextlib.suppress(ImportError):\n"
    "    import vllm; size = 2\n",
    "by its name": "import importlib\nname = size = 'a'\n"
    "try: importlib.import_module('vllm')\nexcept ImportError: size = 3\n",
    "the number of steps": "name = size = 'a'\ntry:\n    import vllm\nexcept ImportError:\n    executor_main([])\n",
    "what cannot be known": "name = size = 'a'\ntry:\n    import vllm\nexcept ImportError:\n"
    "    import jax; size = int(jax.count())\n",
    "in a helper": "from experiments.helper import name\nsize = 1\n",
    "through a helper": "try:\n    from experiments.needs import name\nexcept ImportError:\n    name = 'b'\nsize = 1\n",
}


@pytest.mark.parametrize("form", DECIDES)
def test_library_with_effect_on_steps_is_refused_with_line(tmp_path: Path, form: str) -> None:
    helper = "try:\n    import vllm\n    name = 'with'\nexcept ImportError:\n    name = 'without'\n"
    write_checkout(tmp_path, a=EXECUTOR + DECIDES[form] + MADE, helper=helper, needs="import vllm\nname = 'a'\n")
    line = r"^experiments/(a|helper|needs).py:[1-6] cannot become a DAG: without vllm installed it makes other steps"
    with pytest.raises(RefusedFileError, match=line) as caught:
        run(tmp_path, "a")
    assert str(caught.value).endswith((", with or without vllm.", "(loading experiments/a.py)"))


def test_required_library_counts_as_installed(tmp_path: Path) -> None:
    write_checkout(tmp_path, a=EXECUTOR + DECIDES["the name"] + MADE)
    required = put(tmp_path / "pyproject.toml", '[project]\ndependencies = ["numpy", "vllm[tpu]>=0.9 # old"]\n')
    assert names(run(tmp_path, "a")) == [["with"]]
    for other in ("\"vllm ; sys_platform == 'linux'\"", '"vllm-tpu"', "3", ""):
        required.write_text(f"[project]\ndependencies = [{other}]\n")
        with pytest.raises(RefusedFileError, match="without vllm installed"):
            run(tmp_path, "a")


def test_imports_of_one_file_do_not_affect_others(tmp_path: Path) -> None:
    needs = EXECUTOR + "import vllm\n" + PLAIN + MADE
    write_checkout(
        tmp_path, a=needs, b=EXECUTOR + DECIDES["the name"] + MADE, c=needs, d=EXECUTOR + SAME["a flag"] + PLAIN + MADE
    )
    files = [tmp_path / f"experiments/{name}.py" for name in "abcd"]
    outcomes = evaluate(tmp_path, files, 20)
    assert [isinstance(outcomes[file], Evaluated) for file in files] == [True, False, True, True]


def test_libraries_with_joint_effect_are_refused(tmp_path: Path) -> None:
    text = "found = 0\nneeded = None\n"
    for library in ("vllm", "sglang", "needed"):
        text += f"try:\n    import {library}\n    found += 1\nexcept ImportError: pass\n"
    text += "needed.x\nname, size = 'a', min(found, 2)\n"
    refusal(tmp_path, text + MADE, ".*without sglang and vllm installed it makes other steps")
