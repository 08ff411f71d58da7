"""An experiment file run as a script: same steps and records, one-line errors for bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import limit_s, until

pytestmark = pytest.mark.slow

DAGS = Path(__file__).parents[2] / "dags"

HEAD = """
import time
from dataclasses import dataclass
from typing import Any
from tradewind import (
    Cpu, ExecutorStep, Gpu, Hosts, InputName, TpuSlice, executor_main, experiment_dag, night, output_path_of,
    run_param, this_output_path, versioned,
)

@dataclass(frozen=True)
class Config:
    value: Any = None
    source: Any = None
    output_path: Any = None

def work(config):
    print("working on", config.value)
    if config.value == "slow":
        time.sleep(2)
    if config.value == "endless":
        time.sleep(600)
    if config.value == "bad":
        raise RuntimeError("this value is bad")
    return {"value": config.value}
"""


def start(folder: Path, body: str, *arguments: str, prefix: str | None = "store", **env: str) -> subprocess.Popen[str]:
    """Start a script with this body and with ``--prefix``, relative to ``folder``, unless that is None."""
    script = folder / "experiment.py"
    script.write_text(HEAD + body)
    clean = {key: value for key, value in os.environ.items() if key not in ("TRADEWIND_PREFIX", "MARIN_PREFIX")}
    command = [sys.executable, str(script), *(["--prefix", str(folder / prefix)] if prefix else []), *arguments]
    return subprocess.Popen(command, env=clean | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(
    folder: Path, body: str, *arguments: str, prefix: str | None = "store", **env: str
) -> subprocess.CompletedProcess[str]:
    script = start(folder, body, *arguments, prefix=prefix, **env)
    stdout, stderr = script.communicate()
    return subprocess.CompletedProcess(script.args, script.returncode, stdout, stderr)


TWO_STEPS = """
first = ExecutorStep("first", work, Config(versioned("one"), None, this_output_path()))
executor_main([ExecutorStep("second", work, Config(versioned("two"), output_path_of(first), this_output_path()))])
"""


def outputs(store: Path) -> dict[str, str]:
    return {path.parent.name.rpartition("-")[0]: path.read_text() for path in store.glob("*/.artifact.json")}


def test_steps_are_planned_run_in_order_and_reused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    dry = run(tmp_path, TWO_STEPS, "--dry_run", "true")
    assert "2 steps: 2 RUN" in dry.stdout and not store.exists()
    first = run(tmp_path, TWO_STEPS)
    assert first.returncode == 0, first.stderr
    assert first.stdout.index("working on one") < first.stdout.index("working on two")
    assert outputs(store) == {"first": '{"value": "one"}', "second": '{"value": "two"}'}
    assert first.stdout.index("Step 'first' is done: 1 of 2.") < first.stdout.index("Step 'second' is done: 2 of 2.")
    second = run(tmp_path, TWO_STEPS, prefix=None, TRADEWIND_PREFIX=str(store))
    assert second.returncode == 0 and "2 steps: 2 REUSE" in second.stdout and "working" not in second.stdout
    assert second.stdout.endswith("No step had to run.\n")


def test_arguments_of_experiment_dag_are_defaults_of_its_script(tmp_path: Path) -> None:
    step = 'ExecutorStep("{0}", work, Config(versioned(run_param("lr"))))'
    steps = f"[{step.format('rated')}, {step.format('other')}]"
    body = f'experiment_dag("d", {steps}, schedule="@daily", params={{"lr": 3}}, prefix="{tmp_path}/own", force=["ra"])'
    done = run(tmp_path, body, "--run_only", '["rated"]', prefix=None)
    assert done.returncode == 0 and "Step 'rated' is done: 1 of 1." in done.stdout, done.stderr
    assert "2 steps: 2 RUN" in run(tmp_path, body, "--dry_run", "true", prefix=None).stdout, "the default is to force"
    assert outputs(tmp_path / "own") == {"rated": '{"value": 3}'}


def test_shipped_files_end_with_steps_made_or_an_error(tmp_path: Path) -> None:
    """Module paths of a checkout are relative to its root, as in Marin's own commands."""
    environ = os.environ | {"PYTHONPATH": f"marin/src:{tmp_path}", "TRADEWIND_PREFIX": str(tmp_path)}
    ends = []
    (tmp_path / "link.py").symlink_to(DAGS / "hello_world.py")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "functions.py").write_text("def work(config):\n    return 1\n")
    relative = HEAD + "from .functions import work\nexecutor_main([ExecutorStep('s', work, Config())])\n"
    (tmp_path / "package" / "file.py").write_text(relative)
    tutorial = "marin/experiments/tutorials/hello_world.py"
    for name in (f"{tmp_path}/link.py", tutorial, "-m package.file", "marin_hello_world.py"):
        command = [sys.executable, *name.split()]
        done = subprocess.run(command, env=environ, cwd=DAGS, capture_output=True, text=True, check=False)
        ends.append((done.returncode, done.stdout.count(" is done: "), done.stderr.partition(" To")[0]))
    refusal = f"error: {DAGS / 'marin_hello_world.py'} only makes DAGs, for Airflow."
    assert ends == [(0, 2, ""), (0, 2, ""), (0, 1, ""), (1, 0, refusal)]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            '[ExecutorStep("s", work, Config(versioned(run_param("lr"))))], params={"rate": 1}',
            "Step 's': config.value: run_param('lr') has no value in a script, which has only the defaults of its",
        ),
        ('[ExecutorStep("s", work, Config(night()))]', "Step 's': config.value: night() has no value in a script"),
        ('[ExecutorStep("s", work, Config(versioned(work)))]', "Step 's': config.value is the function"),
        (
            '[ExecutorStep("s", work, Config(), resources=TpuSlice("v9-8"))]',
            "Step 's': resources.slice_type: There is no TPU slice type 'v9-8'; the nearest valid names are ",
        ),
        ('ExecutorStep("s", work, Config())', "steps must be a list"),
        ("[]", "The experiment has no steps."),
        ('[ExecutorStep("s", work, Config())], max_concurrent=0', "max_concurrent must be"),
        ('[ExecutorStep("s", work, Config())], allow_outside="s"', "allow_outside must be a"),
        ('[ExecutorStep("s", work, Config())], allow_outside=5', "allow_outside must be a"),
        ('[ExecutorStep("s", lambda c: 1, Config())]', "Step 's': '<lambda>' cannot be imported"),
        (
            '[ExecutorStep("s", work, Config(InputName.hardcoded("o")), override_output_path="o")]',
            "Step 's' reads its own output: config.value",
        ),
        ('[ExecutorStep(n, work, Config(), override_output_path="o") for n in ("s", "t")]', "Steps 's' (version"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path: Path, steps: str, message: str) -> None:
    done = run(tmp_path, f"executor_main({steps})")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {message}") and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_prefix_option_is_relative_to_folder_variable_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(tmp_path, TWO_STEPS, "--prefix", "store", prefix=None).returncode == 0
    assert outputs(tmp_path / "elsewhere" / "store").keys() == {"first", "second"}
    done = run(tmp_path, TWO_STEPS, prefix=None, TRADEWIND_PREFIX="store")
    assert done.returncode == 2 and "is a relative path" in " ".join(done.stderr.split())
    done = run(tmp_path, TWO_STEPS, prefix=None)
    assert done.returncode == 2
    assert "there is no prefix for outputs: give --prefix, or set TRADEWIND_PREFIX" in done.stderr


@pytest.mark.parametrize(
    ("env", "reported", "steps"),
    [
        ({}, "ignores resources", ["training", "several", "single", "part"]),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, "will have whole GPUs", ["part"]),
    ],
    ids=["machine", "Ray job"],
)
def test_script_reports_steps_with_ignored_resources(
    tmp_path: Path, env: dict[str, str], reported: str, steps: list[str]
) -> None:
    body = """
resources = {
    "plain": Cpu(), "training": TpuSlice("v4-16"), "several": Hosts(2), "single": Gpu(), "part": Gpu(0.5),
}
executor_main([ExecutorStep(name, work, Config(versioned(name)), resources=each) for name, each in resources.items()])
"""
    done = run(tmp_path, body, "--dry_run", "true", **env)
    (line,) = (line for line in done.stdout.splitlines() if "ignores resources" in line or "whole GPUs" in line)
    assert reported in line and re.findall(r"'(\w+)' \(\w+\(", line) == steps, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("resources", "devices", "expected"),
    [
        (
            'Gpu(2, "A100", num_cpus=3)',
            "2",
            {"kind": "hosts", "count": 1, "num_cpus": 3, "gpus": 2, "gpu_type": "A100", "max_failures": 0},
        ),
        ('TpuSlice("v4-8")', "4", {"slice_type": "v4-8"}),
    ],
)
def test_pod_step_in_ray_job_leaves_lease_to_go_stale(
    tmp_path: Path, resources: str, devices: str, expected: dict[str, object]
) -> None:
    """A step on GPUs reserves a host of the cluster. The driver dies before it starts the function."""
    body = f"""
def end_the_driver(config, devices):
    import os
    import pathlib
    import psutil
    pathlib.Path(os.environ["DEVICES"]).write_text(str(devices))  # the process that passes on output is killed, too
    psutil.Process().parent().parent().kill()

work.preflight = end_the_driver
executor_main([ExecutorStep("s", work, Config(versioned(1)), resources={resources})])
"""
    env = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "DEVICES": str(tmp_path / "devices")}
    done = run(tmp_path, body, **env)
    assert done.returncode == 1 and "working" not in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "devices").read_text() == devices
    (attempt,) = (tmp_path / "store").glob("s-*/.attempts/1.json")
    assert expected.items() <= json.loads(attempt.read_text())["spec"]["resources"].items()
    (lease_file,) = (tmp_path / "store").glob("s-*/.executor_status.lock")
    assert json.loads(lease_file.read_text())["phase"] == "running", done.stdout + done.stderr


def test_script_exits_before_running_when_lease_is_unreadable(tmp_path: Path) -> None:
    assert run(tmp_path, TWO_STEPS).returncode == 0
    (lease_file,) = (tmp_path / "store").glob("second-*/.executor_status.lock")
    lease_file.write_text(lease_file.read_text()[:40])
    done = run(tmp_path, TWO_STEPS, "--force_run_failed", "true")
    assert done.returncode == 1 and "working" not in done.stdout
    assert f"error: The lease {lease_file} cannot be read, because it holds no JSON" in done.stderr


SLOW = 'executor_main([ExecutorStep("s", work, Config(versioned("slow")))])'
BRANCHES = """
steps = [ExecutorStep(name, work, Config(versioned(name))) for name in ("left", "right", "bad")]
executor_main([*steps, ExecutorStep("reader", work, Config(versioned("reader"), output_path_of(steps[2])))])
"""


def test_two_scripts_at_once_make_one_attempt_and_both_end_well(tmp_path: Path) -> None:
    scripts = [start(tmp_path, SLOW) for _ in range(2)]
    outputs_of = [script.communicate()[0] for script in scripts]
    assert [script.returncode for script in scripts] == [0, 0]
    assert sum("working on slow" in text for text in outputs_of) == 1
    assert len([*(tmp_path / "store").glob("s-*/.attempts/*.json")]) == 1


def test_other_branches_run_after_failure_with_prefixed_lines(tmp_path: Path) -> None:
    info = ("--executor_info_base_path", str(tmp_path / "info"))
    done = run(tmp_path, BRANCHES, *info)
    assert done.returncode == 1
    for name in ("left", "right", "bad"):
        assert f"[{name}] working on {name}" in done.stdout.splitlines()
    assert "Step 'bad' failed: RuntimeError: this value is bad" in done.stdout
    assert "Step 'reader' does not run, because its input 'bad' failed." in done.stdout
    assert done.stderr.startswith("error: 1 step(s) failed: bad-")
    assert outputs(tmp_path / "store").keys() == {"left", "right"}
    (experiment,) = (tmp_path / "info").iterdir()
    assert experiment.name.startswith("experiment-")

    refused = run(tmp_path, BRANCHES, "--force_run_failed", "false")
    assert refused.returncode == 1
    assert "Step bad-" in refused.stderr and "failed previously" in refused.stderr
    assert "attempt 2:" in run(tmp_path, BRANCHES).stdout
    assert next((tmp_path / "store").glob("bad-*/.executor_status")).read_text() == "FAILED"


COLLECTING = """
steps = [ExecutorStep(name, work, Config(versioned(name))) for name in ("left", "bad")]
above = ExecutorStep("above_bad", work, Config(versioned("above"), output_path_of(steps[1])))
paths = [output_path_of(step).even_if_failed() for step in (steps[0], above)]
executor_main([ExecutorStep("table", work, Config(versioned("table"), paths))])
"""


def test_step_accepting_failed_inputs_runs_after_all_end(tmp_path: Path) -> None:
    done = run(tmp_path, COLLECTING)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 1 step(s) failed: bad-")
    assert "Step 'above_bad' does not run, because its input 'bad' failed." in done.stdout
    assert "Step 'table' does not run" not in done.stdout
    assert done.stdout.rindex("working on table") > done.stdout.index("Step 'above_bad' does not run")
    assert outputs(tmp_path / "store").keys() == {"left", "table"}


def test_steps_are_chosen_and_forced_by_name(tmp_path: Path) -> None:
    assert run(tmp_path, TWO_STEPS, "--max_concurrent", "1", "--run_only", '["^fir"]').stdout.count("working on") == 1
    forced = run(tmp_path, TWO_STEPS, "--max_concurrent", "1", "--force", '["^first$"]')
    assert forced.returncode == 0, forced.stderr
    assert forced.stdout.index("working on one") < forced.stdout.index("working on two")
    downstream = ("--force", '["^first$"]', "--force_downstream", "true", "--dry_run", "True")
    assert "2 RUN" in run(tmp_path, TWO_STEPS, "--max_concurrent", "1", *downstream).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--surprise", "1"), "unrecognized arguments: --surprise 1"),
        (("--run_only", "first"), "write a JSON list of regular expressions"),
        (("--force", '["("]'), "'(' is not a regular expression"),
        (("--max_concurrent", "0"), "write a whole number above zero, not 0"),
        (("--dry_run", "maybe"), "write true or false"),
    ],
)
def test_a_bad_command_line_ends_with_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, TWO_STEPS, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_script_stops_step_and_releases_lease(tmp_path: Path, signum: int) -> None:
    body = 'executor_main([ExecutorStep("s", work, Config(versioned("endless")))])'
    script = start(tmp_path, body)
    assert script.stdout is not None
    for line in script.stdout:
        if "working on endless" in line:
            break
    script.send_signal(signum)
    script.communicate(timeout=limit_s())
    assert script.returncode != 0
    (lease_file,) = (tmp_path / "store").glob("s-*/.executor_status.lock")
    until(lambda: json.loads(lease_file.read_text())["phase"] == "stopped", "the lease to end")


@pytest.mark.parametrize("name", ["a_file", "a_file/below"])
def test_prefix_that_is_no_folder_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("")
    done = run(tmp_path, TWO_STEPS, prefix=name)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and "Not a directory" in done.stderr and "prefix" in done.stderr


def test_script_warns_of_probable_secret_in_config(tmp_path: Path) -> None:
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    body = f'executor_main([ExecutorStep("s", work, {{"wandb": "{token}"}})])'
    done = run(tmp_path, body, "--dry_run", "true")
    assert "config.wandb looks like a secret" in done.stderr and token not in done.stdout + done.stderr


def test_a_step_that_cannot_be_claimed_says_why(tmp_path: Path) -> None:
    body = 'executor_main([ExecutorStep("outer", work, Config(2), override_output_path="z")])'
    (tmp_path / "store" / "z" / "y").mkdir(parents=True)
    (tmp_path / "store" / "z" / "y" / ".executor_status").write_text("SUCCESS")
    done = run(tmp_path, body)
    assert done.returncode == 1 and "1 step(s) failed: outer-" in done.stderr
    assert "z holds outputs of other steps, as y/.executor_" in done.stdout, done.stdout
