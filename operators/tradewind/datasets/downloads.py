"""Download files to the output of a step: a repository of the Hugging Face hub, or files at given addresses.

Many files come at once, a broken connection is taken up where it broke, and what has come is compared with the checksum
that the hub has of it. A file is seen only once it is whole and right. An attempt after a loss goes on with the files
that are missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tradewind.datasets.downloading.source import SourceFile, check_apart, check_name
from tradewind.steps.values.fields import PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, one_of
from tradewind.steps.values.shortened import shortened

RESUMABLE: Final = ("**",)
"""For ``ExecutorStep(resumable=...)``: an attempt goes on from all that the one before has copied."""
PROVENANCE_FILE: Final = "provenance.json"
_TYPES: Final = ("datasets", "models", "spaces", "")
_SCHEMES: Final = ("https", "http", "gs", "gcs", "s3", "s3a", "file")
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class HubDownloadConfig:
    """What ``download_hf`` downloads; the fields are those of Marin's ``DownloadConfig``."""

    hf_dataset_id: str
    """Of the repository: ``owner/name``."""
    revision: str
    """A commit, long or short; a branch or a tag may mean other files tomorrow."""
    gcs_output_path: str
    """Gets the files, under their paths in the repository, and ``provenance.json``; on any store."""
    hf_urls_glob: Sequence[str] = ()
    """Only the files that one of these matches, such as ``data/*.parquet``; all without any."""
    hf_repo_type_prefix: str = "datasets"
    """``datasets``, ``spaces``, or ``models`` (or empty)."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            hf_dataset_id=SOME_TEXT,
            revision=SOME_TEXT,
            gcs_output_path=PATH,
            hf_urls_glob=TEXTS,
            hf_repo_type_prefix=one_of(_TYPES),
        )


@dataclass(frozen=True)
class FilesDownloadConfig:
    """What ``download_files`` downloads."""

    urls: Sequence[str]
    """``https://...``, or of a store, such as ``gs://...``; a file is called like the end of its address."""
    output_path: str
    """Gets the files and ``provenance.json``."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Address → SHA-256 of its file, in hexadecimal; one that has none is taken as it comes."""

    def __post_init__(self) -> None:
        check_fields(self, urls=_SOME_TEXTS, output_path=PATH, sha256=_CHECKSUMS)


def download_hf(config: Any, *, pause: Callable[[float], object] = time.sleep) -> dict[str, Any]:
    """Download a repository of the hub, or some of its files; returns ``files``, ``bytes`` and the ``commit``.

    Args:
        config: A ``HubDownloadConfig``, or Marin's ``DownloadConfig``.
        pause: Waits for so many seconds, while the hub is busy.

    Raises:
        DownloadError: The hub has no such thing, does not show it, or gives other bytes than it announced.
    """
    return _download_from_hub(config, config.gcs_output_path, pause)


def download(config: Any) -> dict[str, Any]:
    """The same where Marin's function of this name has the files: below the revision and their address."""
    prefix = f"{config.hf_repo_type_prefix}/" if config.hf_repo_type_prefix else ""
    below = f"{config.revision}/huggingface.co/{prefix}{config.hf_dataset_id}/resolve/{config.revision}"
    return _download_from_hub(
        config, f"{config.gcs_output_path.rstrip('/')}/{check_name(below, 'The config')}", time.sleep
    )


def download_files(config: FilesDownloadConfig) -> dict[str, Any]:
    """Download the files; returns ``files`` and ``bytes``.

    Raises:
        DownloadError: One cannot be had, or has another checksum.
    """
    from tradewind.datasets.downloading.http_reader import HttpReader

    read_http = HttpReader().read
    names = names_of(config.urls, config.sha256)
    files = [SourceFile(name, url, sha256=config.sha256.get(url)) for name, url in names.items()]
    return _copied(files, config.output_path, read_http, {"links": list(config.urls)})


def names_of(urls: Sequence[str], sha256: Mapping[str, str]) -> dict[str, str]:
    """Name of the copy → address.

    Raises:
        ValueError: An address has no name at its end, or two have the same; or a checksum is of no address.
    """
    if unknown := sorted(set(sha256) - set(urls)):
        raise ValueError(f"sha256[{unknown[0]!r}]: this is none of the urls.")
    names: dict[str, str] = {}
    for url in urls:
        _check_url(url)
        name = check_name(unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2], f"urls: {url}")
        if names.setdefault(name, url) != url:
            raise ValueError(f"urls: {names[name]} and {url} would both be {name}. Download them in two steps.")
    return names


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"urls: one at {parts.hostname} holds a name or a password, and would be written down with it. Give an "
            "address that needs none."
        )
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"urls: {shortened(url)} is no address that is known: give https://..., gs://... or s3://...")


def _download_from_hub(config: Any, output_path: str, pause: Callable[[float], object]) -> dict[str, Any]:
    from tradewind.datasets.downloading.hub import REPO_TYPES, Hub

    hub = Hub(pause)
    found = hub.revision(
        config.hf_dataset_id, config.revision, REPO_TYPES[config.hf_repo_type_prefix], list(config.hf_urls_glob or ())
    )
    provenance = {
        "dataset": config.hf_dataset_id,
        "version": config.revision,
        "commit": found.commit,
        "links": [file.url for file in found.files],
    }
    return _copied(found.files, output_path, hub.reader().read, provenance) | {"commit": found.commit}


def _copied(
    files: Sequence[SourceFile], output_path: str, read_http: Callable[[SourceFile], Any], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    from tradewind.datasets.downloading.copies import Copies, read_store
    from tradewind.datasets.downloading.progress import DownloadProgress
    from tradewind.datasets.files import join, write_json

    check_apart({PROVENANCE_FILE: None, **{file.name: None for file in files}}, "What is to be downloaded")
    sizes = [file.size_bytes for file in files]
    progress = DownloadProgress(len(files), None if None in sizes else sum(size or 0 for size in sizes))
    print(f"{len(files)} files to have in {output_path}", flush=True)

    def read(file: SourceFile) -> Any:
        return read_http(file) if file.url.startswith(("https://", "http://")) else read_store(file)

    Copies(output_path, read, progress.count).make(files)
    if PROVENANCE_FILE not in {file.name for file in files}:  # else they say themselves where they are from
        write_json(join(output_path, PROVENANCE_FILE), provenance)
    print(f"have {progress.line()}", flush=True)
    return {"files": progress.files, "bytes": progress.bytes}


_SOME_TEXTS: Final = FieldRule(
    "a list of at least one address",
    lambda value: isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, str) for each in value),
)
_CHECKSUMS: Final = FieldRule(
    "a mapping of addresses to 64 hexadecimal digits",
    lambda value: (
        isinstance(value, Mapping) and all(isinstance(v, str) and _SHA256.fullmatch(v) for v in value.values())
    ),
)
