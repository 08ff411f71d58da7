"""Folders and files below the allowed roots.

Processes of their own read the files, so a large or hostile one, or a store that does not answer, takes neither the
memory nor a thread of the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from tradewind.browsing import refusals
from tradewind.browsing.answers import Description, EntryPage, Root, RowPage, TextPage, WholeValue
from tradewind.browsing.limits import MAX_LISTED, MAX_ROWS, MAX_TEXT_BYTES, MAX_VALUE_CHARS, VALUE_CHARS
from tradewind.browsing.pool import Answer, shared_pool
from tradewind.storage import Roots
from tradewind_ui.api.json_response import JsonResponse
from tradewind_ui.api.security import READS_DATA, AllowedRoots

router = APIRouter(prefix="/data", dependencies=READS_DATA)

_STATUSES: Final = {
    refusals.OutsideError: 403,
    refusals.MissingError: 404,
    refusals.ChangedError: 409,
    refusals.TooLargeError: 413,
    refusals.WrongKindError: 415,
    refusals.UnreadableError: 422,
    refusals.BusyError: 429,
    refusals.StoreSilentError: 503,
}
_PASSING: Final = (429, 503)
_UNPACKED: Final = {"Content-Encoding": "identity"}
"""Airflow packs answers without it, in the thread that serves all requests, and drops their length."""
_RETRY_S: Final = "5"
_MAX_PIECE_TRIES: Final = 10
_PIECE_PAUSE_S: Final = 2.0
_MAX_FILTER_CHARS: Final = 1000
_MAX_COLUMNS: Final = 200

Path = Annotated[str, Query(max_length=4096, description="A root, or a path below one.")]
Place = Annotated[str | None, Query(max_length=1000)]


@router.get("/roots")
async def data_roots(roots: AllowedRoots) -> list[Root]:
    """Return the folders and buckets that the deployment allows; each page of Data asks this first."""
    shared_pool().start()
    return [Root(path) for path in roots.paths]


@router.get("/list", response_model=EntryPage)
async def data_list(
    roots: AllowedRoots,
    path: Path,
    prefix: Annotated[str, Query(max_length=1000)] = "",
    after: Place = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 200,
) -> Response:
    """Return a page of a folder's entries.

    Args:
        prefix: Only names that begin with this.
        after: ``next`` of the page before.
    """
    return await _answered("list", roots, path=path, prefix=prefix, after=after, limit=limit)


@router.get("/describe", response_model=Description)
async def data_describe(roots: AllowedRoots, path: Path) -> Response:
    """Return what a path is."""
    return await _answered("describe", roots, path=path)


@router.get("/rows", response_model=RowPage)
async def data_rows(
    roots: AllowedRoots,
    path: Path,
    start: Annotated[int | None, Query(ge=0, le=1 << 53)] = None,
    cursor: Place = None,
    at: Annotated[float | None, Query(ge=0, le=1)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
    columns: Annotated[list[str] | None, Query(max_length=_MAX_COLUMNS)] = None,
    filter: Annotated[str, Query(max_length=_MAX_FILTER_CHARS)] = "",
    chars: Annotated[int, Query(ge=1, le=MAX_VALUE_CHARS)] = VALUE_CHARS,
) -> Response:
    """Return a page of rows, from a row's number, a cursor, or a fraction of the file; else from the beginning.

    Args:
        start: Rows before the first, in formats whose description says ``by_number``.
        cursor: ``next`` of the page before, or ``at`` of a row.
        at: A fraction of the file.
        columns: Only these; repeat the parameter.
        filter: Only rows with this text in any value; ``column:text`` looks in one column, and ``column=value`` for
            the whole value, numbers by their size. Upper and lower case count the same. It scans a bounded number of
            rows: ``next`` continues.
        chars: Characters of a value; longer ones are cut.
    """
    place = {"start": start, "cursor": cursor, "at": at}
    return await _answered(
        "rows", roots, path=path, **place, limit=limit, columns=columns or [], filter=filter, chars=chars
    )


@router.get("/value", response_model=WholeValue)
async def data_value(
    roots: AllowedRoots,
    path: Path,
    at: Annotated[str, Query(max_length=100)],
    column: Annotated[str, Query(max_length=4096)],
) -> Response:
    """Return one value of a row whole; ``at`` is the row's."""
    return await _answered("value", roots, path=path, at=at, column=column)


@router.get("/text", response_model=TextPage)
async def data_text(
    roots: AllowedRoots,
    path: Path,
    offset: Annotated[int, Query(ge=-(1 << 53), le=1 << 53)] = 0,
    bytes: Annotated[int, Query(ge=1, le=MAX_TEXT_BYTES)] = 1 << 16,
    state: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """Return a range of a text; a negative offset counts from the end. ``state`` is that of the range before."""
    return await _answered("text", roots, path=path, offset=offset, count=bytes, state=state)


@router.get("/image", response_class=Response)
async def data_image(roots: AllowedRoots, path: Path) -> Response:
    """Return a PNG, JPEG, GIF or WebP."""
    answer = await _ask("image", roots, path=path)
    return Response(answer.body, headers=_UNPACKED, media_type=str(answer.head["type"]))


@router.get("/download", response_class=Response)
async def data_download(roots: AllowedRoots, path: Path) -> Response:
    """Return a file as an attachment, in pieces."""
    first = await _ask("piece", roots, path=path, offset=0)
    size, state = int(first.head["size"]), str(first.head["state"])
    name = quote(path.rstrip("/").rpartition("/")[2], safe="")
    disposition = f"attachment; filename*=UTF-8''{name}"
    headers = {"Content-Disposition": disposition, "Content-Length": str(size), **_UNPACKED}

    async def pieces() -> AsyncIterator[bytes]:
        """Yield the file; an error ends the answer short of its length, which the browser reports."""
        data, sent = first.body, 0
        while sent < size:
            if not data:
                raise OSError(f"{path} became shorter during its download")
            yield data[: size - sent]
            sent += len(data)
            if sent < size:
                data = await _next_piece(roots, path, sent, state)

    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


async def _next_piece(roots: Roots, path: str, offset: int, state: str) -> bytes:
    """Return a further piece of a download, which waits while all readers are busy with pages."""
    for _ in range(_MAX_PIECE_TRIES):
        try:
            return (await _ask("piece", roots, path=path, offset=offset, state=state)).body
        except HTTPException as error:
            if error.status_code not in _PASSING:
                raise
            await asyncio.sleep(_PIECE_PAUSE_S)
    raise OSError(f"{path}: no reader was free, or the store did not answer, so its download ends")


async def _answered(call: str, roots: Roots, **arguments: Any) -> Response:
    """Return a reader's JSON as it is: it is not parsed again here, however many rows it has."""
    answer = await _ask(call, roots, **arguments)
    return await run_in_threadpool(JsonResponse, answer.body)


async def _ask(call: str, roots: Roots, **arguments: Any) -> Answer:
    """Ask a reader's process, which checks the path against the roots before it opens anything.

    Raises:
        HTTPException: The reader refused, or none is free.
    """
    try:
        return await asyncio.wrap_future(shared_pool().submit(call, roots.paths, arguments))
    except refusals.BrowsingError as error:
        status = _STATUSES[type(error)]
        raise HTTPException(status, str(error), {"Retry-After": _RETRY_S} if status in _PASSING else None) from None
