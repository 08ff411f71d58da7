"""Experiments at the command line: the DAGs of this deployment, parsed right here, and the steps of one of their runs.

Nothing is written, neither to Airflow's database nor to a store, and no DAG run is needed: the params are the DAG's
defaults with what was given, and the night is the one that a run triggered now would have.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import CommandError, UsageError
from tradewind.steps import ResolvedStep, RunValues
from tradewind.storage import Location, Roots

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tradewind.operators.plan import PlanOperator
    from tradewind.plans.selection import Selection
    from tradewind.tasks.context import ExperimentSettings


_PARSED_FOR: Final = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"
_MOST_NAMED: Final = 10
_MOST_PROBLEMS: Final = 3


@dataclass(frozen=True)
class RunChoice:
    """Which run of a DAG is meant; what is left out is as in a run that is triggered now."""

    params: Mapping[str, str] = field(default_factory=dict)
    partition: str | None = None
    night: datetime.date | None = None
    prefix: str | None = None

    @staticmethod
    def of(arguments: argparse.Namespace) -> RunChoice:
        """The choice in a command's options."""
        return RunChoice(dict(arguments.params), arguments.partition, arguments.night, arguments.prefix)


@dataclass(frozen=True)
class ExperimentRun:
    """The steps of one run, with their versions."""

    dag_id: str
    prefix: str
    values: RunValues
    tasks: tuple[tuple[str, ResolvedStep], ...]
    wanted: frozenset[str]
    roots: Roots

    def task(self, word: str) -> tuple[str, ResolvedStep]:
        """The task id and the step of this name, task id or ``name-hash``.

        Raises:
            UsageError: There is none, or there are several.
        """
        words = {task_id: (step.name, task_id, step.version_name) for task_id, step in self.tasks}
        found = {id_: step for id_, step in self.tasks if word in words[id_]}
        if word in found:
            return word, found[word]
        if not found:
            known = ", ".join(task_id for task_id, _ in self.tasks)
            raise UsageError(f"DAG {self.dag_id!r} has no step {word!r}; its tasks are {known}.")
        if len(found) > 1:
            raise UsageError(
                f"DAG {self.dag_id!r} has several steps {word!r}: name one by its task, {', '.join(found)}."
            )
        return next(iter(found.items()))


@dataclass(frozen=True)
class Experiment:
    """A DAG that ``experiment_dag`` made.

    Attributes:
        bundle_version: The version of the code that was read; None where its bundle has no versions.
    """

    dag: DAG
    operator: PlanOperator
    bundle_version: str | None = None

    @property
    def step_names(self) -> frozenset[str]:
        """The names of its steps, whatever their versions."""
        return frozenset(step.name for step in self.operator.steps.values())

    def run(self, choice: RunChoice) -> ExperimentRun:
        """The steps of the run that is meant.

        Raises:
            UsageError: There can be no such run.
            ExperimentError: Its steps cannot be resolved.
        """
        return self.run_with(self.values(choice), choice.prefix)

    def run_with(self, values: RunValues, prefix: str | None = None) -> ExperimentRun:
        """The steps of a run with these values, below ``prefix`` if one is chosen.

        Raises:
            ExperimentError: They cannot be resolved.
        """
        steps = self.operator.steps
        placed = self.settings(prefix).resolve(list(steps.values()), values)
        tasks = tuple((task_id, placed.experiment.of(step)) for task_id, step in steps.items())
        prefix = placed.experiment.prefix
        return ExperimentRun(self.dag.dag_id, prefix, values, tasks, self.operator.wanted, placed.roots)

    def prefix(self, choice: RunChoice) -> str:
        """Where outputs of the run that is meant go.

        Raises:
            UsageError: There can be no such run.
            MissingPrefixError: Nothing gives a prefix.
        """
        return self.settings(choice.prefix).prefix_of(self.values(choice))

    def selection(self, choice: RunChoice) -> Selection:
        """What the DAG's params say of the steps that run.

        Raises:
            UsageError: A param does not exist or does not fit.
            SelectionError: An expression is no regular expression.
        """
        from tradewind.tasks.params import selection_in

        return selection_in(run_params(self.dag, choice.params))

    def settings(self, prefix: str | None) -> ExperimentSettings:
        """What the DAG's tasks share, with the prefix if one was chosen."""
        settings = self.operator.settings
        return replace(settings, prefix=prefix, roots=(*settings.roots, prefix)) if prefix else settings

    def values(self, choice: RunChoice) -> RunValues:
        """The run values.

        Raises:
            UsageError: A param does not exist or does not fit, or the DAG has no run for that night.
        """
        import pendulum

        settings = self.operator.settings
        params = run_params(self.dag, choice.params)
        run_after = pendulum.now("UTC")
        if choice.night is not None:
            run_after = _midnight(choice.night, settings.timezone).add(days=1)
        interval = data_interval(self.dag, choice, settings.timezone)
        return settings.values_for(self.dag, params, choice.partition, interval, run_after)


@dataclass(frozen=True)
class Experiments:
    """What the deployment's DAG files hold.

    Attributes:
        by_dag: The experiments by DAG id.
        problems: Bundle or file → why it could not be loaded; what it would have held is unknown.
    """

    by_dag: Mapping[str, Experiment]
    problems: Mapping[str, str]

    def of(self, dag_id: str) -> Experiment:
        """The experiment of this DAG id.

        Raises:
            CommandError: There is none.
        """
        if dag_id in self.by_dag:
            return self.by_dag[dag_id]
        told = [f" {where} could not be loaded: {why}" for where, why in self.problems.items()]
        more = len(told) - _MOST_PROBLEMS
        told = [*told[:_MOST_PROBLEMS], f" {more} more could not be loaded."] if more > 0 else told
        raise CommandError(f"{self._without_dag(dag_id)}{''.join(told)}")

    def _without_dag(self, word: str) -> str:
        """What is wrong with a word that is no DAG id, and where the right one is found."""
        if not word.endswith(".py"):
            airflow = os.environ.get("AIRFLOW_HOME", "~/airflow")
            return (
                f"No DAG {word!r} made by experiment_dag was found in the DAG files of the Airflow that AIRFLOW_HOME "
                f"names, {airflow}; 'airflow dags list --local' lists the DAGs."
            )
        file = os.path.realpath(word)
        held = [repr(id_) for id_, each in self.by_dag.items() if os.path.realpath(each.dag.fileloc) == file]
        if held:
            more = f" and {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
            return f"{word!r} is a file, and a DAG id is wanted: it holds {', '.join(held[:_MOST_NAMED])}{more}."
        return (
            f"{word!r} is a file, and a DAG id is wanted; no DAG made by experiment_dag was found in it, and 'airflow "
            "dags list --local' lists the DAGs that there are."
        )


def load_experiment(dag_id: str) -> Experiment:
    """The experiment of one DAG. Files that make many, such as Marin's, make only this one, as for one of its tasks.

    Raises:
        CommandError: There is none.
        UsageError: There is no Airflow here.
    """
    if not dag_id.endswith(".py"):
        with _only_wanted(dag_id):
            found = load_experiments()
        if dag_id in found.by_dag or found.problems:
            return found.of(dag_id)
    return load_experiments().of(dag_id)


@contextlib.contextmanager
def _only_wanted(dag_id: str) -> Iterator[None]:
    """Tell DAG files so in Airflow's way: what they read with ``get_parsing_context()``."""
    before = os.environ.get(_PARSED_FOR)
    os.environ[_PARSED_FOR] = dag_id
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARSED_FOR]
        else:
            os.environ[_PARSED_FOR] = before


def load_experiments() -> Experiments:
    """Parse the DAG files of all bundles.

    Raises:
        UsageError: There is no Airflow here.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what DAG files print is no result of ours
        try:
            enter_airflow()
            from airflow.dag_processing.bundles.manager import DagBundlesManager
        except ImportError:
            raise UsageError(
                "the steps are read from Airflow's DAG files, and Airflow is not installed here."
            ) from None
        manager = DagBundlesManager()
        experiments: dict[str, Experiment] = {}
        problems = dict.fromkeys(manager.get_all_bundle_names(), "it cannot be opened; Airflow's log says why.")
        for bundle in manager.get_all_dag_bundles():
            try:
                bundle.initialize()
            except Exception as error:  # each kind of bundle has its own
                problems[bundle.name] = str(error)
            else:
                del problems[bundle.name]
                _load_bundle(bundle, experiments, problems)
    return Experiments(experiments, problems)


def _load_bundle(bundle: Any, experiments: dict[str, Experiment], problems: dict[str, str]) -> None:
    from airflow.dag_processing.dagbag import BundleDagBag

    from tradewind.operators.plan import PlanOperator

    bag = BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    for file, error in bag.import_errors.items():
        problems[file] = error.strip().splitlines()[-1]
    version = bundle.get_current_version()
    version = getattr(version, "version", version)  # a plain text in older bundles
    for dag_id, dag in bag.dags.items():
        for task in dag.tasks:
            if isinstance(task, PlanOperator):
                experiments[dag_id] = Experiment(dag, task, version)


def run_params(dag: DAG, given: Mapping[str, str]) -> dict[str, Any]:
    """The params of a run: the DAG's own with what was given at the command line.

    Raises:
        UsageError: The DAG has no such param, or a value does not fit its schema.
    """
    from airflow.sdk.exceptions import ParamValidationError

    params = copy.deepcopy(dag.params)
    for name in given:
        if name not in params:
            known = ", ".join(params) or "none at all"
            raise UsageError(f"DAG {dag.dag_id!r} has no param {name!r}; it has {known}.")
    try:
        for name, text in given.items():
            params[name] = _read_as(text, params.get_param(name))
        return dict(params.validate())
    except ParamValidationError as error:
        raise UsageError(f"DAG {dag.dag_id!r}: {str(error).splitlines()[0]}") from None


def _read_as(text: str, param: Any) -> Any:
    """What a text stands for: itself where the param is one, else its meaning as JSON if that fits the schema."""
    from airflow.sdk.exceptions import ParamValidationError

    json_type = param.schema.get("type")
    if json_type == "string" or (json_type is None and isinstance(param.value, str)):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    for reading in (value, text):
        with contextlib.suppress(ParamValidationError):
            return copy.deepcopy(param).resolve(value=reading)
    return value


def data_interval(dag: DAG, choice: RunChoice, timezone: str) -> tuple[Any, Any]:
    """Where the run's data begin and end: as Airflow infers it for a run that is triggered now, or for the night.

    Raises:
        UsageError: The schedule has no run for that night.
    """
    import pendulum
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import TimeRestriction

    timetable: Any = coerce_to_core_timetable(dag.timetable)
    if choice.partition is not None or timetable.partitioned:
        return None, None
    if choice.night is None:
        now = pendulum.now("UTC")
        return timetable.infer_manual_data_interval(run_after=now) if timetable.periodic else (None, None)
    midnight = _midnight(choice.night, timezone)
    if not timetable.periodic:
        return midnight, midnight
    interval = timetable.infer_manual_data_interval(run_after=midnight)
    while interval.start < midnight:
        interval = timetable.next_dagrun_info(
            last_automated_data_interval=interval, restriction=TimeRestriction(None, None, catchup=True)
        ).data_interval
    found = interval.start.in_timezone(timezone).date()
    if found != choice.night:
        raise UsageError(f"DAG {dag.dag_id!r} has no run for {choice.night}; the next one after is that for {found}.")
    return interval.start, interval.end


def _midnight(date: datetime.date, timezone: str) -> Any:
    import pendulum

    return pendulum.datetime(date.year, date.month, date.day, tz=timezone)


def default_prefix(chosen: str | None) -> str:
    """The prefix that a command means which is about no DAG.

    Raises:
        MissingPrefixError: Nothing gives one.
    """
    if chosen:
        Location.of(chosen, "--prefix")
        return chosen
    try:
        enter_airflow()
        from tradewind.tasks.context import ExperimentSettings
    except ImportError:
        from tradewind.plans.prefixes import choose_prefix

        return choose_prefix(None, None, os.environ, None, lambda: None).path
    return ExperimentSettings().prefix_of(RunValues())
