"""The newest texts of Uncheatable Eval as documents: young enough that no model of before was trained on them.

https://github.com/Jellyfish042/uncheatable_eval has, for each of its sets, files that are called after the days of
which they hold the texts, such as ``bbc_news_20250701to20250715.json``. Of each set the newest is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tradewind.datasets.documents import SUFFIX, Document, write_document_file
from tradewind.datasets.files import join, write_json
from tradewind.datasets.source_files import DownloadError, SourceFile, check_name, parsed_list
from tradewind.steps.fields import PATH, SOME_TEXT, check_fields
from tradewind.text import single_line, truncated_repr

_FILE: Final = re.compile(r"(?P<set>.+)_(?P<first>\d{8})to(?P<last>\d{8})\.json")
_LARGEST_LIST_BYTES: Final = 64 << 20
_LARGEST_FILE_BYTES: Final = 1 << 30
"""Of texts, which are read whole; those of half a month have some megabytes."""
_TEXT_KEYS: Final = ("text", "body", "content", "article", "code")


@dataclass(frozen=True)
class UncheatableEvalConfig:
    """What ``download_uncheatable_eval`` downloads; the fields are those of Marin's config of this name."""

    output_path: str
    """Gets a ``.jsonl.gz`` for each set, called like its file, and ``metadata.json``."""
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
    """Write the newest texts of each set; returns ``sets`` with the number of documents of each.

    Raises:
        DownloadError: GitHub does not have them, gives other bytes than it announced, or a file holds no texts.
    """
    from tradewind.datasets.http_reader import HttpReader

    reader = HttpReader()
    files = _newest(_listed(config, reader))
    rows = []
    for name, file in sorted(files.items()):
        own = file.name.removesuffix(".json")
        texts = parsed_list(file.checked(reader.read(file)), file.url, _LARGEST_FILE_BYTES)
        documents = write_document_file(join(config.output_path, f"{own}{SUFFIX}"), _documents(own, texts, file.url))
        print(f"{own}: {documents:,} documents", flush=True)
        rows.append({"benchmark": name, "file": f"{own}{SUFFIX}", "records": documents, "sha": file.git_blob})
    write_json(join(config.output_path, "metadata.json"), rows)
    return {"sets": {row["benchmark"]: row["records"] for row in rows}}


def _listed(config: UncheatableEvalConfig, reader: Any) -> Iterator[SourceFile]:
    """The files of the repository's folder (https://docs.github.com/rest/repos/contents)."""
    from tradewind.datasets.http_reader import check_redirect

    repository = f"{config.api}/repos/{quote(config.repo_owner)}/{quote(config.repo_name)}"
    url = f"{repository}/contents/{quote(config.data_path)}?ref={quote(config.branch, safe='')}"
    for entry in parsed_list(reader.read(SourceFile("contents", url)), url, _LARGEST_LIST_BYTES):
        if not isinstance(entry, dict) or not isinstance(entry.get("download_url"), str):
            continue
        name, address = check_name(str(entry.get("name")), url), entry["download_url"]
        if _FILE.fullmatch(name) is None:
            continue
        size, blob = entry.get("size"), entry.get("sha")
        if type(size) is not int or not 0 <= size <= _LARGEST_FILE_BYTES or not isinstance(blob, str):
            raise DownloadError(f"{url} has no size, one above {_LARGEST_FILE_BYTES:,}, or no checksum of {name!r}.")
        try:
            check_redirect(url, address)
        except ValueError as error:
            raise DownloadError(f"{url} has no address of {name!r}: {single_line(error)}") from error
        yield SourceFile(name, address, size_bytes=size, git_blob=blob)


def _newest(files: Iterator[SourceFile]) -> dict[str, SourceFile]:
    """Set → its file that ends last."""
    newest: dict[str, tuple[tuple[str, str], SourceFile]] = {}
    for file in files:
        found = _FILE.fullmatch(file.name)
        if found is not None:
            days = (found["last"], found["first"])
            if found["set"] not in newest or days > newest[found["set"]][0]:
                newest[found["set"]] = (days, file)
    if not newest:
        raise DownloadError("data_path has no file that is called like the texts of some days: is it the right folder?")
    return {name: file for name, (_, file) in newest.items()}


def _documents(name: str, texts: list[Any], url: str) -> Iterator[Document]:
    for number, entry in enumerate(texts):
        values = [entry] if not isinstance(entry, dict) else [entry.get(key) for key in _TEXT_KEYS]
        text = next((value for value in values if isinstance(value, str) and value.strip()), None)
        if text is None:
            raise DownloadError(f"{url}: entry {number} has no text, but {truncated_repr(entry)}.")
        yield Document(f"{name}_{number:06d}", text)
