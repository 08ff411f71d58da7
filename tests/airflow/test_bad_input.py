"""Bad input is one clear sentence in the task log or the import errors; nothing is submitted or left half-written."""

from __future__ import annotations

import pytest
import requests

from tests.airflow.conftest import House, HouseRun

pytestmark = pytest.mark.airflow


def left_behind(house: House, name: str) -> list[str]:
    files = [str(path) for path in house.store.glob(f"bad/{name}-*/**/*")]
    jobs = requests.get(f"{house.ray_address}/api/jobs/", timeout=30).json()
    slug = f"bad-{name.replace('_', '-')}-"
    return files + [job["submission_id"] for job in jobs if job["submission_id"].startswith(slug)]


@pytest.mark.parametrize(
    ("dag_id", "task_id", "sentence"),
    [
        (
            "local_function",
            "plan",
            "BadInputError: Step 'bad/local_function': '<lambda>' cannot be imported on a cluster, because it is a "
            "lambda, a local function or no plain function at all: define it at the top level of a module.",
        ),
        (
            "missing_prefix",
            "plan",
            "BadInputError: Nothing says where outputs go: give experiment_dag(prefix=...)",
        ),
        ("no_such_cluster", "bad_no_such_cluster", "There is no connection 'missing', and "),
        ("unreachable", "bad_unreachable", "does not answer (ConnectionError): start the cluster, or correct the host"),
    ],
)
def test_what_is_refused_before_submission_leaves_nothing(
    house: House, dag_id: str, task_id: str, sentence: str
) -> None:
    run = house.run(dag_id)
    assert run.state == "failed"
    log = run.log(task_id)
    assert sentence in log
    assert dag_id == "missing_prefix" or f"Step 'bad/{dag_id}'" in log
    assert left_behind(house, dag_id) == []
    [tries] = [ti["try_number"] for ti in house.api.task_instances(dag_id, run.run_id) if ti["task_id"] == task_id]
    assert tries == 1  # trying again would not help


@pytest.mark.parametrize(
    ("dag_id", "file", "sentence"),
    [
        ("unreachable", "bad_input.py", "Step 'bad/unreachable': Ray cluster 'gone' (http://127.0.0.1:"),
        (
            "not_on_cluster",
            "not_on_cluster.py",
            "Step 'bad/not_on_cluster': 'work_elsewhere' of module 'only_in_airflow' cannot be imported on",
        ),
    ],
)
def test_the_command_line_says_it_too(house: House, dag_id: str, file: str, sentence: str) -> None:
    house.api.wait_for_dag(dag_id, 60)
    house.api.pause(dag_id)  # or the scheduler takes the tasks of the same run
    done = house.airflow.cli("dags", "test", dag_id, "--dagfile-path", str(house.dags / file))
    assert sentence in done.stdout + done.stderr


def test_a_function_that_the_cluster_lacks_is_named_with_the_way_out(house: House) -> None:
    run = house.run("not_on_cluster")
    assert run.state == "failed"
    assert (
        "Step 'bad/not_on_cluster': 'work_elsewhere' of module 'only_in_airflow' cannot be imported on the cluster "
        "(ModuleNotFoundError: No module named 'only_in_airflow'). Install the module in the cluster's image, or keep "
        "it in the DAGs folder, which travels with the job." in run.log("bad_not_on_cluster")
    )
    assert (house.output("bad/not_on_cluster") / ".executor_status").read_text() == "FAILED"


def test_a_steps_own_error_fails_its_task_at_once_with_its_traceback(house: House) -> None:
    run: HouseRun = house.run("failing")
    assert run.state == "failed"
    log = run.log("bad_failing")
    assert "about to fail" in log
    assert "raise KeyError(config.value)" in log
    assert "StepFailedError: Step 'bad/failing' failed with KeyError: 'the value'" in log
    assert house.attempts("bad/failing") == 1  # Airflow's retries are not for this
    assert house.run("failing").state == "failed"
    assert house.attempts("bad/failing") == 2


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (
            "unknown_param.py",
            "UnknownRunValueError: Step 'train': config.learning_rate: run_param('lr') is not a param of this DAG, "
            "which has rate.",
        ),
        ("cycle.py", "ExperimentError: Step 'first' reads its own output: config.source is the hard-coded path of"),
        ("one_path.py", "OutputPathConflictError: Steps 's1' (version "),
        ("unknown_slice.py", "ExperimentError: Step 'train': "),
    ],
)
def test_a_file_that_makes_no_valid_experiment_is_an_import_error(house: House, file: str, sentence: str) -> None:
    house.api.wait_for_dag("hello_world", 60)
    [error] = [error for error in house.api.import_errors() if error["filename"].endswith(file)]
    assert sentence in error["stack_trace"]
