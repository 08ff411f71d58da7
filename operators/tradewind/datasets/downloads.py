"""Download files to the output of a step: a repository of the Hugging Face hub, or files at given addresses.

Several threads copy files at once. A reader continues a broken connection where it broke, and compares each file with
the hub's checksum. A file becomes visible only when it is complete and correct.

``LIST_FILE`` records the list of files before the first copy. An attempt after a kill keeps copies of the same list and
makes the others.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tradewind.datasets.files import UNFINISHED, atomic_writer, join, state_of, write_json, write_text
from tradewind.datasets.http_reader import CHUNK_BYTES
from tradewind.datasets.source_files import DownloadError, SourceFile, check_apart, check_name, repeat_if_damaged
from tradewind.steps.amounts import human_size
from tradewind.steps.fields import PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, one_of
from tradewind.storage import file_system_at, open_file
from tradewind.storage.filesystems import remove_file
from tradewind.text import truncated_repr

RESUMABLE: Final = ("**",)
"""For ``ExecutorStep(resumable=...)``: an attempt keeps all files that the previous one copied."""
PROVENANCE_FILE: Final = "provenance.json"
LIST_FILE: Final = ".download"
_MAX_OTHER_LIST_BYTES: Final = 16 << 20
MAX_CONCURRENT_COPIES: Final = 16
SECONDS_PER_LINE: Final = 10.0
"""Seconds between two progress lines."""
_TYPES: Final = ("datasets", "models", "spaces", "")
_SCHEMES: Final = ("https", "http", "gs", "gcs", "s3", "s3a", "file")
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
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

Reader = Callable[[SourceFile], Iterator[bytes]]


@dataclass(frozen=True)
class HubDownloadConfig:
    """Repository that ``download_hf`` downloads; the fields are those of Marin's ``DownloadConfig``."""

    hf_dataset_id: str
    """Repository: ``owner/name``."""
    revision: str
    """Commit, long or short; a branch or a tag may name other files later."""
    gcs_output_path: str
    """Gets the files, under their paths in the repository, and ``provenance.json``; on any store."""
    hf_urls_glob: Sequence[str] = ()
    """Globs of the files to download, such as ``data/*.parquet``; empty for all files."""
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
    """Files that ``download_files`` downloads."""

    urls: Sequence[str]
    """``https://...``, or of a store, such as ``gs://...``; the end of an address names the file."""
    output_path: str
    """Gets the files and ``provenance.json``."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Address → SHA-256 of its file, in hexadecimal; a file without one is not checked."""

    def __post_init__(self) -> None:
        check_fields(self, urls=_SOME_TEXTS, output_path=PATH, sha256=_CHECKSUMS)


def download_hf(config: Any, *, pause: Callable[[float], object] = time.sleep) -> dict[str, Any]:
    """Download a repository of the hub, or some of its files; return ``files``, ``bytes`` and ``commit``.

    Args:
        config: A ``HubDownloadConfig``, or Marin's ``DownloadConfig``.
        pause: Waits the given seconds while the hub is busy.

    Raises:
        DownloadError: The hub has no such repository, refuses it, or sends other bytes than it announced.
    """
    return _download_from_hub(config, config.gcs_output_path, pause)


def download(config: Any) -> dict[str, Any]:
    """Download like ``download_hf``, to the folder of Marin's ``download``: below revision and address."""
    prefix = f"{config.hf_repo_type_prefix}/" if config.hf_repo_type_prefix else ""
    below = f"{config.revision}/huggingface.co/{prefix}{config.hf_dataset_id}/resolve/{config.revision}"
    return _download_from_hub(
        config, f"{config.gcs_output_path.rstrip('/')}/{check_name(below, 'The config')}", time.sleep
    )


def download_files(config: FilesDownloadConfig) -> dict[str, Any]:
    """Download the files; return ``files`` and ``bytes``.

    Raises:
        DownloadError: A file is not available, or has another checksum.
    """
    from tradewind.datasets.http_reader import HttpReader

    read_http = HttpReader().read
    names = names_of(config.urls, config.sha256)
    files = [SourceFile(name, url, sha256=config.sha256.get(url)) for name, url in names.items()]
    return _copy_all(files, config.output_path, read_http, {"links": list(config.urls)})


def names_of(urls: Sequence[str], sha256: Mapping[str, str]) -> dict[str, str]:
    """Map the name of each copy to its address.

    Raises:
        ValueError: An address has no name at its end, two have the same, or a checksum belongs to no address.
    """
    if unknown := sorted(set(sha256) - set(urls)):
        raise ValueError(f"sha256[{unknown[0]!r}] is none of the urls.")
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
            f"urls: an address at {parts.hostname} holds a name or a password, which would be stored with it. Give an "
            "address without."
        )
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"urls: {truncated_repr(url)} has an unknown scheme: give https://..., gs://... or s3://...")


def _download_from_hub(config: Any, output_path: str, pause: Callable[[float], object]) -> dict[str, Any]:
    from tradewind.datasets.hub import REPO_TYPES, Hub

    hub = Hub(pause)
    revision = hub.revision(
        config.hf_dataset_id, config.revision, REPO_TYPES[config.hf_repo_type_prefix], list(config.hf_urls_glob or ())
    )
    provenance = {
        "dataset": config.hf_dataset_id,
        "version": config.revision,
        "commit": revision.commit,
        "links": [file.url for file in revision.files],
    }
    return _copy_all(revision.files, output_path, hub.reader().read, provenance) | {"commit": revision.commit}


def _copy_all(
    files: Sequence[SourceFile], output_path: str, read_http: Callable[[SourceFile], Any], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    check_apart({PROVENANCE_FILE: None, **{file.name: None for file in files}}, "The download")
    sizes = [file.size_bytes for file in files]
    progress = DownloadProgress(len(files), None if None in sizes else sum(size or 0 for size in sizes))
    print(f"Downloading {len(files)} files to {output_path}.", flush=True)

    def read(file: SourceFile) -> Any:
        return read_http(file) if file.url.startswith(("https://", "http://")) else read_store(file)

    Copies(output_path, read, progress.count).make(files)
    if PROVENANCE_FILE not in {file.name for file in files}:  # else the repository has its own
        write_json(join(output_path, PROVENANCE_FILE), provenance)
    print(f"Downloaded {progress.line()}.", flush=True)
    return {"files": progress.files, "bytes": progress.bytes}


def read_store(file: SourceFile) -> Iterator[bytes]:
    """Yield the bytes of a file in a store, such as ``gs://``, which serves each part by itself.

    Raises:
        DownloadError: It is no file, or changed meanwhile, so its parts may be of two versions.
    """
    fs, name = file_system_at(file.url)
    if not fs.isfile(name):  # a pipe could block
        raise DownloadError(f"{file.url} is no file: is it there?")
    before = state_of(file.url)
    with open_file(file.url) as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk
    if not file.is_checked and state_of(file.url) != before:
        raise DownloadError(
            f"{file.url} changed while it was read. Give its sha256, or an address whose file does not change."
        )


class Copies:
    """Copies files into a folder of any store.

    Args:
        folder: Where the copies go.
        read: Yields the bytes of a file.
        count: Receives increments of ``(files, bytes)``.
    """

    def __init__(self, folder: str, read: Reader, count: Callable[[int, int], object]) -> None:
        self._folder = folder
        self._read = read
        self._count = count
        self._has_failed = threading.Event()

    def make(self, files: Sequence[SourceFile]) -> None:
        """Copy the files that are missing, several at once.

        Raises:
            DownloadError: A file could not be copied; finished copies stay.
        """
        there = _existing_copies(files, self._folder)
        for size in there.values():
            self._count(1, size)
        with ThreadPoolExecutor(MAX_CONCURRENT_COPIES, thread_name_prefix="download") as threads:
            copies = [threads.submit(self._copy, file) for file in files if file.name not in there]
            try:
                for copy in as_completed(copies):
                    copy.result()
            except BaseException:  # Ctrl-C, too: cancel the copies that have not begun
                self._has_failed.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _copy(self, file: SourceFile) -> None:
        repeat_if_damaged(lambda: self._copy_once(file))

    def _copy_once(self, file: SourceFile) -> None:
        copied = 0
        try:
            with atomic_writer(join(self._folder, file.name)) as opened:
                for chunk in file.verify(self._read(file)):
                    if self._has_failed.is_set():
                        raise DownloadError(f"Download of {file.url} cancelled, since another file failed.")
                    opened.write(chunk)
                    copied += len(chunk)
                    self._count(0, len(chunk))
        except BaseException:
            self._count(0, -copied)
            raise
        self._count(1, 0)


def _existing_copies(files: Sequence[SourceFile], folder: str) -> Mapping[str, int]:
    """Return name and size of finished copies; remove unfinished ones, and those of another list."""
    wanted = json.dumps([asdict(file) for file in files])
    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    root = root.rstrip("/")
    found = {name[len(root) + 1 :]: entry["size"] for name, entry in fs.find(root, detail=True).items()}
    recorded = _recorded_list(join(folder, LIST_FILE), max(len(wanted), _MAX_OTHER_LIST_BYTES))
    others = _recorded_names(recorded) if recorded is not None and recorded != wanted else set()
    for name in [name for name in found if UNFINISHED.search(name) or name in others]:
        remove_file(fs, f"{root}/{name}")
        del found[name]
    if recorded != wanted:
        write_text(join(folder, LIST_FILE), wanted)
        return {}
    return {
        file.name: found[file.name]
        for file in files
        if file.name in found and file.size_bytes in (None, found[file.name])
    }


def _recorded_list(path: str, max_bytes: int) -> str | None:
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    content = read_contents([path], max_bytes).get(path)
    if content is not None and content.flaw is not None:
        raise DownloadError(f"{path} is not what a download writes ({content.flaw}). Remove it.")
    return None if content is None else content.text


def _recorded_names(recorded: str) -> set[str]:
    try:
        return {str(each["name"]) for each in json.loads(recorded)}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DownloadError(f"{LIST_FILE} in the output is not what a download writes ({error}). Remove it.") from error


class DownloadProgress:
    """Progress lines of a download for the task log; threads may share it.

    Args:
        files: Number of files.
        size_bytes: Their total size; None if unknown.
        clock: Monotonic seconds.
    """

    def __init__(self, files: int, size_bytes: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._all_files = files
        self._all_bytes = size_bytes
        self._clock = clock
        self._began = self._printed_at = clock()
        self._lock = threading.Lock()
        self.files = 0
        self.bytes = 0
        self._kept_bytes = 0

    def count(self, files: int, size_bytes: int) -> None:
        """Add files and bytes; a file together with its bytes is a copy from before."""
        with self._lock:
            self.files += files
            self.bytes += size_bytes
            if files and size_bytes:
                self._kept_bytes += size_bytes
            now = self._clock()
            if now - self._printed_at >= SECONDS_PER_LINE:
                self._printed_at = now
                print(self.line(), flush=True)

    def line(self) -> str:
        """Return a line such as ``12 of 40 files, 3.1 of 9.8 GB, 120.0 MB/s, 1 min left``."""
        seconds = max(self._clock() - self._began, 1e-3)
        rate = (self.bytes - self._kept_bytes) / seconds
        whole = f" of {human_size(self._all_bytes)}" if self._all_bytes is not None else ""
        done = f"{self.files} of {self._all_files} files"
        parts = [done, f"{human_size(self.bytes)}{whole}", f"{human_size(int(rate))}/s"]
        if self._all_bytes is not None and rate > 0 and self.bytes < self._all_bytes:
            parts.append(f"{(self._all_bytes - self.bytes) / rate / 60:.0f} min left")
        return ", ".join(parts)
