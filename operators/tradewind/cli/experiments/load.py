"""Load experiments for a command: parse the deployment's DAGs, and resolve the steps of one run.

This writes neither to Airflow's database nor to a store, and needs no DAG run. Params are the DAG's defaults with
those given on the command line; the night is that of a run triggered now.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.output import CommandError, UsageError
from tradewind.records.parsing import parse
from tradewind.steps import ResolvedStep, RunValues
from tradewind.storage import Location, Roots

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tradewind.operators.plan import PlanOperator
    from tradewind.plans.selection import Selection
    from tradewind.tasks.context import ExperimentSettings


_PARSED_FOR: Final = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"
_MAX_NAMED: Final = 10
_MAX_PROBLEMS: Final = 3


@dataclass(frozen=True)
class RunChoice:
    """Choice of a DAG's run; omitted values are those of a run triggered now."""

    params: Mapping[str, str] = field(default_factory=dict)
    partition: str | None = None
    night: datetime.date | None = None
    prefix: str | None = None

    @staticmethod
    def of(arguments: argparse.Namespace) -> RunChoice:
        """Read the choice from a command's options."""
        return RunChoice(dict(arguments.params), arguments.partition, arguments.night, arguments.prefix)


@dataclass(frozen=True)
class ExperimentRun:
    """Steps of one run, with their versions."""

    dag_id: str
    prefix: str
    values: RunValues
    tasks: tuple[tuple[str, ResolvedStep], ...]
    wanted: frozenset[str]
    roots: Roots

    def task(self, word: str) -> tuple[str, ResolvedStep]:
        """Return the task id and the step of this name, task id or ``name-hash``.

        Raises:
            UsageError: No step or several steps match.
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
    """A DAG that ``experiment_dag`` made, or one group of steps in a user's DAG.

    Attributes:
        bundle_version: The version of the code that was read; None if its bundle has no versions.
    """

    dag: DAG
    operator: PlanOperator
    bundle_version: str | None = None

    @property
    def id(self) -> str:
        """What a command calls it: the DAG's id, and the group's after a colon, which no DAG's id has."""
        group = self.operator.settings.group
        return f"{self.dag.dag_id}:{group}" if group else self.dag.dag_id

    @property
    def step_names(self) -> frozenset[str]:
        """Return the names of its steps, without their versions."""
        return frozenset(step.name for step in self.operator.steps.values())

    def run(self, choice: RunChoice) -> ExperimentRun:
        """Return the steps of the chosen run.

        Raises:
            UsageError: The DAG can have no such run.
            ExperimentError: Its steps cannot be resolved.
        """
        return self.run_with(self.values(choice), choice.prefix)

    def run_with(self, values: RunValues, prefix: str | None = None) -> ExperimentRun:
        """Return the steps of a run with these values, below ``prefix`` if given.

        Raises:
            ExperimentError: They cannot be resolved.
        """
        steps = self.operator.steps
        placed = self.settings(prefix).resolve(list(steps.values()), values)
        tasks = tuple((task_id, placed.experiment.of(step)) for task_id, step in steps.items())
        prefix = placed.experiment.prefix
        return ExperimentRun(self.dag.dag_id, prefix, values, tasks, self.operator.wanted, placed.roots)

    def prefix(self, choice: RunChoice) -> str:
        """Return the prefix of the chosen run's outputs.

        Raises:
            UsageError: The DAG can have no such run.
            MissingPrefixError: Nothing gives a prefix.
        """
        without = dict.fromkeys(self.operator.settings.value_names)  # no value decides where outputs are
        return self.settings(choice.prefix).prefix_of(self._values(choice, without))

    def selection(self, choice: RunChoice) -> Selection:
        """Return the step selection in the DAG's params.

        Raises:
            UsageError: A param does not exist or does not fit.
            SelectionError: A regular expression is invalid.
        """
        from tradewind.tasks.params import selection_in

        return selection_in(self._params(choice), self.operator.settings.group)

    def settings(self, prefix: str | None) -> ExperimentSettings:
        """Return the settings that the DAG's tasks share, with the prefix if given."""
        settings = self.operator.settings
        return replace(settings, prefix=prefix, roots=(*settings.roots, prefix)) if prefix else settings

    def values(self, choice: RunChoice) -> RunValues:
        """Return the run values.

        Raises:
            UsageError: A param does not exist or does not fit, or the DAG has no run for that night.
        """
        names = self.operator.settings.value_names
        given = {name: _parsed(text) for name, text in choice.params.items() if name in names}
        if missing := [name for name in names if name not in given]:
            options = " ".join(f"--param {name}=VALUE" for name in missing)
            raise UsageError(f"{self.id}: values of this group come from the run's tasks. Give them here: {options}.")
        return self._values(choice, given)

    def _params(self, choice: RunChoice) -> dict[str, Any]:
        names = self.operator.settings.value_names
        return run_params(self.dag, {name: text for name, text in choice.params.items() if name not in names})

    def _values(self, choice: RunChoice, given: Mapping[str, Any]) -> RunValues:
        import pendulum

        settings = self.operator.settings
        params = self._params(choice)
        run_after = pendulum.now("UTC")
        if choice.night is not None:
            run_after = _midnight(choice.night, settings.timezone).add(days=1)
        interval = data_interval(self.dag, choice, settings.timezone)
        return settings.values_for(self.dag, params, choice.partition, interval, run_after, given)


@dataclass(frozen=True)
class Experiments:
    """Experiments in the deployment's DAG files.

    Attributes:
        by_id: The experiments by their ids.
        problems: Bundle or file → why it could not be loaded; its DAGs are unknown.
    """

    by_id: Mapping[str, Experiment]
    problems: Mapping[str, str]

    def of_dag(self, dag_id: str) -> list[Experiment]:
        """Return the experiments of a DAG: itself, or its groups."""
        return [each for each in self.by_id.values() if each.dag.dag_id == dag_id]

    def of(self, dag_id: str) -> Experiment:
        """Return the experiment of this id, or the only one of this DAG.

        Raises:
            CommandError: It does not exist.
            UsageError: The DAG has several groups.
        """
        if dag_id in self.by_id:
            return self.by_id[dag_id]
        if len(groups := self.of_dag(dag_id)) == 1:
            return groups[0]
        if groups:
            raise UsageError(f"DAG {dag_id!r} has several groups: name {' or '.join(each.id for each in groups)}.")
        problems = [f" {where} could not be loaded: {why}" for where, why in self.problems.items()]
        if (more := len(problems) - _MAX_PROBLEMS) > 0:
            problems[_MAX_PROBLEMS:] = [f" {more} more could not be loaded."]
        raise CommandError(f"{self._explain_unknown(dag_id)}{''.join(problems)}")

    def _explain_unknown(self, word: str) -> str:
        """Explain why a word is no DAG id, and where to find the right one."""
        if not word.endswith(".py"):
            airflow = os.environ.get("AIRFLOW_HOME", "~/airflow")
            return (
                f"No DAG {word!r} made by experiment_dag was found in the DAG files of AIRFLOW_HOME, {airflow}; "
                "'airflow dags list --local' lists the DAGs."
            )
        file = os.path.realpath(word)
        dags = [repr(id_) for id_, each in self.by_id.items() if os.path.realpath(each.dag.fileloc) == file]
        if dags:
            more = f" and {len(dags) - _MAX_NAMED} more" if len(dags) > _MAX_NAMED else ""
            return f"{word!r} is a file, not a DAG id. Its DAGs are {', '.join(dags[:_MAX_NAMED])}{more}."
        return (
            f"{word!r} is a file, not a DAG id. It has no DAG made by experiment_dag; 'airflow dags list --local' "
            "lists all DAGs."
        )


def load_experiment(dag_id: str) -> Experiment:
    """Load the experiment of one DAG. Files with many DAGs, for example Marin's, make only this one.

    Raises:
        CommandError: It does not exist.
        UsageError: Airflow is not installed.
    """
    if not dag_id.endswith(".py"):
        with _only_dag(dag_id.partition(":")[0]):
            found = load_experiments()
        if dag_id in found.by_id or found.of_dag(dag_id) or found.problems:
            return found.of(dag_id)
    return load_experiments().of(dag_id)


@contextlib.contextmanager
def _only_dag(dag_id: str) -> Iterator[None]:
    """Announce the wanted DAG to DAG files through Airflow's ``get_parsing_context()``."""
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
        UsageError: Airflow is not installed.
    """
    with contextlib.redirect_stdout(sys.stderr):  # output of DAG files is not the command's result
        try:
            enter_airflow()
            from airflow.dag_processing.bundles.manager import DagBundlesManager
        except ImportError:
            raise UsageError("steps are read from Airflow's DAG files, and Airflow is not installed here.") from None
        manager = DagBundlesManager()
        experiments: dict[str, Experiment] = {}
        problems = dict.fromkeys(manager.get_all_bundle_names(), "it cannot be opened; Airflow's log has the reason.")
        for bundle in manager.get_all_dag_bundles():
            try:
                bundle.initialize()
            except Exception as error:  # each kind of bundle has its own errors
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
    for dag in bag.dags.values():
        for task in dag.tasks:
            if isinstance(task, PlanOperator):
                experiment = Experiment(dag, task, version)
                experiments[experiment.id] = experiment


def run_params(dag: DAG, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the params of a run: the DAG's own with those given on the command line.

    Raises:
        UsageError: The DAG has no such param, or a value does not fit its schema.
    """
    from airflow.sdk.exceptions import ParamValidationError

    params = copy.deepcopy(dag.params)
    for name in given:
        if name not in params:
            known = ", ".join(params) or "none"
            raise UsageError(f"DAG {dag.dag_id!r} has no param {name!r}; it has {known}.")
    try:
        for name, text in given.items():
            params[name] = _read_as(text, params.get_param(name))
        return dict(params.validate())
    except ParamValidationError as error:
        raise UsageError(f"DAG {dag.dag_id!r}: {str(error).splitlines()[0]}") from None


def _parsed(text: str) -> Any:
    """Convert a text to the JSON that it is, else keep it."""
    try:
        return parse(text)
    except ValueError:
        return text


def _read_as(text: str, param: Any) -> Any:
    """Convert a text for the param: a text param keeps it, others parse it as JSON that fits the schema."""
    from airflow.sdk.exceptions import ParamValidationError

    json_type = param.schema.get("type")
    if json_type == "string" or (json_type is None and isinstance(param.value, str)):
        return text
    value = _parsed(text)
    for reading in (value, text):
        with contextlib.suppress(ParamValidationError):
            return copy.deepcopy(param).resolve(value=reading)
    return value


def data_interval(dag: DAG, choice: RunChoice, timezone: str) -> tuple[Any, Any]:
    """Return the run's data interval: Airflow's for a run triggered now, or that of the chosen night.

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
        raise UsageError(f"DAG {dag.dag_id!r} has no run for {choice.night}; the next one is for {found}.")
    return interval.start, interval.end


def _midnight(date: datetime.date, timezone: str) -> Any:
    import pendulum

    return pendulum.datetime(date.year, date.month, date.day, tz=timezone)


def default_prefix(chosen: str | None) -> str:
    """Return the prefix for a command without a DAG.

    Raises:
        MissingPrefixError: No option and no setting gives one.
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
