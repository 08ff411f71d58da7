"""List the files of a Hugging Face repository at a revision (https://huggingface.co/docs/hub/api).

The hub's own client follows any link to a next page and sends its token along. This client follows links within the hub
only, bounds the size of a page, and checks each entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urljoin

from tradewind.datasets.http_reader import (
    MAX_FAILURES,
    TRANSIENT_STATUSES,
    HttpReader,
    TransientError,
    guarded_session,
    pause_s,
    retry_after_s,
)
from tradewind.datasets.source_files import (
    DownloadError,
    SourceFile,
    check_apart,
    check_name,
    is_hidden,
    parse_json_list,
)
from tradewind.text import single_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAX_PAGE_BYTES: Final = 64 << 20
"""Bound for a page; the hub's have a thousand entries."""
MAX_FILES: Final = 2_000_000
MAX_FILE_BYTES: Final = 1 << 50
_TIMEOUT_S: Final = (15.0, 60.0)
_CHUNK_BYTES: Final = 1 << 16
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
REPO_TYPES: Final = {"datasets": "dataset", "spaces": "space", "models": "model", "": "model"}
"""Prefix of the address → type in the hub's client."""
ENDPOINT_VARIABLE: Final = "HF_ENDPOINT"

_T = TypeVar("_T")


class Listing:
    """The list of a repository's files, read page by page.

    Attributes:
        files: Files of the pages read so far, without those that could pass for records of a step.
        is_complete: Whether there is no further page.
    """

    def __init__(self, endpoint: str, repo: str, commit: str, repo_type: str, headers: dict[str, str]) -> None:
        self.files: list[SourceFile] = []
        self.is_complete = False
        self._endpoint = endpoint
        self._repo = repo
        self._commit = commit
        self._repo_type = repo_type
        self._headers = headers
        self._session = guarded_session()
        self._next = f"{endpoint}/api/{repo_type}s/{repo}/tree/{quote(commit, safe='')}?recursive=True"
        self._pages = {self._next}

    def read_page(self) -> None:
        """Read the next page as a whole.

        Raises:
            TransientError: The hub cannot answer now.
            DownloadError: The response is no page of a list, or the next page is elsewhere.
        """
        with self._session.get(self._next, headers=self._headers, stream=True, timeout=_TIMEOUT_S) as response:
            if response.status_code in TRANSIENT_STATUSES:
                wanted_s = retry_after_s(response.headers.get("Retry-After"))
                raise TransientError(f"it answered {response.status_code}", wanted_s)
            if response.status_code != 200:
                raise DownloadError(f"{self._where} is not available: the hub answered {response.status_code}.")
            entries = parse_json_list(response.iter_content(_CHUNK_BYTES), self._where, MAX_PAGE_BYTES)
            next_url = response.links.get("next", {}).get("url")
        self.files += [file for entry in entries if (file := self._file(entry)) is not None]
        if len(self.files) > MAX_FILES:
            raise DownloadError(f"{self._where} has more than {MAX_FILES:,} files.")
        self._set_next(next_url)

    @property
    def _where(self) -> str:
        return f"The hub's list of {self._repo}"

    def _set_next(self, next_url: str | None) -> None:
        if next_url is None:
            self.is_complete = True
            return
        next_url = urljoin(self._next, next_url)
        if not next_url.startswith(f"{self._endpoint}/"):
            host = single_line(next_url.partition("?")[0])
            raise DownloadError(f"{self._where} continues at {host}, which is not the hub: it was not asked.")
        if next_url in self._pages:
            raise DownloadError(f"{self._where} has no end: a page leads back to one before.")
        self._pages.add(next_url)
        self._next = next_url

    def _file(self, entry: Any) -> SourceFile | None:
        """Return the file of an entry; None for a folder, and for a file that could pass for a record."""
        path = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(path, str):
            raise DownloadError(f"{self._where} has an entry without a path.")
        if entry.get("type") != "file" or is_hidden(path):
            return None
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._repo, path, repo_type=self._repo_type, revision=self._commit, endpoint=self._endpoint)
        lfs = entry.get("lfs")
        content = entry if lfs is None else lfs if isinstance(lfs, dict) else {}
        size, digest = content.get("size"), content.get("oid")
        is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_FILE_BYTES
        if not is_size or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise DownloadError(f"{self._where} has no size or no checksum of {path[:200]!r}.")
        return SourceFile(path, url, size, *((digest, None) if lfs is not None else (None, digest)))


@dataclass(frozen=True)
class HubRevision:
    """A repository at one commit.

    Attributes:
        repo: ``owner/name``.
        commit: 40 hexadecimal digits; the hub resolved a branch, a tag or a short hash to it.
        files: Sorted by name.
    """

    repo: str
    commit: str
    files: tuple[SourceFile, ...]


class Hub:
    """Client of the hub at ``HF_ENDPOINT``, else huggingface.co, with the token in ``HF_TOKEN`` if set.

    Args:
        pause: Waits the given seconds.
    """

    def __init__(self, pause: Callable[[float], object]) -> None:
        from huggingface_hub import HfApi, constants

        self._endpoint = (os.environ.get(ENDPOINT_VARIABLE) or constants.ENDPOINT).rstrip("/")
        self._api: HfApi = HfApi(endpoint=self._endpoint, library_name="tradewind")
        self._pause = pause

    def reader(self) -> HttpReader:
        """Return a reader of its files, which sends the token to the hub only, and not after redirects."""
        return HttpReader(self._headers(), self._endpoint, self._pause)

    def revision(self, repo: str, revision: str, repo_type: str, globs: Sequence[str] = ()) -> HubRevision:
        """List the files that match one of ``globs``, or all without globs; paths with a leading dot are left out.

        In a glob, ``*`` stays within a folder, and ``**`` crosses folders.

        Raises:
            DownloadError: The hub has no such repository, revision or file, or denies access.
        """
        what = f"{repo_type} {repo!r} at revision {revision!r}"
        info = self._retry(
            what, lambda: self._api.repo_info(repo, revision=revision, repo_type=repo_type, timeout=60.0)
        )
        commit = str(info.sha or "")
        if not _COMMIT.fullmatch(commit):
            raise DownloadError(f"The hub gave the {what} the commit {commit[:60]!r}, which is no commit ID.")
        tree = self._tree(what, repo, commit, repo_type)
        names = {file.name for file in tree}
        wanted = _matching(names, globs, what)
        files = sorted((file for file in tree if file.name in wanted), key=lambda file: file.name)
        where = f"The hub's list of {repo}"
        for file in files:
            check_name(file.name, where)
        check_apart((file.name for file in files), where)
        return HubRevision(repo, commit, tuple(files))

    def _tree(self, what: str, repo: str, commit: str, repo_type: str) -> list[SourceFile]:
        listing = Listing(self._endpoint, repo, commit, repo_type, self._headers())
        while not listing.is_complete:
            self._retry(what, listing.read_page)
        return listing.files

    def _headers(self) -> dict[str, str]:
        from huggingface_hub import get_token

        token = get_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _retry(self, what: str, call: Callable[[], _T]) -> _T:
        """Call the hub; retry while it cannot answer."""
        failures = 0
        while True:
            try:
                return call()
            except Exception as error:
                wanted_s = _wanted_pause_s(what, error)
                failures += 1
                if failures > MAX_FAILURES:
                    problem = f"The hub does not list the {what}: {single_line(error)}; tried {failures} times."
                    raise DownloadError(problem) from error
            self._pause(pause_s(failures, wanted_s))


def _wanted_pause_s(what: str, error: Exception) -> float | None:
    """Return the pause that the hub asks for, if it does; raise ``DownloadError`` if a retry cannot help."""
    import requests
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError) and error.response is not None:
        if error.response.status_code not in TRANSIENT_STATUSES:
            raise DownloadError(_refusal(what, error)) from error
        return retry_after_s(error.response.headers.get("Retry-After"))
    if isinstance(error, TransientError):
        return error.pause_s
    if isinstance(error, (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)):
        return None
    if isinstance(error, (HFValidationError, OfflineModeIsEnabled)):
        raise DownloadError(f"The {what} cannot be listed: {error}") from error
    if isinstance(error, DownloadError):
        raise error
    problem = f"The hub's response about the {what} cannot be read: {type(error).__name__}: {single_line(error)}"
    raise DownloadError(problem) from error


def _refusal(what: str, error: Any) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"The {what} requires accepted terms: accept them on its page, and give the step the secret HF_TOKEN."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"The hub has no {what}, or it is private: check the id, and for a private one give the step the secret "
            "HF_TOKEN."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"The hub has no such revision: {what}. Choose one under 'Files and versions' on its page."
    return f"The hub refused to list the {what}: {single_line(error)}"


def _matching(names: set[str], globs: Sequence[str], what: str) -> set[str]:
    from fsspec.utils import glob_translate

    if not globs:
        if not names:
            raise DownloadError(f"The {what} has no files.")
        return names
    matched: set[str] = set()
    for glob in globs:
        pattern = re.compile(glob_translate(glob))
        files = {name for name in names if pattern.match(name)}
        if not files:
            print(f"No file of the {what} matches {glob!r}.", flush=True)
        matched |= files
    if not matched:
        some = ", ".join(sorted(names)[:5])
        raise DownloadError(f"None of the {len(names)} files of the {what} matches {list(globs)}; it has {some}, ...")
    return matched
