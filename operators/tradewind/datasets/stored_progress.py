"""How far the pipeline of a data step is, from its scratch folder: stages, stragglers, failed shards, rejected rows.

``execution`` writes ``progress.json`` every 15 s while a stage runs, and leaves a manifest of each stage that is done.
Both are input that another process wrote, so they are read within a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.execution import SCRATCH_FOLDER
from tradewind.datasets.files import join
from tradewind.datasets.progress import PROGRESS_FILE
from tradewind.records.parsing import (
    COUNT,
    NUMBER,
    OBJECT,
    RAW_TEXT,
    FieldType,
    RecordFormatError,
    list_of,
    parse,
    parse_fields,
    parse_object,
    replace_surrogates,
)
from tradewind.storage.bounded_read import SMALL

MAX_STAGES: Final = 100
MAX_SHARDS: Final = 50
"""Failed shards, and shards with rejected rows, that are listed."""
MAX_TEXT: Final = 2_000
_MAX_MANIFEST_BYTES: Final = 2 << 20
"""Of all manifests that are read, which have a line of some 60 bytes for each shard."""
_MAX_MANIFESTS: Final = 8
_STAGE: Final = {
    "stage": COUNT,
    "name": RAW_TEXT,
    **dict.fromkeys(("shards", "done", "reused", "running", "failed", "losses", "rows", "rejected"), COUNT),
    "counters": OBJECT,
    "stragglers": list_of(RAW_TEXT),
    "failures": list_of(OBJECT),
    "seconds": NUMBER,
}
_FAILURE: Final = {"shard": COUNT, **dict.fromkeys(("message", "place", "row", "frame"), RAW_TEXT)}
_FILE: Final = {
    "stages": list_of(OBJECT),
    "total_stages": COUNT,
    "problem": RAW_TEXT.or_null(),
}
_SHARD: Final[Mapping[str, FieldType]] = {
    "shard": COUNT,
    "path": RAW_TEXT,
    "rejected": COUNT,
    "rejection": RAW_TEXT,
    "seconds": NUMBER,
}


@dataclass(frozen=True)
class FailedShard:
    """A shard that failed too often.

    Attributes:
        message: The error.
        place: File and number of the row that was read last.
        row: That row, cut.
        frame: The user's own line in which it failed.
    """

    shard: int
    message: str = ""
    place: str = ""
    row: str = ""
    frame: str = ""


@dataclass(frozen=True)
class RejectedRows:
    """A shard of which rows failed and were left out.

    Attributes:
        path: The file that it wrote.
        rejected: How many rows.
        rejection: Why the first of them failed.
    """

    stage: int
    shard: int
    path: str
    rejected: int
    rejection: str


@dataclass(frozen=True)
class NamedCount:
    """What the user's functions counted under one name."""

    name: str
    count: int


@dataclass(frozen=True)
class PipelineStage:
    """One stage.

    Attributes:
        stage: Its number, from 1 on.
        reused: Shards of ``done`` that an earlier attempt made.
        losses: How often a worker was lost and its shard begun again.
        rejected: Rows that failed and were left out.
        stragglers: Shards that run much longer than others took, with their seconds.
        seconds: How long the stage has run, when the file was written.
    """

    stage: int
    name: str
    shards: int = 0
    done: int = 0
    reused: int = 0
    running: int = 0
    failed: int = 0
    losses: int = 0
    rows: int = 0
    rejected: int = 0
    counters: tuple[NamedCount, ...] = ()
    stragglers: tuple[str, ...] = ()
    failures: tuple[FailedShard, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class PipelineProgress:
    """The progress of a pipeline.

    Attributes:
        total_stages: How many stages it has; those that have not begun are not listed.
        problem: Why it failed.
        rejected: Shards with rejected rows, of the stages whose manifest was read.
        note: Why something is missing.
    """

    stages: tuple[PipelineStage, ...]
    total_stages: int
    problem: str | None = None
    rejected: tuple[RejectedRows, ...] = ()
    note: str | None = None


def progress_path(output_path: str) -> str:
    """Return the path of the progress file below an output."""
    return join(output_path, SCRATCH_FOLDER, PROGRESS_FILE)


def read_progress(output_path: str) -> PipelineProgress | None:
    """Read the progress of the pipeline that writes below ``output_path``; None if there is none.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    path = progress_path(output_path)
    content = read_contents([path], SMALL).get(path)
    if content is None:
        return None
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        known = parse_fields(parse_object(content.text), _FILE, ("stages", "total_stages"))
        stages = tuple(map(_stage, known["stages"][:MAX_STAGES]))
    except RecordFormatError as flaw:
        return PipelineProgress((), 0, note=f"{path} cannot be read, because {flaw}.")
    has_rejected = any(each.rejected for each in stages)
    rejected, note = _rejected(join(output_path, SCRATCH_FOLDER)) if has_rejected else ((), None)
    problem = known.get("problem")
    return PipelineProgress(stages, known["total_stages"], _cut(problem) if problem else None, rejected, note)


def _stage(value: Any) -> PipelineStage:
    known = parse_fields(value, _STAGE, ("stage", "name"), whose="a stage's")
    counters = [NamedCount(_cut(name), count) for name, count in known.pop("counters", {}).items() if COUNT.fits(count)]
    failures = [FailedShard(**_texts(parse_fields(each, _FAILURE, ("shard",)))) for each in known.pop("failures", ())]
    stragglers = tuple(map(_cut, known.pop("stragglers", ())[:MAX_SHARDS]))
    return PipelineStage(
        **_texts(known),
        counters=tuple(counters[:MAX_SHARDS]),
        stragglers=stragglers,
        failures=tuple(failures[:MAX_SHARDS]),
    )


def _rejected(scratch: str) -> tuple[tuple[RejectedRows, ...], str | None]:
    """Return the shards with the most rejected rows, from manifests of stages that are done, and what is not read."""
    from tradewind.storage.files import list_names, read_contents

    names = [name for name in list_names(scratch) if name.endswith(".json") and name[:2].isdecimal()]
    found: list[RejectedRows] = []
    left, read = _MAX_MANIFEST_BYTES, 0
    for name in names[:_MAX_MANIFESTS]:
        file = join(scratch, name)
        content = read_contents([file], left).get(file)
        if content is None or content.flaw is not None:
            continue
        left, read = left - len(content.text), read + 1
        try:
            shards = parse(content.text)
            listed = shards if isinstance(shards, list) else []
            found += [_rejection(int(name[:2]) + 1, each) for each in listed if _has_rejected(each)]
        except RecordFormatError:  # it was cut
            continue
    note = f"Shards with rejected rows are known of {read} of {len(names)} stages, whose manifests are long."
    shown = tuple(sorted(found, key=lambda each: -each.rejected)[:MAX_SHARDS])
    return shown, note if read < len(names) else None


def _has_rejected(shard: Any) -> bool:
    return isinstance(shard, dict) and bool(shard.get("rejected"))


def _rejection(stage: int, shard: Any) -> RejectedRows:
    row = parse_fields(shard, _SHARD, ("shard", "path", "rejected"))
    return RejectedRows(stage, row["shard"], _cut(row["path"]), row["rejected"], _cut(row.get("rejection", "")))


def _texts(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _cut(value) if isinstance(value, str) else value for name, value in known.items()}


def _cut(text: str) -> str:
    return replace_surrogates(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…")
