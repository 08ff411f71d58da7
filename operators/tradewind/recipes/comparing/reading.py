"""Read the results of runs of any step from their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.datasets.files import join
from tradewind.recipes.comparing.runs import MissingRun, RunResult, is_drawable
from tradewind.recipes.metrics.file import MAX_BYTES, is_measure, parse_metrics, series
from tradewind.recipes.train_config import metrics_path
from tradewind.records.attempts import read_attempt_or_none
from tradewind.records.info_files import INFO_FILE, BadInfoError, parse_info
from tradewind.records.manifests import RESULT_FILE
from tradewind.records.parsing import RecordFormatError, parse_object
from tradewind.records.record import Record, RecordState, read_records
from tradewind.storage import Location, StorageError
from tradewind.storage.bounded_read import Content
from tradewind.storage.files import read_contents
from tradewind.text import single_line

CURVES: Final = ("eval/loss", "train/loss")
"""Metrics to draw of a training: the first that it has."""
_MAX_RESULT: Final = 4 << 20
"""Bound for a result and for a version record in bytes, which become twenty times as large when parsed."""
MAX_NUMBERS: Final = 200
"""Bound for a run's numbers, each of which is a column of a table."""


def read_runs(paths: Mapping[str, str]) -> tuple[list[RunResult], list[MissingRun]]:
    """Read the results of runs, given as label → output path.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    records = read_records(list(dict.fromkeys(paths.values())))
    ended = {label: path for label, path in paths.items() if records[path].state is RecordState.FINISHED}
    contents = read_contents(
        [join(path, name) for path in ended.values() for name in (RESULT_FILE, INFO_FILE)], _MAX_RESULT
    )
    missing = [
        MissingRun(label, reason_without_result(path, records[path]))
        for label, path in paths.items()
        if label not in ended
    ]
    flaws = {
        label: contents[file].flaw for label, path in ended.items() if (file := join(path, RESULT_FILE)) in contents
    }
    missing += [MissingRun(label, f"its result is not read, because {flaw}") for label, flaw in flaws.items() if flaw]
    return [_run_result(label, path, contents) for label, path in ended.items() if not flaws.get(label)], missing


def _run_result(label: str, path: str, contents: Mapping[str, Content]) -> RunResult:
    info = _info(join(path, INFO_FILE), contents)
    settings: dict[str, Any] = {}
    _collect_settings(info.get("version"), settings)
    return RunResult(
        label,
        settings,
        dict(_numbers(_result(contents.get(join(path, RESULT_FILE))))[:MAX_NUMBERS]),
        _curve([path, *(info.get("dependencies") or ())]),
    )


def reason_without_result(path: str, record: Record) -> str:
    """Say why an output has no result, such as "failed" with the error of its attempt."""
    lease = record.lease
    match record.state:
        case RecordState.FAILED if lease is not None:
            attempt = read_attempt_or_none(path, lease.attempt)
            error = attempt.error if attempt is not None else None
            return f"failed: {error.type}: {error.message}" if error is not None else "failed"
        case RecordState.NONE:
            return "never ran"
        case RecordState.GONE:
            return "its output is gone"
        case RecordState.STOPPED:
            return "was stopped"
        case RecordState.AT_WORK:
            return "is still at work"
    return "its record cannot be read"


def _info(file: str, contents: Mapping[str, Content]) -> Mapping[str, Any]:
    try:
        return parse_info(file, contents[file]) if file in contents else {}
    except BadInfoError:  # it gives only names of settings
        return {}


def _result(content: Content | None) -> Any:
    try:
        return parse_object(content.text) if content is not None and content.flaw is None else {}
    except RecordFormatError:  # a function may return anything
        return {}


def _collect_settings(version: Any, settings: dict[str, Any]) -> None:
    """Collect settings breadth first, so that a run's own precede those of its inputs."""
    level = [version]
    while level:
        known = [each for each in level if isinstance(each, dict)]
        for each in known:
            config = each.get("config")
            for path, value in config.items() if isinstance(config, dict) else ():
                if not (isinstance(value, str) and value.startswith("DEP[")):
                    settings.setdefault(single_line(path), value)
        below = (each.get("dependencies") for each in known)
        level = [inner for each in below if isinstance(each, list) for inner in each]


def _numbers(value: Any, path: str = "") -> list[tuple[str, float]]:
    if is_measure(value):
        return [(path, value)]
    if isinstance(value, dict) and path.count(".") < 3:
        prefix = f"{path}." if path else ""
        return [number for key, inner in value.items() for number in _numbers(inner, f"{prefix}{single_line(key)}")]
    return []


def _curve(folders: Sequence[str]) -> tuple[Sequence[int], Sequence[float]]:
    """Return the losses in the first folder that has some."""
    for folder in folders:
        if metrics := parse_metrics(_text_at(metrics_path(folder))):
            for name in CURVES:
                steps, losses = series(metrics, name)
                finite = [(step + 1, loss) for step, loss in zip(steps, losses, strict=True) if is_drawable(loss)]
                if finite:
                    return [step for step, _ in finite], [loss for _, loss in finite]
    return (), ()


def _text_at(file: str) -> str:
    """Return the text, or nothing if the file is missing or too large; another process may have made up the path."""
    try:
        Location.of(file)
    except StorageError:
        return ""
    content = read_contents([file], MAX_BYTES).get(file)
    return "" if content is None else content.text
