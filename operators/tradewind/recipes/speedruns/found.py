"""Boards of the speedruns below a prefix, from their results files, which Marin's speedruns have too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import join, parent
from tradewind.recipes.comparing.runs import RunResult
from tradewind.recipes.metrics.file import is_measure
from tradewind.recipes.speedruns.board import Entry, Rules, rank_runs, submitter_of
from tradewind.recipes.speedruns.results import C4_BITS_PER_BYTE, RESULTS_FILE
from tradewind.records.parsing import OBJECT, RecordFormatError, list_of, parse_fields, parse_object
from tradewind.storage.bounded_read import Content, value_count
from tradewind.text import single_line

MAX_SPEEDRUNS: Final = 2_000
_MAX_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 50_000
"""Values in a file: a small one takes 200 bytes of memory when it is parsed."""
_FILES_AT_ONCE: Final = 16
_COST: Final = "model_flops"
_SHOWN: Final = (_COST, "training_time", "model_size", "total_tokens", "num_devices")
_METRICS: Final = (C4_BITS_PER_BYTE, "eval_loss")
"""Numbers to rank by, lower first: Marin's, which all speedruns share, and the loss on a run's own validation sets."""


@dataclass(frozen=True)
class SpeedrunScore:
    """A speedrun on a board.

    Attributes:
        label: Output path, relative to the prefix.
        value: The number that the board ranks by; None if it is not finite, since the run diverged.
        rank: From 1. Runs that diverged come last, as on the board of the step ``leaderboard``.
        is_on_frontier: Whether no run is better for as few FLOPs, or as good for fewer.
        flops: Floating-point operations of the training.
        seconds: Time of its steps.
    """

    label: str
    output_path: str
    author: str
    description: str
    value: float | None
    rank: int
    is_on_frontier: bool
    flops: float | None
    seconds: float | None
    parameters: float | None
    tokens: float | None
    devices: float | None


@dataclass(frozen=True)
class SpeedrunBoard:
    """Speedruns, the best first. Each is one training, so its number has no interval."""

    metric: str
    runs: tuple[SpeedrunScore, ...]


@dataclass(frozen=True)
class SpeedrunBoards:
    """Boards by metric, without those that no run has.

    Attributes:
        problems: Sentences that say which files cannot be read, which runs have no number, and what is left out.
    """

    boards: tuple[SpeedrunBoard, ...]
    problems: tuple[str, ...]


def read_speedrun_boards(prefix: str, output_paths: Sequence[str]) -> SpeedrunBoards:
    """Read the speedruns among these outputs, at most ``MAX_SPEEDRUNS``, and rank them.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    runs: list[RunResult] = []
    about: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for path, content in _contents(output_paths):
        if len(runs) == MAX_SPEEDRUNS:
            problems.append(f"The first {MAX_SPEEDRUNS:,} speedruns are shown: narrow the prefix to see the others.")
            break
        try:
            info = _run_info(content)
        except RecordFormatError as flaw:
            problems.append(f"{path}: its {RESULTS_FILE} holds no results, because {flaw}.")
            continue
        runs.append(RunResult(path, results=_numbers(info)))
        about[path] = submitter_of(info)
        if not any(metric in runs[-1].results for metric in _METRICS):
            names = " nor ".join(_METRICS)
            problems.append(f"{path}: its {RESULTS_FILE} has neither {names}: none was measured, or none was finite.")
    boards = [_board(prefix, metric, runs, about) for metric in _METRICS]
    return SpeedrunBoards(tuple(board for board in boards if board.runs), tuple(problems))


def _contents(paths: Sequence[str]) -> Iterator[tuple[str, Content]]:
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    files = [join(path, RESULTS_FILE) for path in paths]
    for start in range(0, len(files), _FILES_AT_ONCE):
        for file, content in read_contents(files[start : start + _FILES_AT_ONCE], _MAX_BYTES).items():
            yield parent(file), content


def _run_info(content: Content) -> Mapping[str, Any]:
    """Return the newest run in a file."""
    if content.flaw is not None:
        raise RecordFormatError(content.flaw)
    if value_count(content.text) > _MAX_VALUES:
        raise RecordFormatError(f"it holds more than {_MAX_VALUES:,} values")
    runs = parse_fields(parse_object(content.text), {"runs": list_of(OBJECT)}, ("runs",))["runs"]
    if not runs:
        raise RecordFormatError("it holds no run")
    info: Mapping[str, Any] = parse_fields(runs[-1], {"run_info": OBJECT}, ("run_info",), "a run's")["run_info"]
    return info


def _board(prefix: str, metric: str, runs: Sequence[RunResult], about: Mapping[str, dict[str, Any]]) -> SpeedrunBoard:
    measured = [run for run in runs if metric in run.results]
    entries = rank_runs(measured, about, Rules(metric, _COST))
    return SpeedrunBoard(metric, tuple(_score(prefix, metric, entry) for entry in entries))


def _numbers(info: Mapping[str, Any]) -> dict[str, float]:
    measures = {name: float(info[name]) for name in (*_METRICS, *_SHOWN) if is_measure(info.get(name))}
    return {name: value for name, value in measures.items() if name in _METRICS or math.isfinite(value)}


def _score(prefix: str, metric: str, entry: Entry) -> SpeedrunScore:
    path, numbers = entry.run.label, entry.run.results
    author = entry.about.get("author") or {}
    return SpeedrunScore(
        label=single_line(path.removeprefix(f"{prefix.rstrip('/')}/")),
        output_path=path,
        author=author.get("name", ""),
        description=entry.about.get("description") or "",
        value=numbers[metric] if math.isfinite(numbers[metric]) else None,
        rank=entry.rank,
        is_on_frontier=entry.is_on_frontier,
        flops=numbers.get(_COST),
        seconds=numbers.get("training_time"),
        parameters=numbers.get("model_size"),
        tokens=numbers.get("total_tokens"),
        devices=numbers.get("num_devices"),
    )
