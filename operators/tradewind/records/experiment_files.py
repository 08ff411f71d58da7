"""Files of experiments, ``{prefix}/experiments/{name}-{hash}.json``, by Marin's executor and by plans of Tradewind.

Each names the steps that belong together, with their output paths, and its user, time and commit. A file that cannot be
read is listed with the reason.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.records.info_files import EXPERIMENTS_FOLDER, is_experiment_file
from tradewind.records.parsing import OBJECT, TEXT, RecordFormatError, list_of, parse_fields, parse_object
from tradewind.storage import Location, StorageError
from tradewind.storage.bounded_read import Content
from tradewind.storage.files import list_names, read_contents
from tradewind.text import single_line

MAX_FILES: Final = 1_000
MAX_STEPS: Final = 10_000
_MAX_SECONDS: Final = 20.0
_MAX_BYTES: Final = 4 << 20
"""Bound for a file, which becomes twenty times as large when parsed."""
_MAX_OUTPUTS: Final = 400_000
"""Output paths of all files together, of some 150 bytes each: a year of a nightly experiment with 1,000 steps."""
_FILES_AT_ONCE: Final = 8
_KINDS: Final = {
    **dict.fromkeys(("git_commit", "caller_path", "created_date", "user"), TEXT.or_null()),
    "steps": list_of(OBJECT),
}
_KINDS_OF_A_STEP: Final = {"output_path": TEXT}


@dataclass(frozen=True)
class ExperimentFile:
    """One file of an experiment.

    Attributes:
        path: The file.
        name: Name of the experiment: the DAG, or the file that defines it without ``.py``.
        created: Time in ISO 8601, by the clock and in the time zone of the process that wrote it; empty if unknown.
        user: The user of that process.
        commit: The Git commit of its code; None if it is not recorded.
        caller: The file that defines it.
        outputs: Output paths of its steps.
        problem: Why it cannot be read; None if it can.
    """

    path: str
    name: str
    created: str = ""
    user: str = ""
    commit: str | None = None
    caller: str = ""
    outputs: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class ExperimentFiles:
    """Files of experiments, the newest first.

    Attributes:
        cut: A sentence that says how many are left out; empty if none is.
    """

    files: tuple[ExperimentFile, ...] = ()
    cut: str = ""


def read_experiment_files(prefixes: Sequence[str]) -> ExperimentFiles:
    """Read the files of experiments of these prefixes, with a bound for files, output paths and seconds.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    folders = [posixpath.join(prefix, EXPERIMENTS_FOLDER) for prefix in dict.fromkeys(prefixes)]
    paths = [
        posixpath.join(folder, name) for folder in folders for name in list_names(folder) if is_experiment_file(name)
    ]
    found = list(_read([path for path in paths if _has_address(path)][:MAX_FILES]))
    found.sort(key=lambda file: (file.created, file.path), reverse=True)
    left = len(paths) - len(found)
    cut = f"{left:,} of {len(paths):,} files of experiments in {', '.join(folders)} are not read." if left else ""
    return ExperimentFiles(tuple(found), cut)


def _has_address(path: str) -> bool:
    """Whether a file can be read by its name: a disk also has names that are no text."""
    try:
        Location.of(path)
    except StorageError:
        return False
    return True


def _read(paths: Sequence[str]) -> Iterator[ExperimentFile]:
    began, outputs = time.monotonic(), 0
    for start in range(0, len(paths), _FILES_AT_ONCE):
        if time.monotonic() - began > _MAX_SECONDS or outputs > _MAX_OUTPUTS:
            return
        for path, content in read_contents(paths[start : start + _FILES_AT_ONCE], _MAX_BYTES).items():
            file = parse_experiment(path, content)
            outputs += len(file.outputs)
            yield file


def parse_experiment(path: str, content: Content) -> ExperimentFile:
    """Return the experiment in the content of the file ``path``; the reason if it is none."""
    name = posixpath.basename(path)[: -len("-000000.json")]
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        fields = parse_fields(parse_object(content.text), _KINDS, ("steps",))
        steps = [parse_fields(step, _KINDS_OF_A_STEP, ("output_path",), "a step's") for step in fields["steps"]]
    except RecordFormatError as flaw:
        return ExperimentFile(path, name, problem=f"it cannot be read, because {flaw}")
    outputs = tuple(dict.fromkeys(step["output_path"].rstrip("/") for step in steps[:MAX_STEPS]))
    commit = fields.get("git_commit")
    return ExperimentFile(
        path,
        name,
        created=_line(fields.get("created_date")),
        user=_line(fields.get("user")),
        commit=None if commit is None else single_line(commit, 80),
        caller=_line(fields.get("caller_path")),
        outputs=outputs,
    )


def _line(value: Any) -> str:
    return single_line(value) if isinstance(value, str) else ""
