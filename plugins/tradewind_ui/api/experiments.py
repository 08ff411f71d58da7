"""All outputs with records below a prefix, files of experiments, and leaderboards.

A list of 10,000 outputs takes seconds on a disk and more in a bucket, so requests share each read of a prefix; see
``shared_reads``. An answer has one page of it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, HTTPException, Query, Response
from starlette.concurrency import run_in_threadpool

from tradewind.deployment.fleet import deployment_roots
from tradewind.evaluation.boards import EvaluationBoards, read_boards
from tradewind.recipes.speedruns.found import SpeedrunBoards, read_speedrun_boards
from tradewind.records.listing import (
    ListedExperiment,
    ListedOutput,
    Order,
    OutputDetails,
    OutputFilter,
    OutputList,
    OutputSizes,
    StateCounts,
    experiments_of,
    in_order,
    list_outputs,
    read_details,
    read_sizes,
)
from tradewind.records.pins import folders_above
from tradewind.records.record import RecordState
from tradewind.shared_reads import Running, SharedReads, TooManyReadsError
from tradewind.storage import StorageError, UnsupportedStoreError, UnusablePathError
from tradewind.storage.confinement import confined_to
from tradewind.storage.errors import RecordsError
from tradewind.text import single_line
from tradewind_ui.api.json_response import JsonResponse
from tradewind_ui.api.security import READS_DATA

router = APIRouter(prefix="/experiments", dependencies=READS_DATA)

MAX_EXPERIMENTS: Final = 500
MAX_FILES: Final = 500
MAX_CHARS: Final = 4096
HUNG_S: Final = 240.0
"""Seconds after which a read counts as one that the store does not answer."""

Prefix = Annotated[str, Query(max_length=MAX_CHARS, description="A root or a folder below one; empty for the first.")]
Text = Annotated[str, Query(max_length=MAX_CHARS)]
T = TypeVar("T")


@dataclass(frozen=True)
class OutputRow:
    """An output on a page.

    Attributes:
        versions: Number of outputs of its step in this experiment that the filter admits.
    """

    output: ListedOutput
    details: OutputDetails
    versions: int


@dataclass(frozen=True)
class OutputsPage:
    """A page of the outputs below a prefix.

    Attributes:
        roots: The roots of the deployment.
        reading_s: How many seconds the prefix has been read; None once it is. Until then the rest is of the list
            before, or empty if there is none.
        rows: By experiment, the one that changed last first; in it by step, the newest version first. Or as the
            request says.
        offset: Place of the first row among those that the filter admits.
        admitted: Number of outputs that the filter admits.
        total: Number of all outputs that were read.
        experiments: All experiments, at most ``MAX_EXPERIMENTS``, whatever the filter.
        notes: Sentences that say what is left out.
        took_s: Seconds that the read took.
        order: Of the admitted outputs, a number. Only pages with the same one are parts of one list.
    """

    prefix: str
    roots: list[str]
    reading_s: float | None
    rows: list[OutputRow]
    offset: int
    admitted: int
    total: int
    experiments: list[StateCounts]
    notes: list[str]
    took_s: float
    order: int


@dataclass(frozen=True)
class FilesPage:
    """The files of experiments beside a prefix, and those above that name an output below it, the newest first.

    Attributes:
        reading_s, notes: As in ``OutputsPage``.
        left_out: Number of the files above that name none.
    """

    prefix: str
    reading_s: float | None
    files: list[ListedExperiment]
    left_out: int
    notes: list[str]


@dataclass(frozen=True)
class Leaderboards:
    """Leaderboards of the evaluations and speedruns below a prefix.

    Attributes:
        reading_s, notes: As in ``OutputsPage``.
    """

    prefix: str
    reading_s: float | None
    evaluations: EvaluationBoards
    speedruns: SpeedrunBoards
    notes: list[str]


@dataclass(frozen=True)
class _Boards:
    evaluations: EvaluationBoards
    speedruns: SpeedrunBoards


def _reads(wait_s: float = 5.0) -> SharedReads[Any]:
    """Return shared reads for folders that users choose: few at once, of which few results are kept."""
    return SharedReads(ttl_s=30.0, wait_s=wait_s, known_errors=(StorageError,), max_running=4, max_kept=4)


_LISTS: Final[SharedReads[OutputList]] = _reads()
_SIZES: Final[SharedReads[OutputSizes]] = _reads()
_BOARDS: Final[SharedReads[_Boards]] = _reads()


@router.get("/outputs", response_model=OutputsPage)
async def experiment_outputs(
    prefix: Prefix = "",
    text: Text = "",
    state: Annotated[list[RecordState] | None, Query()] = None,
    producer: Text = "",
    experiment: Annotated[str | None, Query(max_length=MAX_CHARS)] = None,
    pinned: bool | None = None,
    file: Text = "",
    sort: Order | None = None,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
) -> Response:
    """Return a page of the outputs below a prefix that the filter admits.

    Args:
        text: A part of the output path.
        producer: A part of the run or script that made the newest attempt.
        experiment: Name of an experiment; empty for outputs of which none is known.
        file: Path of an experiment's file that names the output.
        sort: An order without experiments.
    """
    prefix, roots = await run_in_threadpool(_checked, prefix)
    listed, reading_s = await _list(prefix)
    sizes: OutputSizes | None = OutputSizes({}, ())
    if listed is not None and sort in ("size", "-size"):
        sizes, sizing_s = await _read_sizes(prefix, listed)
        reading_s = sizing_s if reading_s is None else reading_s
    if listed is None or sizes is None:
        return JsonResponse(OutputsPage(prefix, roots, reading_s, [], offset, 0, 0, [], [], 0.0, 0))
    wanted = OutputFilter(text, frozenset(state or ()), producer, experiment, pinned, file)
    page = partial(_page, listed, sizes, wanted, sort, offset, limit)
    found = await run_in_threadpool(_answered, prefix, page)
    return await run_in_threadpool(JsonResponse, replace(found, roots=roots, reading_s=reading_s))


def _page(
    listed: OutputList, sizes: OutputSizes, wanted: OutputFilter, sort: Order | None, offset: int, limit: int
) -> OutputsPage:
    admitted = wanted.select(listed)
    if sort is not None:
        admitted = in_order(admitted, sort, sizes.size_bytes)
    versions = Counter((output.experiment, output.step) for output in admitted)
    shown = admitted[offset : offset + limit]
    details = read_details([each.status for each in shown])
    rows = [
        OutputRow(output, detail, versions[output.experiment, output.step])
        for output, detail in zip(shown, details, strict=True)
    ]
    experiments = experiments_of(listed.outputs)
    notes = [*listed.cuts, *sizes.cuts]
    if len(experiments) > MAX_EXPERIMENTS:
        notes.append(f"{MAX_EXPERIMENTS} of {len(experiments):,} experiments are offered: narrow the prefix.")
    return OutputsPage(
        prefix=listed.prefix,
        roots=[],
        reading_s=None,
        rows=rows,
        offset=offset,
        admitted=len(admitted),
        total=len(listed.outputs),
        experiments=experiments[:MAX_EXPERIMENTS],
        notes=notes,
        took_s=round(listed.took_s, 2),
        order=zlib.crc32("\n".join(each.path for each in admitted).encode(errors="replace")),
    )


@router.get("/files", response_model=FilesPage)
async def experiment_files(prefix: Prefix = "") -> Response:
    """Return the files of experiments beside a prefix and the folders above it."""
    prefix, _ = await run_in_threadpool(_checked, prefix)
    listed, reading_s = await _list(prefix)
    if listed is None:
        return JsonResponse(FilesPage(prefix, reading_s, [], 0, []))
    notes = list(listed.cuts)
    if len(listed.files) > MAX_FILES:
        notes.append(f"The newest {MAX_FILES} of {len(listed.files):,} files are shown.")
    page = FilesPage(prefix, reading_s, list(listed.files[:MAX_FILES]), listed.files_left_out, notes)
    return await run_in_threadpool(JsonResponse, page)


@router.get("/leaderboards", response_model=Leaderboards)
async def experiment_leaderboards(prefix: Prefix = "") -> Response:
    """Return leaderboards of the evaluations and speedruns below a prefix."""
    prefix, _ = await run_in_threadpool(_checked, prefix)
    listed, reading_s = await _list(prefix)
    boards: _Boards | None = None
    if listed is not None:
        boards, boards_s = await _read_boards(prefix, [output.path for output in listed.outputs])
        reading_s = boards_s if reading_s is None else reading_s
    if listed is None or boards is None:
        return JsonResponse(Leaderboards(prefix, reading_s, EvaluationBoards((), ()), SpeedrunBoards((), ()), []))
    found = Leaderboards(prefix, reading_s, boards.evaluations, boards.speedruns, list(listed.cuts))
    return await run_in_threadpool(JsonResponse, found)


def _checked(prefix: str) -> tuple[str, list[str]]:
    """Return the prefix to read, and all roots; raises ``HTTPException`` for a prefix below none."""
    try:
        roots = deployment_roots()
        if not roots.paths:
            raise HTTPException(404, "This deployment has no allowed root: set prefix or allowed_roots of [tradewind].")
        prefix = prefix or roots.paths[0]
        roots.check(prefix, "prefix")
    except (UnusablePathError, UnsupportedStoreError) as error:
        raise HTTPException(403, single_line(error)) from None
    return prefix.rstrip("/") or "/", list(roots.paths)


async def _list(prefix: str) -> tuple[OutputList | None, float | None]:
    roots = deployment_roots()
    return await _shared(
        _LISTS,
        prefix,
        lambda: list_outputs(prefix, [folder for folder in folders_above(prefix) if roots.allow(folder)]),
    )


async def _read_sizes(prefix: str, listed: OutputList) -> tuple[OutputSizes | None, float | None]:
    return await _shared(_SIZES, prefix, lambda: read_sizes(listed.outputs))


async def _read_boards(prefix: str, paths: list[str]) -> tuple[_Boards | None, float | None]:
    return await _shared(
        _BOARDS, prefix, lambda: _Boards(read_boards(prefix, paths), read_speedrun_boards(prefix, paths))
    )


async def _shared(reads: SharedReads[T], prefix: str, read: Callable[[], T]) -> tuple[T | None, float | None]:
    """Return the newest result, None before the first, and for how many seconds a newer one has been read."""
    try:
        found = await reads.get(prefix, lambda: _confined(read))
    except TooManyReadsError:
        raise HTTPException(503, "Other folders are being read for other users: open the page again soon.") from None
    except StorageError as error:
        raise _refusal(error) from None
    if not isinstance(found, Running):
        return found, None
    if found.seconds > HUNG_S:
        raise HTTPException(503, f"{prefix}: the store has not answered for minutes. Narrow the prefix.")
    return found.older, found.seconds


def _answered(prefix: str, read: Callable[[], T]) -> T:
    try:
        return _confined(read)
    except StorageError as error:
        raise _refusal(error) from None


def _confined(read: Callable[[], T]) -> T:
    with confined_to(deployment_roots()):
        return read()


def _refusal(error: StorageError) -> HTTPException:
    return HTTPException(503 if isinstance(error, RecordsError) else 403, single_line(error))
