"""Bad input that only a cluster, command or DAG processor finds is reported in one clear sentence."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import DagRun, Environment
from tests.support.waiting import limit_s, until

pytestmark = pytest.mark.airflow


def test_command_line_names_function_missing_on_cluster(env: Environment) -> None:
    env.api.wait_for_dag("not_on_cluster", limit_s())
    env.api.pause("not_on_cluster")  # otherwise the scheduler starts the tasks of the same run
    file = env.dags / "not_on_cluster.py"
    done = env.airflow.cli("dags", "test", "not_on_cluster", "--dagfile-path", str(file))
    sentence = "Step 'bad/not_on_cluster': 'work_elsewhere' of module 'only_in_airflow' cannot be imported on"
    assert sentence in done.stdout + done.stderr


def test_step_error_fails_task_at_once_with_traceback(env: Environment) -> None:
    run: DagRun = env.run("failing")
    assert run.state == "failed"
    log = run.log("bad_failing")
    assert "about to fail" in log
    assert "raise KeyError(config[" in log
    assert "StepFailedError: Step 'bad/failing' failed with KeyError: 'the value'" in log
    assert env.attempts("bad/failing") == 1  # Airflow's retries are not used for a failure of the function
    assert env.run("failing").state == "failed"
    assert env.attempts("bad/failing") == 2


def test_file_without_valid_experiment_is_import_error(env: Environment) -> None:
    [error] = until(
        lambda: [error for error in env.api.import_errors() if error["filename"].endswith("unknown_param.py")],
        "the file to be read",
    )
    assert (
        "UnknownRunValueError: Step 'train': config.learning_rate: run_param('lr') is not a param of this DAG, "
        "which has rate."
    ) in error["stack_trace"]
