"""``marin_experiment`` and ``marin_experiments``: ids, arguments, limits, and errors of single files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, STEP, put, write_checkout
from tradewind.marin import MarinFileWarning, RefusedFileError, marin_experiment, marin_experiments
from tradewind.marin.loading import id_of, runnable_files
from tradewind.serialization.references import CodeFolder
from tradewind.tasks.code import code_folder

FILE = "experiments/tutorials/train_tiny.py"
ONE = EXECUTOR + STEP + "if __name__ == '__main__':\n    executor_main(steps=[step], description='Said.')\n"


def test_experiment_becomes_dag_with_arguments_of_dag_file(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    (dag,) = marin_experiment(tmp_path / FILE, schedule="@daily", prefix="gs://bucket", tags=["marin"])
    assert dag.dag_id == "tutorials.train_tiny" and dag.description == "Tiny models."
    assert dag.doc_md == f"The experiment `{FILE}`, from line 12, in the Marin checkout `{tmp_path.name}`."
    assert {"tokenized_corpus", "checkpoints_tiny-0.1", "checkpoints_tiny-0.01"} <= set(dag.task_ids)
    assert dag.get_task("checkpoints_tiny-0.1").upstream_task_ids == {"tokenized_corpus"}
    assert dag.tags == {"marin", "tradewind"} and "CronDataInterval" in type(dag.timetable).__name__
    assert code_folder(dag) == tmp_path and CodeFolder(tmp_path).sources() == ["src"]


@pytest.mark.slow
def test_ids_come_from_paths_and_stay(tmp_path: Path) -> None:
    text = EXECUTOR + "for n in range(4):\n    executor_main([ExecutorStep(f's{n}', None, None)] * (n != 1))\n"
    write_checkout(tmp_path, sub__many=text, speed__cöde=ONE)
    for _ in range(2):
        with pytest.warns(MarinFileWarning, match=r"experiments/sub/many.py gives executor_main no steps: no DAG"):
            dags = marin_experiments(tmp_path / "experiments", exclude=["tutorials/*"])
        assert [dag.dag_id for dag in dags] == ["speed.cöde", "sub.many", "sub.many.3", "sub.many.4"]
    assert [dag.dag_id for dag in marin_experiment(tmp_path / "experiments/speed/cöde.py", dag_id="mine")] == ["mine"]
    assert id_of(tmp_path / "experiments/a b/c+d.py", tmp_path) == "a_b.c_d"


def test_two_files_do_not_share_an_id(tmp_path: Path) -> None:
    write_checkout(tmp_path, x=ONE * 2, x__2=ONE, a_b=ONE)
    put(tmp_path / "experiments/a b.py", ONE)
    dags = marin_experiments(tmp_path / "experiments", exclude=["tutorials/*"])
    assert [dag.dag_id for dag in dags] == ["a_b", "x.2"]
    reason = "its DAG would have the id {}, like one of experiments/{}: rename one of the files."
    reasons = [error.reason and error.reason.text for error in dags.refused]
    assert reasons == [reason.format("a_b", "a b.py"), reason.format("x.2", "x/2.py")]


@pytest.mark.slow
def test_only_files_that_call_executor_main_are_taken(tmp_path: Path) -> None:
    write_checkout(
        tmp_path,
        a=ONE,
        b="import marin\n",
        c="# executor_main(steps)\ndef executor_main(steps): ...\n",
        blank="\n" * 100_000,
        d="class A:\n    def go(self):\n        executor_main([])\n",
    )
    files = [file.name for file in runnable_files(tmp_path / "experiments")]
    assert files == ["a.py", "d.py", "train_tiny.py"]
    chosen = runnable_files(tmp_path / "experiments", include=["tut*", "d.py"], exclude=["d*"])
    assert [file.name for file in chosen] == ["train_tiny.py"]
    with pytest.warns(MarinFileWarning, match="experiments/d.py does not call executor_main when it is run"):
        marin_experiments(tmp_path / "experiments")


def test_refused_files_do_not_affect_other_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    too_long = {"__".join(["l" * 100] * 3): ONE}
    broken = {"b": "executor_main(\n", "c": "import os\nos.environ['X']\nexecutor_main([])\n"}
    write_checkout(tmp_path, a=ONE, **broken, **too_long)
    dags = marin_experiments(tmp_path / "experiments", exclude=["tutorials/*"])
    assert [dag.dag_id for dag in dags] == ["a"]
    *errors, of_name = map(str, dags.refused)
    assert errors == [
        "experiments/b.py:1 cannot become a DAG: SyntaxError: '(' was never closed (b.py, line 1)",
        "experiments/c.py:2 cannot become a DAG: KeyError: 'X'",
    ]
    assert "250 characters" in of_name
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [*errors, of_name]


@pytest.mark.slow
def test_a_large_dag_is_refused_until_the_limit_is_raised(tmp_path: Path) -> None:
    write_checkout(tmp_path, a=EXECUTOR + "executor_main([ExecutorStep(f's{n}', None, None) for n in range(12)])\n")
    file = tmp_path / "experiments/a.py"
    reason = "^experiments/a.py:2 .* it has 12 steps, and the limit is 10: raise most_steps="
    with pytest.raises(RefusedFileError, match=reason):
        marin_experiment(file, most_steps=10)
    assert len(marin_experiment(file, most_steps=12)[0].task_ids) == 13


@pytest.mark.slow
def test_dag_file_overrides_prefix_and_selection_of_marin_file(tmp_path: Path) -> None:
    config = "ExecutorMainConfig(prefix='gs://own', run_only=['^s$'], max_concurrent=3)"
    text = "from marin.execution import ExecutorMainConfig, ExecutorStep, executor_main\n"
    text += f"executor_main({config}, [ExecutorStep('s', None, None)])\n"
    write_checkout(tmp_path, a=text)
    for given, prefix in (({}, "gs://own"), ({"prefix": "gs://theirs"}, "gs://theirs")):
        (dag,) = marin_experiment(tmp_path / "experiments/a.py", **given)
        plan: Any = dag.get_task("plan")
        assert (plan.settings.prefix, dag.max_active_tasks) == (prefix, 3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("experiments/no.py", r"No experiments/no.py of a Marin checkout in .*: put the checkout there, give the"),
        ("experiments", r"experiments is no file: give a file, or use marin_experiments\(\) for a folder"),
    ],
)
def test_wrong_path_error_lists_searched_locations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, reason: str
) -> None:
    monkeypatch.setenv("TRADEWIND_MARIN_CHECKOUT", str(write_checkout(tmp_path)))
    with pytest.raises(RefusedFileError, match=reason):
        marin_experiment(given)
    with pytest.raises(RefusedFileError, match="is no folder around"):
        marin_experiment("experiments/defaults.py", checkout=tmp_path / "src")


@pytest.mark.slow
def test_the_checkout_is_found_beside_the_dags_folder(tmp_path: Path) -> None:
    write_checkout(tmp_path / "marin", a=ONE)
    for file in ("dags/file.py", "file.py"):
        code = compile("dags = marin_experiment('experiments/a.py')", str(tmp_path / file), "exec")
        names = {"marin_experiment": marin_experiment, "__file__": str(tmp_path / file)}
        exec(code, names)
        assert [dag.dag_id for dag in names["dags"]] == ["a"]  # type: ignore[attr-defined]


def test_step_process_loads_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_STEP", "s-123456")
    assert marin_experiment(tmp_path / "nowhere.py") == [] == marin_experiments(tmp_path / "nowhere")


BAG = """
import json, os, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
folder = Path(sys.argv[1])
before = set(sys.modules)
bag = DagBag(collect_dags=False, bundle_path=folder, bundle_name="b")
bag.process_file(str(folder / "marin_dags.py"), safe_mode=True)
heavy = {"levanter", "jax", "ray", "numpy", "transformers", "experiments", "marin"}
print("RESULT" + json.dumps({
    "errors": bag.import_errors,
    "dags": {dag_id: len(str(DagSerialization.to_dict(dag))) > 0 for dag_id, dag in bag.dags.items()},
    "heavy": sorted({name.partition(".")[0] for name in set(sys.modules) - before} & heavy),
}))
"""


@pytest.mark.slow
def test_refused_file_is_import_error_beside_dags_of_others(tmp_path: Path) -> None:
    """The test uses a separate process, as the DAG processor does: 10 s."""
    dags = tmp_path / "dags"
    put(dags / "marin_dags.py", "# Airflow DAGs\nimport tradewind.marin as m\nm.marin_experiments('experiments/')\n")
    text = EXECUTOR + "import transformers\nexecutor_main([ExecutorStep('s', None, None)] * len(transformers.x))\n"
    write_checkout(tmp_path / "marin", a=ONE, b=text)
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run([sys.executable, "-c", BAG, str(dags)], env=env, capture_output=True, text=True)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert result, done.stderr
    found = json.loads(result[0].removeprefix("RESULT"))
    assert found["dags"] == {"a": True, "tutorials.train_tiny": True} and found["heavy"] == []
    assert list(found["errors"]) == ["experiments/b.py"]
    assert found["errors"]["experiments/b.py"].startswith("experiments/b.py:3 cannot become a DAG: it needs the length")
