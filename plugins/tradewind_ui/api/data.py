"""Folders and files below the allowed roots."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from tradewind.browsing.answers import Description, EntryPage, Root, RowPage, TextPage, WholeValue
from tradewind_ui.api.security import READS_DATA

router = APIRouter(prefix="/data", dependencies=READS_DATA)

Path = Annotated[str, Query(max_length=4096, description="A root, or a path below one.")]


@router.get("/roots")
async def data_roots() -> list[Root]:
    """Return the folders and buckets that the deployment allows."""
    raise HTTPException(501)


@router.get("/list")
async def data_list(
    path: Path, prefix: str = "", after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> EntryPage:
    """Return a page of a folder's entries.

    Args:
        prefix: Only names that begin with this.
        after: ``next`` of the page before.
    """
    raise HTTPException(501)


@router.get("/describe")
async def data_describe(path: Path) -> Description:
    """Return what a path is."""
    raise HTTPException(501)


@router.get("/rows")
async def data_rows(
    path: Path,
    start: Annotated[int | None, Query(ge=0)] = None,
    cursor: str | None = None,
    at: Annotated[float | None, Query(ge=0, le=1)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    columns: Annotated[list[str] | None, Query()] = None,
    filter: str | None = None,
) -> RowPage:
    """Return a page of rows, from a row's number, a cursor, or a fraction of the file; else from the beginning.

    Args:
        start: Rows before the first, in formats whose description says ``by_number``.
        cursor: ``next`` of the page before, or ``at`` of a row.
        at: A fraction of the file.
        columns: Only these; repeat the parameter.
        filter: Only rows with this text in any value; ``column:text`` looks in one column. Upper and lower case count
            the same. It scans a bounded number of rows: ``next`` goes on.
    """
    raise HTTPException(501)


@router.get("/value")
async def data_value(path: Path, at: str, column: str) -> WholeValue:
    """Return one value of a row whole; ``at`` is the row's."""
    raise HTTPException(501)


@router.get("/text")
async def data_text(path: Path, offset: int = 0, bytes: Annotated[int, Query(ge=1, le=1 << 20)] = 1 << 16) -> TextPage:
    """Return a range of a text; a negative offset counts from the end."""
    raise HTTPException(501)


@router.get("/image", response_class=Response)
async def data_image(path: Path) -> Response:
    """Return a PNG, JPEG, GIF or WebP."""
    raise HTTPException(501)


@router.get("/download", response_class=Response)
async def data_download(path: Path) -> Response:
    """Return a file as an attachment, in pieces."""
    raise HTTPException(501)
