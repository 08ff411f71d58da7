"""The newest texts of Uncheatable Eval as documents: too recent for older models' training data.

https://github.com/Jellyfish042/uncheatable_eval has files for each of its sets, named by the days of their texts, such
as ``bbc_news_20250701to20250715.json``. The newest file of each set is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tradewind.datasets.documents import SUFFIX, Document, write_document_file
from tradewind.datasets.files import join, write_json
from tradewind.datasets.source_files import DownloadError, SourceFile, check_name, parse_json_list
from tradewind.steps.fields import PATH, SOME_TEXT, check_fields
from tradewind.text import single_line, truncated_repr

_FILE: Final = re.compile(r"(?P<set>.+)_(?P<first>\d{8})to(?P<last>\d{8})\.json")
_MAX_LIST_BYTES: Final = 4 << 20
_MAX_FILE_BYTES: Final = 32 << 20
"""Bound for a file of texts, which is read at once; half a month has some megabytes."""
_TEXT_KEYS: Final = ("text", "body", "content", "article", "code")


@dataclass(frozen=True)
class UncheatableEvalConfig:
    """Repository that ``download_uncheatable_eval`` reads; the fields are those of Marin's config of this name."""

    output_path: str
    """Gets a ``.jsonl.gz`` per set, named like its file, and ``metadata.json``."""
    repo_owner: str = "Jellyfish042"
    repo_name: str = "uncheatable_eval"
    data_path: str = "data"
    """Folder of the repository."""
    branch: str = "master"
    api: str = "https://api.github.com"

    def __post_init__(self) -> None:
        texts = dict.fromkeys(("repo_owner", "repo_name", "data_path", "branch", "api"), SOME_TEXT)
        check_fields(self, output_path=PATH, **texts)


def download_uncheatable_eval(config: UncheatableEvalConfig) -> dict[str, Any]:
    """Write the newest texts of each set; return ``sets`` with the number of documents of each.

    Raises:
        DownloadError: GitHub does not have them or sends other bytes than it announced, or a file holds no texts.
    """
    from tradewind.datasets.http_reader import HttpReader

    reader = HttpReader()
    files = _newest(_list_files(config, reader))
    rows = []
    for name, file in sorted(files.items()):
        own = file.name.removesuffix(".json")
        texts = parse_json_list(file.verify(reader.read(file)), file.url, _MAX_FILE_BYTES)
        documents = write_document_file(join(config.output_path, f"{own}{SUFFIX}"), _documents(own, texts, file.url))
        print(f"{own}: {documents:,} documents", flush=True)
        rows.append({"benchmark": name, "file": f"{own}{SUFFIX}", "records": documents, "sha": file.git_blob})
    write_json(join(config.output_path, "metadata.json"), rows)
    return {"sets": {row["benchmark"]: row["records"] for row in rows}}


def _list_files(config: UncheatableEvalConfig, reader: Any) -> Iterator[SourceFile]:
    """Yield the files of the repository's folder (https://docs.github.com/rest/repos/contents)."""
    from tradewind.datasets.http_reader import check_redirect

    repository = f"{config.api}/repos/{quote(config.repo_owner)}/{quote(config.repo_name)}"
    url = f"{repository}/contents/{quote(config.data_path)}?ref={quote(config.branch, safe='')}"
    for entry in parse_json_list(reader.read(SourceFile("contents", url)), url, _MAX_LIST_BYTES):
        if not isinstance(entry, dict) or not isinstance(entry.get("download_url"), str):
            continue
        name, address = check_name(str(entry.get("name")), url), entry["download_url"]
        if _FILE.fullmatch(name) is None:
            continue
        size, blob = entry.get("size"), entry.get("sha")
        if type(size) is not int or not 0 <= size <= _MAX_FILE_BYTES or not isinstance(blob, str):
            raise DownloadError(f"{url} has no size, one above {_MAX_FILE_BYTES:,}, or no checksum of {name!r}.")
        try:
            check_redirect(url, address)
        except ValueError as error:
            raise DownloadError(f"{url} has no address of {name!r}: {single_line(error)}") from error
        yield SourceFile(name, address, size_bytes=size, git_blob=blob)


def _newest(files: Iterator[SourceFile]) -> dict[str, SourceFile]:
    """Map each set to its file with the latest last day."""
    newest: dict[str, tuple[tuple[str, str], SourceFile]] = {}
    for file in files:
        match = _FILE.fullmatch(file.name)
        if match is not None:
            days = (match["last"], match["first"])
            if match["set"] not in newest or days > newest[match["set"]][0]:
                newest[match["set"]] = (days, file)
    if not newest:
        raise DownloadError(
            "data_path has no file named like 'bbc_news_20250701to20250715.json': is it the right folder?"
        )
    return {name: file for name, (_, file) in newest.items()}


def _documents(name: str, texts: list[Any], url: str) -> Iterator[Document]:
    for number, entry in enumerate(texts):
        values = [entry] if not isinstance(entry, dict) else [entry.get(key) for key in _TEXT_KEYS]
        text = next((value for value in values if isinstance(value, str) and value.strip()), None)
        if text is None:
            raise DownloadError(f"{url}: entry {number} has no text, but {truncated_repr(entry)}.")
        yield Document(f"{name}_{number:06d}", text)
