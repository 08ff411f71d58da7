"""Running an experiment file as a script: the same steps with the same records, one after the other, right here."""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from tradewind.plans.places import choose_prefix
from tradewind.plans.plan import Decision, make_plan
from tradewind.plans.start import ClearedTask, Finished, Follow, decide_start
from tradewind.plans.table import plan_table
from tradewind.ray_jobs.ids import step_job_id
from tradewind.records.attempts import Attempt, Outcome, attempt_path, claim_attempt, end_attempt, newest_attempt
from tradewind.records.status import read_status, read_statuses
from tradewind.records.step_info import write_step_info
from tradewind.runtime.errors import SpecError
from tradewind.runtime.process_guard import guarded
from tradewind.runtime.references import CodeFolder
from tradewind.runtime.spec import encode_resources, step_spec
from tradewind.steps import (
    Cpu,
    ExecutorStep,
    ExperimentError,
    InputName,
    MissingPrefixError,
    RelativePrefixError,
    ResolvedStep,
    resolve,
    wanted_steps,
)
from tradewind.steps.paths import is_absolute


class StepAtWorkError(RuntimeError):
    """Somebody else is at work on a step of the script."""


def run_script(steps: Sequence[ExecutorStep | InputName], code: Path, argv: Sequence[str]) -> None:
    """Run ``steps`` with the command line ``argv``; ends the process with 1 if one fails, 2 if the input is bad."""
    parser = argparse.ArgumentParser(description="Run the steps of this experiment on this machine.")
    parser.add_argument("--prefix", help="where outputs go (default: TRADEWIND_PREFIX, then MARIN_PREFIX)")
    parser.add_argument("--dry_run", type=_boolean, default=False, metavar="BOOL", help="only print the plan")
    arguments = parser.parse_args(argv)
    try:
        argument = arguments.prefix
        if argument and not is_absolute(argument):
            argument = os.path.abspath(argument)  # the steps run in the script's folder, wherever it was called
        prefix = choose_prefix(argument, None, os.environ, None, lambda: None)
    except MissingPrefixError:
        parser.error("nothing says where outputs go: give --prefix, or set TRADEWIND_PREFIX")
    except RelativePrefixError as error:
        parser.error(str(error))
    try:
        experiment = resolve(steps, prefix)
        wanted = wanted_steps(steps)
        needed = experiment.needed(wanted)
        tasks = [(step.version_json, step) for step in needed]
        plan = make_plan(prefix, tasks, {experiment.of(step).version_json for step in wanted}, read_statuses)
        print(plan_table(plan), flush=True)
        if not arguments.dry_run:
            for step, planned in zip(needed, plan.steps, strict=True):
                if planned.decision is Decision.RUN and not _run(step, CodeFolder(code)):
                    sys.exit(1)
    except (ExperimentError, SpecError, StepAtWorkError) as error:
        sys.exit(f"error: {error}")


def _run(step: ResolvedStep, code: CodeFolder) -> bool:
    """Make one step's output; whether that went well. The driver prints what went wrong."""
    spec = dataclasses.replace(step_spec(step, code), resources=encode_resources(Cpu()))
    newest = _ended_if_dead(step, newest_attempt(step.output_path))
    start = decide_start(read_status(step.output_path), newest, ClearedTask(), mine=False)
    if isinstance(start, Finished):
        return True
    if isinstance(start, Follow):
        raise StepAtWorkError(
            f"Step {step.name!r}: attempt {start.attempt.number} is at work at {step.output_path}, started by "
            f"{start.attempt.by}: wait for its end."
        )
    job = step_job_id(step.name, step.output_path, step.hash, start.number)
    by = {"script": sys.argv[0], "host": socket.gethostname(), "pid": os.getpid()}
    claimed = claim_attempt(step.output_path, Attempt(start.number, job, "", by, spec.to_json()))
    if claimed.by != by:
        raise StepAtWorkError(f"Step {step.name!r} was started by {claimed.by} just now: wait for its end.")
    write_step_info(step, spec.fn_name)
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_step", attempt_path(step.output_path, start.number)]
    # Guarded, so that a killed script leaves no driver at work behind it.
    return subprocess.run(guarded(command, watch=[]), cwd=code.path, start_new_session=True).returncode == 0


def _ended_if_dead(step: ResolvedStep, attempt: Attempt | None) -> Attempt | None:
    """``attempt``, ended if it was made by a script on this machine that is gone."""
    if attempt is None or attempt.outcome is not None or attempt.by.get("host") != socket.gethostname():
        return attempt
    return attempt if psutil.pid_exists(attempt.by["pid"]) else end_attempt(step.output_path, attempt, Outcome.LOST)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError("write true or false")
    return text.lower() == "true"
