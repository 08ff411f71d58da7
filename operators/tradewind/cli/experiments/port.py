"""``tradewind port``: report which of Marin's files become DAGs unchanged, and fixes for others."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.cli.output import CommandError, UsageError, json_lines, write_lines
from tradewind.plans.prefixes import choose_prefix
from tradewind.records.parsing import parse
from tradewind.records.record import Record, RecordState, read_records
from tradewind.steps import ExperimentError, ResolvedStep
from tradewind.text import pluralize

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tradewind.marin.porting import PortedFile, PortFinding

_WORDS: Final = {
    "unchanged": "runs unchanged",
    "edits": "needs these edits",
    "cannot": "cannot become a DAG, because",
}
_FAILS: Final = "becomes a DAG unchanged, but a step fails on the cluster"


@dataclass(frozen=True)
class _PortedDag:
    """A DAG of a file.

    Attributes:
        count: Number of its steps.
        steps: The steps with their paths below the given prefix; empty without a prefix.
        problem: Why they have no paths there.
    """

    dag_id: str
    count: int
    steps: tuple[ResolvedStep, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class _PortReport:
    """The files with their DAGs, and the records of outputs below the given prefix."""

    files: Sequence[tuple[PortedFile, Sequence[_PortedDag]]]
    prefix: str | None
    records: Mapping[str, Record]

    def finished(self, steps: Sequence[ResolvedStep]) -> list[str]:
        """Return the output paths of steps that have a result, from any producer."""
        paths = dict.fromkeys(step.output_path for step in steps)
        return [path for path in paths if self.records[path].state is RecordState.FINISHED]


def port_files(arguments: argparse.Namespace) -> int:
    """Load files as a DAG file would, and print the outcome of each.

    Raises:
        UsageError: Airflow is not installed.
        ExperimentError: There is no such file, its checkout has an unsupported age, or the prefix is invalid.
        CommandError: Not all files become DAGs unchanged; the output lists them.
        StoreUnavailableError: The store of the prefix does not answer.
    """
    report = _report(arguments)
    summary = _summary(report)
    if arguments.json:
        files = [_file_json(report, *each) for each in report.files]
        write_lines(json_lines({"prefix": report.prefix, "files": files, "summary": summary}))
    else:
        write_lines([line for each in report.files for line in _lines(report, *each)])
        write_lines([_summary_line(summary, report.prefix)] if len(report.files) > 1 else [])
    if summary["unchanged"] < summary["files"]:
        changed = summary["files"] - summary["unchanged"]
        raise CommandError(f"{changed} of {summary['files']} files do not become DAGs as they are.")
    return 0


def _report(arguments: argparse.Namespace) -> _PortReport:
    if arguments.prefix is not None:
        choose_prefix(arguments.prefix, None, {}, None, lambda: None)  # refuse a bad prefix before loading a file
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    with contextlib.redirect_stdout(sys.stderr):  # output of the files is not the command's result
        try:
            from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
        except ImportError:
            raise UsageError("port makes the DAGs of the files, and Airflow is not installed here.") from None
        from tradewind.marin.porting import PortOptions, port

        redirect_stdout_log_handlers_to_stderr()
        options = PortOptions(arguments.checkout, arguments.time_limit, arguments.most_steps)
        ported = port(arguments.paths, options, {"params": _params(arguments.params)})
        files = [(file, [_dag(dag, arguments) for dag in file.dags]) for file in ported]
        steps = [step for _, dags in files for dag in dags for step in dag.steps]
        return _PortReport(
            files, arguments.prefix, read_records(list(dict.fromkeys(step.output_path for step in steps)))
        )


def _params(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Convert params as a DAG file would have them: parsed as JSON where possible, else text."""
    params: dict[str, Any] = {}
    for name, text in given:
        try:
            params[name] = parse(text)
        except ValueError:
            params[name] = text
    return params


def _dag(dag: DAG, arguments: argparse.Namespace) -> _PortedDag:
    from tradewind.cli.experiments.load import Experiment, RunChoice
    from tradewind.operators.plan import PlanOperator

    (operator,) = (task for task in dag.tasks if isinstance(task, PlanOperator))
    count = len(operator.steps)
    if arguments.prefix is None:
        return _PortedDag(dag.dag_id, count)
    try:
        run = Experiment(dag, operator).run(RunChoice(dict(arguments.params), prefix=arguments.prefix))
    except ExperimentError as error:
        return _PortedDag(dag.dag_id, count, problem=str(error))
    return _PortedDag(dag.dag_id, count, tuple(step for _, step in run.tasks))


def _lines(report: _PortReport, file: PortedFile, dags: Sequence[_PortedDag]) -> list[str]:
    words = _FAILS if file.fails_on_cluster else _WORDS[file.verdict.value]
    lines = [f"{file.file}: {words}"]
    if (finding := file.finding) is not None:
        lines.append(f"  {_where(finding, file)}{finding.why}")
        lines += [f"      {finding.source}"] if finding.source else []
        lines += [f"  edit: {finding.edit}."] if finding.edit else []
    for dag in dags:
        lines += _dag_lines(report, dag)
    return lines + [f"  {remark}" for remark in file.remarks]


def _where(finding: PortFinding, file: PortedFile) -> str:
    place = finding.place
    if place is None or (place.file == file.file and not place.line):
        return ""
    return f"line {place.line}: " if place.file == file.file else f"{place}: "


def _dag_lines(report: _PortReport, dag: _PortedDag) -> list[str]:
    """Describe a DAG; list the paths of finished outputs if there is only one file, else their number."""
    line = f"  DAG {dag.dag_id}: {pluralize(dag.count, 'step')}"
    if report.prefix is None:
        return [line]
    if dag.problem is not None:
        return [line, f"    {dag.problem}"]
    finished = report.finished(dag.steps)
    shown = [f"    finished: {path}" for path in finished] if len(report.files) == 1 else []
    return [f"{line}, {len(finished)} of them finished below {report.prefix}", *shown]


def _summary(report: _PortReport) -> dict[str, int]:
    verdicts = [file.verdict.value for file, _ in report.files]
    dags = [dag for _, each in report.files for dag in each]
    steps = [step for dag in dags for step in dag.steps]
    return {
        "files": len(verdicts),
        **{name: verdicts.count(name) for name in _WORDS},
        "dags": len(dags),
        "steps": sum(dag.count for dag in dags),
        "outputs": len({step.output_path for step in steps}),
        "finished": len(report.finished(steps)),
    }


def _summary_line(summary: Mapping[str, int], prefix: str | None) -> str:
    text = (
        f"{summary['files']} files: {summary['unchanged']} run unchanged ({summary['dags']} DAGs, {summary['steps']} "
        f"steps), {summary['edits']} need edits, {summary['cannot']} cannot become DAGs."
    )
    if prefix is None:
        return text
    return f"{text} Of {summary['outputs']} outputs {summary['finished']} are finished below {prefix}."


def _file_json(report: _PortReport, file: PortedFile, dags: Sequence[_PortedDag]) -> dict[str, Any]:
    return {
        "checkout": str(file.checkout),
        "file": file.file,
        "verdict": file.verdict.value,
        "finding": _finding_json(file.finding) if file.finding is not None else None,
        "remarks": list(file.remarks),
        "fails_on_cluster": file.fails_on_cluster,
        "dags": [
            {
                "dag_id": dag.dag_id,
                "count": dag.count,
                "problem": dag.problem,
                "steps": [_step_json(step, report.records[step.output_path]) for step in dag.steps],
            }
            for dag in dags
        ],
    }


def _finding_json(finding: PortFinding) -> dict[str, Any]:
    file, line = (finding.place.file, finding.place.line or None) if finding.place is not None else (None, None)
    return {"file": file, "line": line, "source": finding.source, "why": finding.why, "edit": finding.edit}


def _step_json(step: ResolvedStep, record: Record) -> dict[str, str]:
    return {"name": step.name, "hash": step.hash, "output_path": step.output_path, "state": record.state.value}
