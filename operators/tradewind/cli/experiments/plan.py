"""``tradewind plan``, ``why`` and ``diff``: what a run would do and why, as its ``plan`` task would decide now.

Nothing is written.
"""

from __future__ import annotations

import argparse
import time

from tradewind.cli.experiments import explain
from tradewind.cli.experiments.load import (
    Experiment,
    ExperimentRun,
    RunChoice,
    default_prefix,
    load_experiment,
)
from tradewind.cli.output import json_lines, write_lines
from tradewind.plans.plan import Decision, Plan
from tradewind.plans.planning import Outputs, plan_now, read_outputs
from tradewind.plans.selection import Selection
from tradewind.plans.table import plan_table


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan of a run.

    Raises:
        CommandError: There is no such DAG.
        ExperimentError: Its steps cannot be resolved, the selection makes no sense, or steps read across regions.
        StoreUnavailableError: The store does not answer.
    """
    experiment = load_experiment(arguments.dag_id)
    choice = RunChoice.of(arguments)
    run = experiment.run(choice)
    outputs = read_run(run, verify=arguments.verify)
    selection = selection_of(arguments, experiment.selection(choice))
    made = plan_now(run.prefix, run.tasks, run.wanted, outputs, selection, roots=run.roots)
    write_lines(json_lines(made.to_json()) if arguments.json else plan_table(made).splitlines())
    _refuse_what_cannot_run(experiment, run, made)
    return 0


def why(arguments: argparse.Namespace) -> int:
    """Print why one step would run, or would not.

    Raises:
        CommandError: There is no such DAG.
        UsageError: There is no such step.
        ExperimentError: The steps cannot be resolved.
        StoreUnavailableError: The store does not answer.
    """
    experiment = load_experiment(arguments.dag_id)
    choice = RunChoice.of(arguments)
    run = experiment.run(choice)
    task_id, step = run.task(arguments.step)
    outputs = read_run(run)
    made = plan_now(run.prefix, run.tasks, run.wanted, outputs, experiment.selection(choice), roots=run.roots)
    record = outputs.records[step.output_path]
    told = explain.why(step, record, now=time.time(), roots=run.roots, planned=made.of_task(task_id))
    return _told(told, as_json=arguments.json)


def diff(arguments: argparse.Namespace) -> int:
    """Print in what two versions of a step differ.

    Raises:
        CommandError: There is no record of one of them.
        UsageError: A hash belongs to several versions.
        MissingPrefixError: Nothing says where to look.
    """
    return _told(
        explain.diff(arguments.first, arguments.second, default_prefix(arguments.prefix)), as_json=arguments.json
    )


def read_run(run: ExperimentRun, *, verify: bool = False) -> Outputs:
    """What the store says of the outputs of ``run`` now."""
    return read_outputs([step.output_path for _, step in run.tasks], verify=verify)


def _refuse_what_cannot_run(experiment: Experiment, run: ExperimentRun, made: Plan) -> None:
    """Refuse what the ``plan`` task would refuse, once its table has been shown."""
    from tradewind.tasks.cluster_slices import refuse_missing_slice_types
    from tradewind.tasks.regions import refuse_cross_region_reads

    operator, steps = experiment.operator, dict(run.tasks)
    to_run = [steps[planned.task_id] for planned in made.decided(Decision.RUN)]
    refuse_missing_slice_types(to_run, operator.settings.cluster_of)
    refuse_cross_region_reads(to_run, operator.settings.cluster_of, operator.allow_cross_region)


def selection_of(arguments: argparse.Namespace, otherwise: Selection) -> Selection:
    """What the options ask for; where they say nothing, what the DAG's params do.

    Raises:
        SelectionError: An expression is no regular expression.
    """

    def chosen(name: str) -> bool:
        given = getattr(arguments, name)
        return bool(getattr(otherwise, name) if given is None else given)

    return Selection(
        otherwise.run_only if arguments.run_only is None else tuple(arguments.run_only),
        otherwise.force if arguments.force is None else tuple(arguments.force),
        chosen("force_downstream"),
        chosen("force_run_failed"),
    )


def _told(explanation: explain.Explanation, *, as_json: bool) -> int:
    write_lines(json_lines(explanation.to_json()) if as_json else list(explanation.lines))
    return 0
