"""``tradewind gc``: list old outputs that no DAG, run or pin requires, and remove them on request.

The outputs that a DAG requires are known only if its file loads. Those of active runs are known only if Airflow's
database lists the runs, queued and running ones, also of backfills; it is only read. Without either, ``gc`` removes
nothing.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.cli.experiments.load import Experiment, Experiments, RunChoice, load_experiments
from tradewind.cli.experiments.outputs import renewed_lease
from tradewind.cli.output import CommandError, UsageError, json_lines, say, user_name, write_lines
from tradewind.plans.garbage.collection import (
    Garbage,
    RequiredOutputs,
    Sweep,
    find_garbage_below,
    remove_garbage,
    withdraw_results,
)
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.records.attempts import utc_now
from tradewind.steps import ExperimentError, MissingPrefixError, RunValues
from tradewind.steps.amounts import human_size
from tradewind.storage import StorageError
from tradewind.text import format_age

_NO_PREFIX = (MissingPrefixError, RayJobsError)
"""Errors that mean no prefix: the DAG, the deployment and the connection give none."""
_WITHDRAWN_AT_ONCE = 200
"""Outputs that are marked, checked and withdrawn together, before the first of them is removed."""


class UnreadableRunsError(CommandError):
    """The active runs cannot be read."""


@dataclass(frozen=True)
class ActiveRun:
    """A queued or running DAG run.

    Attributes:
        given: The params that it was triggered with.
        bundle_version: The version of the DAG's code that it is bound to, if any.
    """

    dag_id: str
    run_id: str
    given: Mapping[str, Any]
    partition_key: str | None
    data_interval: tuple[Any, Any]
    run_after: Any
    bundle_version: str | None

    def values(self, experiment: Experiment) -> RunValues:
        """Return the run values that the run's own tasks have.

        Raises:
            ExperimentError: The run is bound to another version of the code.
            ParamValidationError: The DAG no longer takes its params.
        """
        if self.bundle_version is not None and self.bundle_version != experiment.bundle_version:
            raise ExperimentError(f"the run uses version {self.bundle_version} of the code, which was not read.")
        from airflow.sdk import conf

        params = copy.deepcopy(experiment.dag.params)
        if conf.getboolean("core", "dag_run_conf_overrides_params"):
            params.update(self.given)
        settings = experiment.operator.settings
        return settings.values_for(
            experiment.dag, params.validate(), self.partition_key, self.data_interval, self.run_after
        )


def active_runs() -> list[ActiveRun]:
    """Read all queued and running DAG runs of all DAGs with one query.

    Raises:
        UnreadableRunsError: Airflow's database does not answer, or is not Airflow's.
    """
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    columns = (
        DagRun.dag_id,
        DagRun.run_id,
        DagRun.conf,
        DagRun.partition_key,
        DagRun.data_interval_start,
        DagRun.data_interval_end,
        DagRun.run_after,
        DagRun.bundle_version,
    )
    active = select(*columns).where(DagRun.state.in_([DagRunState.QUEUED, DagRunState.RUNNING]))
    try:
        with create_session() as session:
            rows = session.execute(active).all()
    except SQLAlchemyError as error:
        why = str(error).splitlines()[0]
        raise UnreadableRunsError(f"Cannot read the active runs from Airflow's database: {why}") from error
    return [
        ActiveRun(dag_id, run_id, conf or {}, partition_key, (start, end), run_after, bundle_version)
        for dag_id, run_id, conf, partition_key, start, end, run_after, bundle_version in rows
    ]


def collect_garbage(arguments: argparse.Namespace) -> int:
    """List or remove the garbage, with its size in bytes.

    Raises:
        UsageError: A param is given and no DAG named.
        CommandError: A DAG file or the active runs cannot be read, or an output could not be removed.
        StoreUnavailableError: The store does not answer.
    """
    if arguments.params and not arguments.dag_ids:
        raise UsageError("--param applies to named DAGs: name one.")
    experiments = load_experiments()
    named = {dag_id: experiments.of(dag_id) for dag_id in arguments.dag_ids}
    _check_all_loaded(experiments, arguments.delete)
    runs = _active_runs(arguments.delete)
    choices = _choices(experiments, named, dict(arguments.params))
    prefixes = [arguments.prefix] if arguments.prefix else _prefixes(named or experiments.by_id)
    if not prefixes:
        raise UsageError("no DAG has a prefix: give --prefix.")
    needs = _needs(choices, prefixes)
    _add_active(needs, runs, experiments, prefixes)
    names = frozenset().union(*(experiment.step_names for experiment in named.values())) if named else None
    all_prefixes = frozenset([*prefixes, *_all_prefixes(experiments.by_id)])
    others = all_prefixes.difference(prefixes)
    sweeps = find_garbage_below(prefixes, needs, arguments.older_than, names, also_below=others)
    return _Report(arguments.json, arguments.delete, all_prefixes).write(sweeps)


@dataclass(frozen=True)
class _Report:
    """Progress report of the garbage collection.

    Attributes:
        read_below: Prefixes where running attempts may read the garbage.
    """

    as_json: bool
    deletes: bool
    read_below: frozenset[str]

    def write(self, sweeps: Collection[Sweep]) -> int:
        """Remove the garbage if requested, and print it.

        Raises:
            CommandError: An output could not be removed.
        """
        problems: dict[str, str] = {}
        for sweep in sweeps:
            for first in range(0, len(sweep.garbage), _WITHDRAWN_AT_ONCE):
                problems |= self._dispose(sweep.garbage[first : first + _WITHDRAWN_AT_ONCE])
        if self.as_json:
            write_lines(json_lines([self._fields(sweep, problems) for sweep in sweeps]))
        for sweep in sweeps:
            if sweep.unknown:
                say(_unknown(sweep.unknown))
            for error in sweep.unread:
                say(f"An output is kept, because this cannot be read: {error}")
            say(self._summary(sweep, problems))
        if problems:
            raise CommandError(" ".join(f"{path} was not removed: {why}" for path, why in problems.items()))
        return 0

    def _dispose(self, garbage: Sequence[Garbage]) -> dict[str, str]:
        """List or remove these; return path → error."""
        by = {"gc": user_name(), "at": utc_now()}
        problems: dict[str, str] = {}
        withdrawn = withdraw_results(garbage, by, self.read_below) if self.deletes else garbage
        for found, each in zip(garbage, withdrawn, strict=True):
            try:
                if self.deletes:
                    remove_garbage(each, by, renewed_lease)
            except StorageError as error:
                problems[each.path] = str(error)
                continue
            if not self.as_json:
                size, age = human_size(found.bytes), format_age(found.age_s)
                write_lines([f"{size:>12}  {found.state.value:<8}  {age:<14}  {found.path}"])
        return problems

    def _summary(self, sweep: Sweep, problems: Mapping[str, str]) -> str:
        gone = [each for each in sweep.garbage if each.path not in problems]
        verb = "removed" if self.deletes else "would be removed with --delete"
        return (
            f"{human_size(sum(each.bytes for each in gone))} in {len(gone)} of {sweep.outputs} outputs below "
            f"{sweep.prefix} {verb}; {sweep.needed} needed, {sweep.young} too young."
        )

    def _fields(self, sweep: Sweep, problems: Mapping[str, str]) -> dict[str, Any]:
        garbage = [
            {
                "output_path": each.path,
                "name": each.name,
                "state": each.state.value,
                "age_s": round(each.age_s),
                "bytes": each.bytes,
                "files": each.files,
                "removed": self.deletes and each.path not in problems,
                "problem": problems.get(each.path),
            }
            for each in sweep.garbage
        ]
        counts = {"outputs": sweep.outputs, "needed": sweep.needed, "young": sweep.young, "bytes": sweep.bytes}
        return {"prefix": sweep.prefix, **counts, "garbage": garbage}


def _unknown(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return (
        f"All outputs are kept: a required one was made from {paths[0]}{more}, which is below no allowed root, so its "
        "own inputs are unknown. Have an administrator add its folder or bucket to allowed_roots in the [tradewind] "
        "section of airflow.cfg."
    )


def _check_all_loaded(experiments: Experiments, deletes: bool) -> None:
    for where, why in experiments.problems.items():
        say(f"{where} could not be loaded, so the outputs that it requires are unknown: {why}")
    if experiments.problems and deletes:
        raise CommandError("Nothing was removed, because a DAG file could not be loaded.")


def _active_runs(deletes: bool) -> list[ActiveRun]:
    """Return the active runs; if they cannot be read, warn and return none where ``gc`` only lists.

    Raises:
        UnreadableRunsError: They cannot be read, and ``gc`` is to remove outputs.
    """
    try:
        return active_runs()
    except UnreadableRunsError as error:
        if deletes:
            raise UnreadableRunsError(f"Nothing was removed. {error}") from error
        say(f"The list includes outputs that active runs require: {error}")
        return []


def _choices(
    experiments: Experiments, named: Mapping[str, Experiment], params: Mapping[str, str]
) -> list[tuple[Experiment, RunChoice]]:
    """Return every DAG with its default params, and the named ones also with the given params.

    Raises:
        UsageError: A named DAG does not take the given params.
    """
    given = [(experiment, RunChoice(params)) for experiment in named.values()] if params else []
    for experiment, choice in given:
        experiment.values(choice)
    return [*((experiment, RunChoice()) for experiment in experiments.by_id.values()), *given]


def _prefixes(by_id: Mapping[str, Experiment]) -> list[str]:
    """Return the prefixes of these DAGs' outputs, without prefixes inside another one."""
    found = _all_prefixes(by_id)
    return sorted(path for path in found if not any(path.startswith(f"{other}/") for other in found))


def _all_prefixes(by_id: Mapping[str, Experiment]) -> set[str]:
    """Return also nested prefixes: a search from the outer one may skip hidden folders and links."""
    found: set[str] = set()
    for id_, experiment in by_id.items():
        try:
            found.add(experiment.prefix(RunChoice()).rstrip("/"))
        except (RayJobsError, ExperimentError, StorageError, UsageError) as error:
            say(f"DAG {id_}: {error}")
    return found


def _needs(choices: Collection[tuple[Experiment, RunChoice]], prefixes: Collection[str]) -> RequiredOutputs:
    """Return the outputs that the DAGs require, below their own prefixes and below ``prefixes``."""
    from tradewind.deployment.fleet import deployment_roots

    needs = RequiredOutputs(roots=set(deployment_roots().paths))
    for experiment, choice in choices:
        try:
            _add_steps(needs, experiment, experiment.values(choice), prefixes)
        except (ExperimentError, StorageError, UsageError) as error:  # no run of this DAG could start
            say(f"All outputs of the steps of DAG {experiment.id} are kept: {error}")
            needs.names |= experiment.step_names
    return needs


def _add_active(
    needs: RequiredOutputs, runs: Collection[ActiveRun], experiments: Experiments, prefixes: Collection[str]
) -> None:
    """Add the outputs that active runs require, with their own params, dates and partition keys."""
    for run, experiment in [(each, one) for each in runs for one in experiments.of_dag(each.dag_id)]:
        try:
            _add_steps(needs, experiment, run.values(experiment), prefixes)
        except Exception as error:  # params may raise any error; the run may still require outputs
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            say(f"All outputs of the steps of DAG {experiment.id} are kept, for its active run {run.run_id}: {why}")
            needs.names |= experiment.step_names


def _add_steps(needs: RequiredOutputs, experiment: Experiment, values: RunValues, prefixes: Collection[str]) -> None:
    for prefix in (None, *prefixes):
        try:
            run = experiment.run_with(values, prefix)
        except _NO_PREFIX:
            continue  # its outputs are below one of the prefixes
        needs.roots.update(run.roots.paths)
        for _, step in run.tasks:
            needs.add_step(step)
