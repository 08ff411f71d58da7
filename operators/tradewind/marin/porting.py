"""Report what happens to unchanged Marin files: load them and create their DAGs, as a DAG file would."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tradewind.marin.checkouts import checkout_of, find_given
from tradewind.marin.loading import (
    MAX_STEPS,
    TIME_LIMIT_S,
    ClusterNeedWarning,
    MarinFileWarning,
    check_ids,
    dags_of,
    id_of,
    runnable_files,
)
from tradewind.marin.refusals import RefusedFileError, SourceLine
from tradewind.marin.sandbox.builtins import SECRET_NAME
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate

if TYPE_CHECKING:
    from airflow.sdk import DAG

# Edits that make a refused file loadable, where the reason determines them.

_MOVE: Final = "move this into a step's function: a function that is given to ExecutorStep(fn=...) runs on the cluster"
_NAMED: Final = (
    "replace what this line reads by a fixed text: the name of a step is the same in every run, so it cannot contain "
    "a value of the run"
)
_VERSIONED: Final = (
    "replace what this line reads by a fixed value, or by a parameter of the run: versioned(run_param('NAME')) of "
    "tradewind, and params={'NAME': ...} in the DAG file"
)
_SECRET: Final = (
    "remove this line, and name the secret in the step that needs it: ExecutorStep(..., secrets={{'{name}': "
    "'projects/PROJECT/secrets/SECRET'}}); its function finds it in os.environ"
)
_WHERE_PARSED: Final = "where Airflow parses its DAG files"
_VARIABLE: Final = f"give a default, os.environ.get('{{name}}', ...), or set {{name}} {_WHERE_PARSED}"
_HUB: Final = (
    "replace this by the hub's answer: the number, the text or the list that the line needs, or the fields of the "
    "config"
)
_NOT_SET: Final = re.compile(r"^KeyError: '(?P<name>[A-Z][A-Z0-9_]+)'$")
_EDITS: Final = tuple(
    (re.compile(reason, re.DOTALL), edit)
    for reason, edit in (
        (r"^evaluated twice, a step is called ", _NAMED),
        (r"^evaluated twice, step .* has another version or path", _VERSIONED),
        (r"^evaluated twice, ", "replace what this line reads by a fixed value"),
        (r"\.remote\(\) starts a Ray task|^ray\.\w+\(\) needs a Ray cluster", _MOVE),
        (
            r"^it (opens a network connection|opens a database|starts a process|starts a thread|deletes files|"
            r"signals a process|writes the file|moves or changes files|calls a library) ",
            _MOVE,
        ),
        (r"^it reads the secret (?!file)(?P<name>\S+) while", _SECRET),
        (r"^it reads the secret file ", _MOVE),
        (r"^it reads MARIN_PREFIX, which is not set", f"set it, or TRADEWIND_PREFIX, {_WHERE_PARSED}"),
        (
            r"^ExperimentError: ",
            f"replace this by the size of the vocabulary, or set HF_HUB_CACHE, {_WHERE_PARSED}, to a Hugging Face "
            "cache that has it",
        ),
        (
            r"^FileNotFoundError: .*: '(?P<name>[^/'][^']*)'$",
            "write its path from the checkout's root, where files run, and put the file there if it is missing: {name}",
        ),
        (r"^it ends itself with exit\(", "remove this line, or call executor_main before it"),
        (
            r"^it ends or changes (the|this) process with os\.|^it changes the limits|^it adds an audit hook",
            "remove this line",
        ),
        (r"^it calls input\(\)", "replace this by the answer"),
        (r" needs arguments from the command line", "give each field of that config a default"),
        (
            r"^it has (?P<count>\d+) steps, and the limit is ",
            "write most_steps={count} in the DAG file, or call executor_main for a part of the steps at a time",
        ),
        (
            r"^(it needs (?!the (?:text|fields) of a \w+, which inherits)|versioned\(\) is given|ExperimentError).*"
            r"\b(transformers|huggingface_hub|datasets|load_tokenizer|from_hf_config|tokenizer)\b",
            _HUB,
        ),
        (
            r"(?:^it (?:needs|matches)|^versioned\(\) is given|holds ).*known only on the cluster",
            "replace what only the cluster knows by a fixed value",
        ),
    )
)


def edit_for(reason: str) -> str | None:
    """Return the edit that removes ``reason``; None if no such edit is known."""
    if (variable := _NOT_SET.search(reason)) is not None:
        return (_SECRET if SECRET_NAME.search(variable["name"]) else _VARIABLE).format(**variable.groupdict())
    for pattern, edit in _EDITS:
        if (found := pattern.search(reason)) is not None:
            return edit.format(**found.groupdict()) if found.groupdict() else edit
    return None


_MAX_SOURCE: Final = 200
"""Maximum characters shown of a line."""


class PortVerdict(Enum):
    """Result for a user who wants DAGs from the file."""

    UNCHANGED = "unchanged"
    EDITS = "edits"
    CANNOT = "cannot"


@dataclass(frozen=True)
class PortFinding:
    """One thing that keeps a file from being a DAG.

    Attributes:
        place: The line, possibly in another file that it imports; None if no line is the cause.
        source: The text of the line.
        why: The loader's reason.
        edit: The replacement, if known.
    """

    place: SourceLine | None
    source: str
    why: str
    edit: str | None


@dataclass(frozen=True, eq=False)
class PortedFile:
    """One file.

    Attributes:
        checkout: The checkout that contains it.
        file: Path from the checkout's root.
        dags: The DAGs that it yields.
        finding: Why it yields none. The loader stops at the first reason, so an edit may reveal another.
        remarks: Further notes for the user.
        fails_on_cluster: Whether a step needs what the cluster lacks; a remark names it.
    """

    checkout: Path
    file: str
    dags: tuple[DAG, ...] = ()
    finding: PortFinding | None = None
    remarks: tuple[str, ...] = ()
    fails_on_cluster: bool = False

    @property
    def verdict(self) -> PortVerdict:
        if self.finding is None:
            return PortVerdict.UNCHANGED
        return PortVerdict.CANNOT if self.finding.edit is None else PortVerdict.EDITS


@dataclass(frozen=True)
class PortOptions:
    """Loader options of a DAG file; see ``marin_experiments``."""

    checkout: str | None = None
    time_limit_s: float = TIME_LIMIT_S
    most_steps: int = MAX_STEPS


def port(
    given: Sequence[str], options: PortOptions = PortOptions(), dag_arguments: Mapping[str, Any] | None = None
) -> Iterator[PortedFile]:
    """Load files, and all runnable files of folders, as DAG files would; return each result.

    Args:
        dag_arguments: As of ``tradewind.experiment_dag``.

    Raises:
        RefusedFileError: A path does not exist, a folder has none, or the checkout is of another Marin version.
    """
    by_root: dict[Path, dict[Path, None]] = {}
    for each in given:
        path = find_given(each, None)
        root = checkout_of(path, options.checkout)
        by_root.setdefault(root, {}).update(dict.fromkeys(_files_of(path, root)))
    for root, files in by_root.items():
        outcomes = evaluate(root, list(files), options.time_limit_s)
        owners: dict[str, str] = {}
        for path, outcome in outcomes.items():
            try:
                if isinstance(outcome, Evaluated):
                    check_ids(outcome, id_of(path, root), owners)
            except RefusedFileError as error:
                outcome = error
            yield _port_file(path, root, outcome, options.most_steps, dict(dag_arguments or {}))


def _files_of(path: Path, root: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RefusedFileError(f"{path} is neither a file nor a folder.")
    top = path / "experiments" if path == root and (path / "experiments").is_dir() else path
    if not (found := runnable_files(top)):
        raise RefusedFileError(f"No file below {top} calls executor_main, so none of them would be a DAG.")
    return found


def _port_file(
    path: Path, root: Path, outcome: Evaluated | RefusedFileError, most_steps: int, dag_arguments: dict[str, Any]
) -> PortedFile:
    shown = path.relative_to(root).as_posix()
    if isinstance(outcome, RefusedFileError):
        return PortedFile(root, shown, finding=_finding(outcome, root))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MarinFileWarning)
        try:
            dags = dags_of(outcome, root, id_of(path, root), most_steps, dag_arguments)
        except RefusedFileError as error:
            return PortedFile(root, shown, finding=_finding(error, root))
    remarks = [(each.lineno, str(each.message)) for each in caught if issubclass(each.category, MarinFileWarning)]
    if dags:
        fails = any(issubclass(each.category, ClusterNeedWarning) for each in caught)
        told = tuple(f"line {line}: {text}" for line, text in remarks)
        return PortedFile(root, shown, tuple(dags), remarks=told, fails_on_cluster=fails)
    line, text = remarks[0]
    place = SourceLine(shown, line) if line else None
    return PortedFile(root, shown, finding=PortFinding(place, _source(place, root), text, None))


def _finding(error: RefusedFileError, root: Path) -> PortFinding:
    reason = error.reason
    if reason is None:
        return PortFinding(None, "", str(error), None)
    return PortFinding(reason.place, _source(reason.place, root), reason.text, edit_for(reason.text))


def _source(place: SourceLine | None, root: Path) -> str:
    """Return the text of a line, without surrounding spaces."""
    if place is None or not place.line:
        return ""
    try:
        lines = (root / place.file).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[place.line - 1].strip()[:_MAX_SOURCE] if place.line <= len(lines) else ""
