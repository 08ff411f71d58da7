"""``marin_experiment`` and ``marin_experiments``: DAGs from unchanged Marin experiment files."""

from __future__ import annotations

import dis
import logging
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tradewind.experiments import experiment_dag, refuse_script
from tradewind.marin.checkouts import checkout_of, find_given
from tradewind.marin.names.steps import replacement_for
from tradewind.marin.refusals import Reason, RefusedFileError, notes, refused_file
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate
from tradewind.marin.sandbox.executor_api import Captured
from tradewind.marin.sandbox.import_map import MAX_BYTES
from tradewind.marin.sandbox.process_state import is_by_signal, reduced_gc, tracked_signals
from tradewind.marin.sandbox.running import Run, error_message
from tradewind.marin.sandbox.stubs import Stub, StubModule, stub_origin
from tradewind.marin.zephyr import is_missing
from tradewind.serialization.spec import STEP_VARIABLE
from tradewind.steps import ExperimentError, ModuleReference, RemoteFunction, cluster_reference
from tradewind.tasks.code import set_code_folder

if TYPE_CHECKING:
    from airflow.sdk import DAG

logger = logging.getLogger(__name__)

TIME_LIMIT_S: Final = 20.0
MAX_STEPS: Final = 2000
_CALLS_EXECUTOR_MAIN = re.compile(rb"^(?![ \t]*+(#|def\s)).*\bexecutor_main[ \t]*+\(", re.M)
_OF_THEN: Final = "which runs from the checkout, with libraries of its time that the step must bring to the cluster"
_NEEDS: Final[Mapping[str, str]] = {
    "zephyr": "which Tradewind's engine does not have under Zephyr's names, and the step must bring to the cluster",
    "fray": "of Marin's library of clusters, which the step must bring to the cluster",
    "marin.evaluation": _OF_THEN,
    "marin.generation": _OF_THEN,
    "marin.rl": _OF_THEN,
    "marin.post_training": _OF_THEN,
}
"""Package of Marin's that the clusters lack, of Zephyr some names → why a function of it fails there."""
_MAX_FUNCTIONS: Final = 500


class MarinFileWarning(UserWarning):
    """A Marin file yields no DAG although it contains no error."""


class ClusterNeedWarning(MarinFileWarning):
    """A step of a Marin file needs a library that the cluster lacks."""


class MarinDags(list["DAG"]):
    """The DAGs created, and the errors of files that cannot become DAGs."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[RefusedFileError] = []


def marin_experiment(
    file: str | os.PathLike[str],
    *,
    dag_id: str | None = None,
    checkout: str | os.PathLike[str] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    most_steps: int = MAX_STEPS,
    **experiment_arguments: Any,
) -> MarinDags:
    """Make a DAG of each ``executor_main`` that the Marin experiment ``file`` calls when it is run.

    Args:
        file: The file, from the DAG file's folder, the one above it, or a ``marin`` folder in either.
        dag_id: The DAG id; default: the file's path below ``experiments``, with dots. A second DAG's id ends in ``.2``.
        checkout: The folder that holds ``experiments`` and ``src``, default: the one around the file.
        time_limit_s: Maximum seconds to evaluate the file.
        most_steps: Maximum steps of one DAG.
        experiment_arguments: As of ``tradewind.experiment_dag``: ``schedule``, ``cluster``, ``prefix`` and so on.

    Raises:
        RefusedFileError: The file cannot be a DAG; Airflow shows it as the DAG file's import error.
    """
    dags = MarinDags()
    if STEP_VARIABLE in os.environ:
        return dags
    caller = sys._getframe(1).f_globals
    path = find_given(file, caller.get("__file__"))
    if notes.root is None:
        refuse_script(caller, f"python {path}")
    if not path.is_file():
        raise RefusedFileError(f"{path} is no file: give a file, or use marin_experiments() for a folder.")
    root = checkout_of(path, checkout)
    base = dag_id or id_of(path, root)
    with reduced_gc():
        outcome = evaluate(root, [path], time_limit_s)[path]
        if isinstance(outcome, RefusedFileError):
            raise outcome
        _log_environment([outcome])
        dags += dags_of(outcome, root, base, most_steps, experiment_arguments)
    return dags


def marin_experiments(
    folder: str | os.PathLike[str],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    checkout: str | os.PathLike[str] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    most_steps: int = MAX_STEPS,
    **experiment_arguments: Any,
) -> MarinDags:
    """Make DAGs of all files below ``folder`` that call ``executor_main``; see ``marin_experiment``.

    A file that cannot be a DAG does not affect the others: Airflow shows its error beside their DAGs.

    Args:
        include: Only the files whose paths below ``folder`` match one of these patterns, such as ``"speedrun/*"``.
        exclude: Skip the files that match one of these patterns.
    """
    dags = MarinDags()
    if STEP_VARIABLE in os.environ:
        return dags
    caller = sys._getframe(1).f_globals
    top = find_given(folder, caller.get("__file__"))
    if notes.root is None:
        refuse_script(caller, "one of the files as a script")
    if not top.is_dir():
        raise RefusedFileError(f"{top} is no folder: give a folder, or use marin_experiment() for a file.")
    root = checkout_of(top, checkout)
    wanted = _wanted_dag_id()
    bases = {path: id_of(path, root) for path in runnable_files(top, include, exclude)}
    bases = {path: base for path, base in bases.items() if _may_make(base, wanted)}
    if not bases and wanted is None:
        _warn(str(top), 0, "contains no file that calls executor_main, so there is no DAG")
    owners: dict[str, str] = {}
    with reduced_gc():
        outcomes = evaluate(root, list(bases), time_limit_s)
        for path, outcome in outcomes.items():
            try:
                if isinstance(outcome, RefusedFileError):
                    raise outcome
                check_ids(outcome, bases[path], owners)
                dags += dags_of(outcome, root, bases[path], most_steps, experiment_arguments, wanted)
            except RefusedFileError as error:
                dags.refused.append(error)
                _show_import_error(path.relative_to(root).as_posix(), str(error))
    _log_environment([outcome for outcome in outcomes.values() if isinstance(outcome, Evaluated)])
    return dags


def runnable_files(top: Path, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[Path]:
    """Return the files below ``top`` that call ``executor_main``, in a stable order."""
    found = []
    for path in sorted(top.rglob("*.py")):
        shown = path.relative_to(top).as_posix()
        is_wanted = not include or any(fnmatch(shown, pattern) for pattern in include)
        is_wanted = is_wanted and not any(fnmatch(shown, pattern) for pattern in exclude)
        if is_wanted and path.is_file() and _may_call_executor_main(path):
            found.append(path)
    return found


def _may_call_executor_main(path: Path) -> bool:
    try:
        return path.stat().st_size > MAX_BYTES or _CALLS_EXECUTOR_MAIN.search(path.read_bytes()) is not None
    except OSError:
        return True  # loading it reports the reason


def id_of(path: Path, root: Path) -> str:
    """Return the DAG id of a file: its path below ``experiments``, with dots."""
    parts = path.relative_to(root).with_suffix("").parts
    if len(parts) > 1 and parts[0] == "experiments":
        parts = parts[1:]
    return re.sub(r"[^\w.-]+", "_", ".".join(parts))


def dags_of(
    outcome: Evaluated, root: Path, base: str, most_steps: int, arguments: dict[str, Any], wanted: str | None = None
) -> list[DAG]:
    """Create the DAGs of an evaluated file, the first with id ``base``; warn if it has none.

    Raises:
        RefusedFileError: Its experiment is invalid or too large.
    """
    run = outcome.run
    if not run.calls:
        _warn(run.file, 0, "does not call executor_main when it is run, so it makes no DAG")
    made: list[DAG] = []
    for dag_id, captured, count in zip(_ids(run, base), run.calls, outcome.counts, strict=True):
        if wanted not in (None, dag_id):
            continue
        if not captured.steps:
            _warn(run.file, captured.place.line if captured.place else 0, "gives executor_main no steps: no DAG")
            continue
        if count > most_steps:
            reason = f"it has {count} steps, and the limit is {most_steps}: raise most_steps=, or split it."
            raise refused_file(run.file, Reason(captured.place, reason))
        try:
            with tracked_signals():
                dag = experiment_dag(dag_id, captured.steps, **_arguments(captured, run.file, root, arguments))
        except BaseException as error:  # values have methods of the file's own
            if is_by_signal(error):
                raise
            reason = str(error) if isinstance(error, ExperimentError) else error_message(error)
            raise refused_file(run.file, Reason(captured.place, reason)) from error
        if dag is not None:
            set_code_folder(dag, root)
            _warn_of_needs(dag, captured, run.file)
            made.append(dag)
    return made


def _warn_of_needs(dag: DAG, captured: Captured, file: str) -> None:
    """Warn of the first step of each function that fails on the cluster."""
    named = {id(step.fn): step for task in reversed(dag.tasks) if (step := getattr(task, "step", None)) is not None}
    for step in named.values():
        if (need := _need_of(step.fn)) is not None:
            text = f"makes step {step.name!r}, which fails on the cluster as it is: {need}"
            _warn(file, captured.place.line if captured.place else 0, text, ClusterNeedWarning)


def _ids(run: Run, base: str) -> list[str]:
    return [base if number == 1 else f"{base}.{number}" for number in range(1, len(run.calls) + 1)]


def check_ids(outcome: Evaluated, base: str, owners: dict[str, str]) -> None:
    """Record the owner of each id; refuse a file whose DAG has the id of another's."""
    run = outcome.run
    for dag_id, captured in zip(_ids(run, base), run.calls, strict=True):
        if captured.steps and (owner := owners.setdefault(dag_id, run.file)) != run.file:
            reason = f"its DAG would have the id {dag_id}, like one of {owner}: rename one of the files."
            raise refused_file(run.file, Reason(captured.place, reason))


def _arguments(captured: Captured, file: str, root: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Merge arguments: those of the DAG file override those of the experiment file."""
    called = f", from line {captured.place.line}" if captured.place and captured.place.file == file else ""
    about = f"The experiment `{file}`{called}, in the Marin checkout `{root.name}`."
    own: dict[str, Any] = {"description": captured.description, "doc_md": about}
    if captured.config is not None:
        own |= {"prefix": captured.config.prefix, "run_only": captured.config.run_only or ()}
        own["max_concurrent"] = captured.config.max_concurrent
    return {**own, **given}


def _wanted_dag_id() -> str | None:
    """Return the DAG that a task process needs, if Airflow names it: other files are then skipped."""
    if "airflow" not in sys.modules:
        return None
    from airflow.sdk import get_parsing_context

    return get_parsing_context().dag_id


def _may_make(base: str, wanted: str | None) -> bool:
    return wanted is None or wanted == base or re.fullmatch(rf"{re.escape(base)}\.\d+", wanted) is not None


def _log_environment(outcomes: Sequence[Evaluated]) -> None:
    if "CI" in os.environ:
        logger.info("CI is set, but hidden from Marin's files, because some make no steps with it.")
    for outcome in outcomes:
        if outcome.run.environment:
            logger.info("%s reads the environment variables %s", outcome.run.file, ", ".join(outcome.run.environment))


def _warn(file: str, line: int, text: str, category: type[MarinFileWarning] = MarinFileWarning) -> None:
    warnings.warn_explicit(f"{file} {text}.", category, file, line)


# Import errors of single files of a folder, which Airflow shows beside the DAGs of the others.
#
# An error raised by a DAG file removes all of its DAGs. Airflow keeps errors by file, though, and its importer's result
# holds any number of them. The importer does not pass on that result, so the code looks it up on the stack. Without one
# (a script, another Airflow) the errors go to the log.


def _show_import_error(file: str, message: str) -> None:
    """Have Airflow show ``message`` as the import error of ``file``."""
    logger.error("%s", message)
    result = _result()
    if result is not None:
        from airflow.dag_processing.importers.base import DagImportError

        result.errors.append(DagImportError(file_path=file, message=message, error_type="import", stacktrace=message))


def _result() -> Any:
    """Return the importer's result for the DAG file that Airflow is importing, or None."""
    base = sys.modules.get("airflow.dag_processing.importers.base")
    kind = getattr(base, "DagImportResult", None)
    frame: types.FrameType | None = sys._getframe(1)
    while kind is not None and frame is not None:
        if isinstance(found := frame.f_locals.get("result"), kind):
            return found
        frame = frame.f_back
    return None


def _need_of(function: Any) -> str | None:
    """Return what a step's function needs that the cluster lacks, as a clause; None if nothing is known of it."""
    if replacement_for(function) is not None:
        return None
    pending, seen = [function], set[int]()
    while pending and len(seen) < _MAX_FUNCTIONS:
        each = pending.pop()
        if isinstance(each, RemoteFunction):
            if resource := _own_resource(each):
                return f"it needs Ray's resource {resource!r}, which a node of the cluster must be started with"
            each = each.function
        if id(each) in seen:
            continue
        seen.add(id(each))
        if (name := _name_of(each)) and (package := _package_of(name)):
            return f"it uses {name}, {_NEEDS[package]}"
        if isinstance(each, types.FunctionType):
            pending += _used_by(each)
    return None


def _own_resource(function: RemoteFunction) -> str | None:
    """Return a resource that Marin's clusters declared, and Ray does not, if the function's task requests it."""
    wanted = function.options.get("resources")
    names = [str(name) for name, amount in wanted.items() if amount] if isinstance(wanted, Mapping) else []
    return next((name for name in names if not name.startswith(("TPU", "node:"))), None)


def _package_of(name: str) -> str | None:
    package = next((package for package in _NEEDS if name == package or name.startswith(f"{package}.")), None)
    return None if package == "zephyr" and not is_missing(name) else package


def _name_of(value: Any) -> str:
    """Return the full name of a function, a module, or a value of a library."""
    if isinstance(value, str):
        return value
    if isinstance(value, Stub):
        found = cluster_reference(value)
        return f"{found.module}.{found.path}" if isinstance(found, ModuleReference) else stub_origin(value).module
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return value.__name__ if isinstance(value, StubModule) else ""


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield the global values that the code of ``function`` names, and its other names: imports are among them."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        yield from (function.__globals__.get(name, name) for name in code.co_names)
        yield from _used_of_zephyr(code, function.__globals__)


def _used_of_zephyr(code: types.CodeType, of_file: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that ``code`` imports from Zephyr, or reads of it as a module: ``zephyr.flow_backend``."""
    if not any(_name_of(of_file.get(name, name)).partition(".")[0] == "zephyr" for name in code.co_names):
        return
    module = ""
    for instruction in dis.get_instructions(code):
        name, kind = str(instruction.argval), instruction.opname
        if kind == "IMPORT_NAME":
            module = name
        elif kind == "LOAD_GLOBAL":
            module = _name_of(value) if isinstance(value := of_file.get(name), StubModule) else ""
        elif kind in ("IMPORT_FROM", "LOAD_ATTR", "LOAD_METHOD") and module.partition(".")[0] == "zephyr":
            if not module.endswith(f".{name}"):  # of import a.b as c
                yield f"{module}.{name}"
            module = module if kind == "IMPORT_FROM" else ""
