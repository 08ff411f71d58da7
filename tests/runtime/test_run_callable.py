"""The job calls a function on the cluster with its arguments and ends as the function ended."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.dag_files import MARKER, REPOSITORY, call_to, load_dag_file, result_of, run
from tests.serialization.callable_parts import Holder, Point, doubled, fails, far, returns
from tradewind.serialization.errors import SpecError
from tradewind.serialization.shipping import CALL_VARIABLE, MAX_ENV_VALUE_BYTES, call_runtime_env

# ---- functions of importable modules


def test_module_function_is_called_by_name_with_arguments() -> None:
    call = call_to(doubled, Point(3, 1), times=5)
    assert call.function.reference == "tests.serialization.callable_parts:doubled"
    assert call.travels
    assert result_of(call, REPOSITORY) == {"x": 30, "y": 1}


@pytest.mark.slow
def test_installed_functions_and_class_methods_can_be_called(tmp_path: Path) -> None:
    assert not call_to(json.dumps, [1]).travels
    assert result_of(call_to(json.dumps, [1]), tmp_path) == "[1]"
    assert call_to(Holder.made).function.reference == "tests.serialization.callable_parts:Holder.made"


def test_call_includes_options_of_remote_function() -> None:
    assert call_to(far, 1).function.ray_task == {"num_cpus": 0.5}
    assert call_to(doubled, Point(1)).function.ray_task is None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (functools.partial(doubled, Point(1)), "is bound to values that cannot travel"),
        (Holder().method, "is bound to values that cannot travel"),
        *((value, "cannot be imported on a cluster") for value in (Holder(), 5, None)),
    ],
)
def test_function_that_cannot_be_imported_is_refused(function: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call_to(function)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"more": 1})])
def test_wrong_arguments_are_refused(args: Any, kwargs: Any) -> None:
    with pytest.raises(SpecError, match="callable_parts:returns cannot be called like this: "):
        call_to(returns, *args, **kwargs)


def test_unserializable_argument_is_refused_by_position() -> None:
    with pytest.raises(SpecError, match="argument 'value' is a object"):
        call_to(returns, value=object())
    with pytest.raises(SpecError, match=r"argument 1\.\[0\] is a object"):
        call_to(returns, [object()])


class Results(Sequence[Any]):
    """Stub of Airflow's lazy sequence of a mapped task's results."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return [Point(1), Point(2)][index]


def test_results_of_mapped_task_become_list() -> None:
    assert call_to(returns, Results()).load_arguments() == ([[Point(1), Point(2)]], {})


# ---- endings


def test_traceback_omits_frames_of_tradewind() -> None:
    done = run(call_to(fails, 4), REPOSITORY)
    assert done.returncode == 1
    assert "tradewind/runtime" not in done.stderr
    assert done.stderr.endswith("ValueError: no good: 4\n")


@pytest.mark.slow
@pytest.mark.parametrize(("code", "exit_code", "has_result"), [("", 0, True), ("0", 0, True), ("3", 3, False)])
def test_exit_code_of_function_is_kept(tmp_path: Path, code: str, exit_code: int, has_result: bool) -> None:
    module = load_dag_file(tmp_path, f"import sys\nimport airflow\ndef f():\n    sys.exit({code})\n", f"exits{code}")
    done = run(call_to(module.f), tmp_path)
    assert done.returncode == exit_code
    assert (f"{MARKER}null" in done.stdout) is has_result


def test_failed_import_on_cluster_names_module(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        module = load_dag_file(tmp_path, "import airflow\nimport only_here\ndef f():\n    return only_here\n")
    (tmp_path / "only_here.py").unlink()
    done = run(call_to(module.f), tmp_path)
    assert done.returncode == 1
    reason = "ModuleNotFoundError: No module named 'only_here'"
    assert f"'f' of nightly.py cannot be set up on the cluster ({reason})" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_result_has_its_own_line_after_partial_output(tmp_path: Path) -> None:
    module = load_dag_file(tmp_path, "import airflow\ndef f(end):\n    print('half', end=end)\n    return 1\n")
    log = tmp_path / "log"
    for end in ("", "\n"):
        with log.open("wb") as output:
            env = {**os.environ, CALL_VARIABLE: call_to(module.f, end).to_json()}
            command = [sys.executable, "-m", "tradewind.runtime.run_callable"]
            subprocess.run(command, env=env, stdout=output, check=True)
        assert log.read_text() == f"half\n{MARKER}1\n"


# ---- packages of a job


def test_small_call_is_variable_and_large_call_temporary_package() -> None:
    base = {"env_vars": {"A": "1"}, "py_modules": ["s3://x/y.zip"], "pip": ["numpy"]}
    with call_runtime_env(call_to(returns, "x"), base) as small:
        assert small["env_vars"]["A"] == "1" and '"x"' in small["env_vars"][CALL_VARIABLE]
        assert (small["py_modules"], small["pip"]) == (base["py_modules"], ["numpy"])
    with call_runtime_env(call_to(returns, "x" * MAX_ENV_VALUE_BYTES), base) as large:
        assert len(large["env_vars"][CALL_VARIABLE]) < 100
        first, module = large["py_modules"]
        assert (first, Path(module, "call.json").is_file()) == ("s3://x/y.zip", True)
    assert not Path(module).exists()
    assert base == {"env_vars": {"A": "1"}, "py_modules": ["s3://x/y.zip"], "pip": ["numpy"]}


def test_job_programs_import_only_standard_library() -> None:
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    imports = "import tradewind.runtime.run_callable, tradewind.runtime.with_secrets; "
    plain, loaded = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for code in (report, imports + report)
    )
    assert {*loaded} - {*plain} == {"tradewind"}
