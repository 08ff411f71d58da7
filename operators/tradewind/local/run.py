"""Run an experiment file as a script: plan it like any run, then start each step once its inputs exist.

The steps and their records are those of the experiment's DAG. Drivers run on this machine. Inside a Ray job, drivers of
steps on slices, GPUs or several hosts reserve these on the job's cluster.

A failed step blocks only the steps that read its output; the next run reuses the results of the others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tradewind.attempts.decisions import TaskIdentity
from tradewind.local.step import Drivers, LocalStep, LocalStepFailedError, in_ray_job, make_output
from tradewind.plans.output_locations import check_output_places
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.plans.prefixes import choose_prefix, mirror_prefixes
from tradewind.plans.selection import Selection, SelectionError
from tradewind.plans.table import plan_table
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.records.attempts import utc_now
from tradewind.records.info_files import step_info, write_experiment_info
from tradewind.records.lease import check_readable
from tradewind.records.record import Record, RecordState
from tradewind.serialization.errors import SpecError
from tradewind.serialization.references import CodeFolder, function_name
from tradewind.serialization.spec import encode_resources, step_spec
from tradewind.steps import (
    Cpu,
    ExecutorStep,
    ExperimentError,
    Gpu,
    Hosts,
    InputName,
    MissingPrefixError,
    RelativePrefixError,
    ResolvedExperiment,
    ResolvedStep,
    TpuSlice,
    UnknownRunValueError,
    check_bounded,
    resolve,
    truncated_repr,
    wanted_steps,
)
from tradewind.steps.paths import is_absolute
from tradewind.steps.run_values import RunValue, RunValueKind, coerce_param, param_default
from tradewind.storage import Roots, StorageError
from tradewind.tasks.jobs.exposed_secrets import check_spec
from tradewind.tasks.jobs.placement import check_slice_types
from tradewind.text import escape_control_characters

MAX_CONCURRENT_STEPS: Final = 8
"""Default number of concurrent steps, as in Marin's executor."""
EXIT_INTERRUPTED: Final = 130


class ExperimentFailedError(RuntimeError):
    """Some steps have no result. ``failures`` are their errors; the first is the cause."""

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        super().__init__(f"{len(failures)} step(s) failed: {', '.join(sorted(failures))}")
        self.failures = failures


class PreviousTaskFailedError(RuntimeError):
    """A step failed in an earlier run, and this run does not retry it."""


@dataclass(frozen=True)
class ScriptArguments:
    """Arguments of ``experiment_dag`` that a script takes; its command line overrides the first two."""

    prefix: str | None = None
    selection: Selection = Selection()
    params: Mapping[str, Any] = field(default_factory=dict)
    max_concurrent: int | None = None
    allow_outside: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScriptValues:
    """Run values of a script, which belongs to no DAG run: only the defaults of params."""

    params: Mapping[str, Any] = field(default_factory=dict)

    def value_of(self, wanted: RunValue) -> Any:
        """Return the default of a param.

        Raises:
            UnknownRunValueError: The experiment has no such param, or another value is wanted.
        """
        if wanted.kind is RunValueKind.PARAM and wanted.name is not None and wanted.name in self.params:
            param = self.params[wanted.name]
            default = param_default(param)
            check_bounded(default, f"param {truncated_repr(wanted.name)}", is_json=True)
            return coerce_param(default, getattr(param, "schema", None), default)
        raise UnknownRunValueError(
            f"{wanted!s} has no value in a script, which has only the defaults of its params: write the value into the "
            "config, or run the experiment as a DAG."
        )


@dataclass(frozen=True)
class _ScriptRun:
    """The resolved and planned experiment, before any step starts."""

    experiment: ResolvedExperiment
    steps: Sequence[ResolvedStep]
    records: Mapping[str, Record]
    plan: Plan
    roots: Roots

    def decided(self, *decisions: Decision) -> list[tuple[ResolvedStep, PlannedStep]]:
        """Return the steps with one of these decisions, in execution order."""
        both = zip(self.steps, self.plan.steps, strict=True)
        return [(step, planned) for step, planned in both if planned.decision in decisions]


def run_experiment(
    steps: Sequence[ExecutorStep | InputName],
    prefix: str,
    code: CodeFolder,
    *,
    selection: Selection,
    max_concurrent: int = MAX_CONCURRENT_STEPS,
    dry_run: bool = False,
    caller: str | None = None,
    info_folder: str | None = None,
    allow_outside: Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
) -> dict[ExecutorStep, str]:
    """Make the outputs of ``steps`` and their dependencies; return the output path of each step.

    Args:
        code: The folder that the steps' functions are imported from.
        max_concurrent: Maximum number of concurrent steps.
        dry_run: Print the plan, and write nothing.
        caller: The file that defines the experiment, named in the experiment's file; without it there is none.
        info_folder: The folder of that file, if not ``experiments`` below the prefix.
        allow_outside: Names of steps whose outputs may be outside the prefix, and paths below which any may be.
        params: The params of the experiment, whose defaults count.

    Raises:
        ValueError: ``max_concurrent`` is not positive.
        ExperimentError: The steps make no valid experiment.
        SpecError: A step that must run has no function, or none that another process can import.
        ExposedSecretError: The options of its Ray task hold a secret, which its records would show.
        PreviousTaskFailedError: A required step failed before, and ``selection`` does not force it.
        UnreadableLeaseError: The lease of a required step cannot be read.
        ExperimentError: A step's output would be outside the prefix.
        ExperimentFailedError: At least one step failed; all steps that do not depend on it have results.
    """
    if max_concurrent < 1:
        raise ValueError(f"max_concurrent must be a positive integer, got {max_concurrent}")
    run = _plan(steps, prefix, selection, allow_outside, ScriptValues(params or {}))
    print(escape_control_characters(plan_table(run.plan)), flush=True)
    due = [_local_step(step, planned, code, run.roots) for step, planned in run.decided(Decision.RUN, Decision.WAIT)]
    _warn_of_resources([local.step for local in due])
    if not dry_run:
        _refuse_blocked(run)
        if caller is not None:
            _write_experiment(run, code, caller, info_folder)
        _make_all(due, code, max_concurrent, selection.force_run_failed)
        if not due:
            print("No step had to run.", flush=True)
    return {step: resolved.output_path for step, resolved in run.experiment.by_object.items()}


def _plan(
    steps: Sequence[ExecutorStep | InputName],
    prefix: str,
    selection: Selection,
    allow_outside: Sequence[str],
    values: ScriptValues,
) -> _ScriptRun:
    experiment = resolve(steps, prefix, values)
    if not experiment.steps:
        raise ExperimentError("The experiment has no steps.")
    check_slice_types(resolved.step for resolved in experiment.steps)
    roots = check_output_places(experiment.steps, prefix, lambda: Roots.of([prefix]), allow_outside)
    wanted = wanted_steps(steps)
    # A step that is named in the options is wanted, also if it is only read without waiting.
    candidates = experiment.steps if selection.run_only or selection.force else experiment.needed(wanted)
    outputs = read_outputs([step.output_path for step in candidates])
    tasks = [(step.version_json, step) for step in candidates]
    wanted_texts = {experiment.of(step).version_json for step in wanted}
    plan = plan_now(prefix, tasks, wanted_texts, outputs, selection, roots=roots)
    return _ScriptRun(experiment, candidates, outputs.records, plan, roots)


def _local_step(step: ResolvedStep, planned: PlannedStep, code: CodeFolder, roots: Roots) -> LocalStep:
    written = step_spec(step, code, mirror_prefixes(None, os.environ) if step.mirrors else ())
    spec = check_spec(replace(written, resources=encode_resources(_place(step))))
    return LocalStep(step, spec, planned, roots)


def _place(step: ResolvedStep) -> Cpu | TpuSlice | Hosts:
    """Return where the function of a step runs: on reserved hosts, or beside its driver.

    A step on GPUs is a group of one host. It restarts when its node is lost, and fails as a job does.
    """
    wanted = step.step.resources
    if in_ray_job(os.environ):
        match wanted:
            case TpuSlice() | Hosts():
                return wanted
            case Gpu(count, kind, num_cpus):
                return Hosts(1, num_cpus, gpus=math.ceil(count), gpu_type=kind, max_failures=0)
    return Cpu()


def _warn_of_resources(due: Sequence[ResolvedStep]) -> None:
    """Warn of steps that a DAG would run elsewhere, so that a training on CPUs is no surprise."""
    demanding = [step for step in due if isinstance(step.step.resources, (TpuSlice, Hosts, Gpu))]
    if here := [step for step in demanding if isinstance(_place(step), Cpu)]:
        print(
            f"{_list_resources(here)} will run on the CPUs of this machine: outside a Ray job, a script ignores "
            "resources. Run the experiment as a DAG to run each step on its resources.",
            flush=True,
        )
        return
    gpus = [(step, step.step.resources) for step in demanding]
    if rounded := [step for step, gpu in gpus if isinstance(gpu, Gpu) and gpu.count != int(gpu.count)]:
        print(f"{_list_resources(rounded)} will have whole GPUs: a script does not share them among steps.", flush=True)


def _list_resources(steps: Sequence[ResolvedStep]) -> str:
    return ", ".join(f"{step.name!r} ({step.step.resources!r})" for step in steps)


def _refuse_blocked(run: _ScriptRun) -> None:
    for step, _ in run.decided(Decision.BLOCKED):
        check_readable(step.output_path, run.records[step.output_path].lease)
    failed = [
        step for step, _ in run.decided(Decision.BLOCKED) if run.records[step.output_path].state is RecordState.FAILED
    ]
    if failed:
        raise PreviousTaskFailedError(
            f"Step {failed[0].version_name} failed previously, output path {failed[0].output_path}. Allow "
            "force_run_failed to run it again."
        )


def _write_experiment(run: _ScriptRun, code: CodeFolder, caller: str, folder: str | None) -> None:
    infos = [step_info(step, function_name(step.step.fn, code)) for step in run.experiment.steps]
    name = os.path.splitext(os.path.basename(caller))[0]
    path = write_experiment_info(run.plan.prefix, name, infos, caller, code.commit(), folder)
    print(f"Experiment: {path}", flush=True)


def _make_all(due: Sequence[LocalStep], code: CodeFolder, max_concurrent: int, retries_failures: bool) -> None:
    """Run all due steps, at most ``max_concurrent`` at a time."""
    by = {"script": sys.argv[0], "host": socket.gethostname(), "pid": os.getpid(), "since": utc_now()}
    task = TaskIdentity(by, retries_failures=retries_failures)
    drivers = Drivers(code.path, has_labels=min(max_concurrent, len(due)) > 1)
    schedule = _Schedule(due)
    running: dict[Future[None], LocalStep] = {}
    with ThreadPoolExecutor(max_concurrent) as pool:
        try:
            while True:
                for local in schedule.take_ready():
                    running[pool.submit(make_output, local, drivers, task)] = local
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    schedule.end(running.pop(future), future.exception())
        except BaseException:  # mostly the user's Ctrl-C, which drivers, in their own sessions, do not get
            drivers.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if schedule.failures:
        raise ExperimentFailedError(schedule.failures) from next(iter(schedule.failures.values()))


class _Schedule:
    """Steps that may start: those whose inputs exist. ``failures`` are the errors so far."""

    def __init__(self, due: Sequence[LocalStep]) -> None:
        steps = {local.step for local in due}
        self._waiting = {local: steps.intersection(local.step.dependencies) for local in due}
        self.failures: dict[str, LocalStepFailedError] = {}
        self._count, self._done = len(due), 0

    def take_ready(self) -> list[LocalStep]:
        """Return the steps whose inputs now exist, each once, in execution order."""
        ready = [local for local, inputs in self._waiting.items() if not inputs]
        for local in ready:
            del self._waiting[local]
        return ready

    def end(self, local: LocalStep, error: BaseException | None) -> None:
        """Record that a step has ended; if it failed, give up the steps that depend on it."""
        if error is None:
            self._done += 1
            print(f"Step {local.step.name!r} is done: {self._done} of {self._count}.", flush=True)
            self._remove_input(local.step)
            return
        if not isinstance(error, LocalStepFailedError):
            failure = LocalStepFailedError(f"Step failed: {local.version_name}. {type(error).__name__}: {error}")
            failure.__cause__, error = error, failure
        print(escape_control_characters(str(error)), flush=True)  # the text has the step and the reason
        self.failures[local.version_name] = error
        self._drop_readers(local.step)

    def _drop_readers(self, step: ResolvedStep) -> None:
        """Drop the steps that cannot run without it; the others no longer wait for it."""
        for local in [local for local in self._waiting if step in local.step.needed]:
            if self._waiting.pop(local, None) is not None:
                print(f"Step {local.step.name!r} does not run, because its input {step.name!r} failed.", flush=True)
                self._drop_readers(local.step)
        self._remove_input(step)

    def _remove_input(self, step: ResolvedStep) -> None:
        for inputs in self._waiting.values():
            inputs.discard(step)


def run_script(
    steps: Sequence[ExecutorStep | InputName], code: Path, argv: Sequence[str], given: ScriptArguments
) -> None:
    """Run ``steps`` with the command line ``argv``.

    The process exits with 1 if a step fails, 2 if the command line is invalid.

    Args:
        code: The folder of the script.
        given: Arguments of the file; its ``max_concurrent`` overrides the command line.
    """
    parser = _parser(given.selection)
    arguments = parser.parse_args(argv)
    try:
        param = param_default(given.params.get("prefix"))
        prefix = choose_prefix(_absolute(arguments.prefix) or given.prefix, param, os.environ, None, lambda: None).path
        selection = _selection(arguments)
    except MissingPrefixError:
        parser.error("there is no prefix for outputs: give --prefix, or set TRADEWIND_PREFIX")
    except (RelativePrefixError, SelectionError, StorageError) as error:
        parser.error(str(error))
    try:
        run_experiment(
            steps,
            prefix,
            CodeFolder(code),
            selection=selection,
            max_concurrent=given.max_concurrent or arguments.max_concurrent,
            dry_run=arguments.dry_run,
            caller=sys.argv[0],
            info_folder=_absolute(arguments.executor_info_base_path),
            allow_outside=given.allow_outside,
            params=given.params,
        )
    except (
        *(ExperimentError, SpecError, StorageError, BadRequestError, ExperimentFailedError, PreviousTaskFailedError),
    ) as error:
        sys.exit(escape_control_characters(f"error: {error}"))
    except OSError as error:  # an error of the disk, or a prefix that is a file
        told = (
            f"error: {error.filename or prefix}: {error.strerror or error}: check that the prefix is a writable folder."
        )
        sys.exit(escape_control_characters(told))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _parser(defaults: Selection) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the steps of this experiment.", allow_abbrev=False)
    parser.add_argument("--prefix", help="where outputs go (default: TRADEWIND_PREFIX, then MARIN_PREFIX)")
    parser.add_argument(
        "--executor_info_base_path",
        metavar="PATH",
        help="where the experiment's JSON file goes (default: experiments below the prefix)",
    )
    regexes: dict[str, Any] = {"type": _regexes, "metavar": "'[\"RE\", ...]'"}
    yes_or_no: dict[str, Any] = {"type": _boolean, "metavar": "BOOL"}
    parser.add_argument("--dry_run", default=False, **yes_or_no, help="only print the plan")
    parser.add_argument(
        "--run_only", **regexes, help="run only the steps with these names, and the steps that they need"
    )
    parser.add_argument("--force", **regexes, help="make the steps with these names again, finished or not")
    parser.add_argument("--force_downstream", **yes_or_no, help="and the steps that read their outputs")
    parser.add_argument("--force_run_failed", **yes_or_no, help="run failed steps again (default: true)")
    parser.add_argument(
        "--max_concurrent",
        type=_positive,
        default=MAX_CONCURRENT_STEPS,
        metavar="N",
        help=f"how many steps run at a time (default: {MAX_CONCURRENT_STEPS})",
    )
    parser.set_defaults(**asdict(defaults))
    return parser


def _absolute(path: str | None) -> str | None:
    """Make a path of the command line absolute: the steps run in the script's folder."""
    return os.path.abspath(path) if path and not is_absolute(path) else path


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection(
        run_only=arguments.run_only,
        force=arguments.force,
        force_downstream=arguments.force_downstream,
        force_run_failed=arguments.force_run_failed,
    )


def _regexes(text: str) -> Any:
    try:
        regexes = json.loads(text)
    except (ValueError, RecursionError):
        regexes = None
    if not isinstance(regexes, list):
        raise argparse.ArgumentTypeError(f'write a JSON list of regular expressions like ["^train/"], not {text}')
    return tuple(regexes)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError("write true or false")
    return text.lower() == "true"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"write a whole number above zero, not {text}")
    return int(text)
