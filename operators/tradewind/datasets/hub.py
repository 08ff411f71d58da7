"""List the files of a Hugging Face repository at a revision (https://huggingface.co/docs/hub/api).

The hub's own client follows any redirect and any link to a next page, sends its token along, and reads answers of any
size. This client checks redirects, follows links within the hub only, bounds the size of an answer, and checks each
entry.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urljoin

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
    parse_json,
    parse_json_list,
)
from tradewind.text import single_line, truncated_repr

if TYPE_CHECKING:
    import requests

MAX_PAGE_BYTES: Final = 4 << 20
"""Bound for an answer; the hub's pages have a thousand entries, which are some hundred kilobytes."""
MAX_FILES: Final = 2_000_000
MAX_FILE_BYTES: Final = 1 << 50
_TIMEOUT_S: Final = (15.0, 60.0)
_CHUNK_BYTES: Final = 1 << 16
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
REPO_TYPES: Final = {"datasets": "dataset", "spaces": "space", "models": "model", "": "model"}
"""Prefix of the address → type in the hub's client."""
ENDPOINT_VARIABLE: Final = "HF_ENDPOINT"
_LOGIN: Final = re.compile(r"(?P<scheme>https?://)(?P<user>[^/?#:@]*)(?::(?P<password>[^/?#]*))?@")

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
        with _get(self._session, self._next, self._headers) as response:
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


@dataclass(frozen=True)
class HubAccess:
    """Address of a hub, and the token for it; workers on other hosts get both from the driver.

    Attributes:
        endpoint: Without a final slash.
        token: Sent to the hub only, and not after redirects to other hosts.
        login: ``user:password`` of a private mirror, sent instead of the token.
    """

    endpoint: str
    token: str | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)

    @staticmethod
    def of_environment() -> HubAccess:
        """Return the hub of ``HF_ENDPOINT``, else huggingface.co, with the token of ``HF_TOKEN`` or ``HF_HOME``.

        A user and password in the address become the login: links are stored and shown.
        """
        from huggingface_hub import constants, get_token

        endpoint = (os.environ.get(ENDPOINT_VARIABLE) or constants.ENDPOINT).rstrip("/")
        found = _LOGIN.match(endpoint)
        if found is None:
            return HubAccess(endpoint, get_token())
        login = unquote(found["user"]), unquote(found["password"] or "")
        return HubAccess(found["scheme"] + endpoint[found.end() :], get_token(), ":".join(login))

    @property
    def headers(self) -> dict[str, str]:
        """Headers of requests to the hub itself."""
        if self.login is not None:
            return {"Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def reader(self, pause: Callable[[float], object] = time.sleep) -> HttpReader:
        """Return a reader of the hub's files."""
        return HttpReader(self.headers, self.endpoint, pause)


class Hub:
    """Client of a hub.

    Args:
        pause: Waits the given seconds.
        access: None for that of the environment.
    """

    def __init__(self, pause: Callable[[float], object] = time.sleep, access: HubAccess | None = None) -> None:
        self.access = access or HubAccess.of_environment()
        self._pause = pause

    def reader(self) -> HttpReader:
        """Return a reader of its files, which sends the token to the hub only, and not after redirects."""
        return self.access.reader(self._pause)

    def revision(self, repo: str, revision: str, repo_type: str, globs: Sequence[str] = ()) -> HubRevision:
        """List the files that match one of ``globs``, or all without globs; paths with a leading dot are left out.

        In a glob, ``*`` stays within a folder, and ``**`` crosses folders.

        Raises:
            DownloadError: The hub has no such repository, revision or file, or denies access.
        """
        what = f"{repo_type} {truncated_repr(repo)} at revision {truncated_repr(revision)}"
        _check_reachable(what, repo)
        commit = self._retry(what, lambda: self._commit(what, repo, revision, repo_type))
        tree = self._tree(what, repo, commit, repo_type)
        names = {file.name for file in tree}
        wanted = _matching(names, globs, what)
        files = sorted((file for file in tree if file.name in wanted), key=lambda file: file.name)
        where = f"The hub's list of {repo}"
        for file in files:
            check_name(file.name, where)
        check_apart((file.name for file in files), where)
        return HubRevision(repo, commit, tuple(files))

    def _commit(self, what: str, repo: str, revision: str, repo_type: str) -> str:
        """Return the commit that a branch, a tag or a short hash leads to."""
        url = f"{self.access.endpoint}/api/{repo_type}s/{repo}/revision/{quote(revision, safe='')}?expand=sha"
        with _get(guarded_session(), url, self.access.headers) as response:
            if response.status_code != 200:
                raise DownloadError(_refusal(what, response))
            answer = parse_json(response.iter_content(_CHUNK_BYTES), f"The hub's answer about {what}", MAX_PAGE_BYTES)
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise DownloadError(f"The hub gave the {what} the commit {truncated_repr(commit)}, which is no commit ID.")
        return commit

    def _tree(self, what: str, repo: str, commit: str, repo_type: str) -> list[SourceFile]:
        listing = Listing(self.access.endpoint, repo, commit, repo_type, self.access.headers)
        while not listing.is_complete:
            self._retry(what, listing.read_page)
        return listing.files

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


def _check_reachable(what: str, repo: str) -> None:
    from huggingface_hub import constants

    check_repo_id(repo)
    if constants.HF_HUB_OFFLINE:
        raise DownloadError(
            f"The {what} cannot be listed, since HF_HUB_OFFLINE is set: unset it, or give the path of a copy."
        )


def check_repo_id(repo: str) -> None:
    """Raise ``DownloadError`` if the hub can have no repository of this name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented there

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise DownloadError(
            f"{truncated_repr(repo)} is no name of a repository: give one like 'owner/name' ({single_line(error)})"
        ) from error


def _get(session: requests.Session, url: str, headers: dict[str, str]) -> requests.Response:
    """Request a page of the hub's API; raises ``TransientError`` if it cannot answer now."""
    response = session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S)
    if response.status_code in TRANSIENT_STATUSES:
        response.close()
        raise TransientError(f"it answered {response.status_code}", retry_after_s(response.headers.get("Retry-After")))
    return response


def _wanted_pause_s(what: str, error: Exception) -> float | None:
    """Return the pause that the hub asks for, if it does; raise ``DownloadError`` if a retry cannot help."""
    import requests

    if isinstance(error, TransientError):
        return error.pause_s
    if isinstance(error, (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)):
        return None
    if isinstance(error, DownloadError):
        raise error
    problem = f"The hub's response about the {what} cannot be read: {type(error).__name__}: {single_line(error)}"
    raise DownloadError(problem) from error


def _refusal(what: str, response: requests.Response) -> str:
    """Say why the hub did not resolve a revision, by its codes (``huggingface_hub.utils.hf_raise_for_status``)."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        return f"The {what} requires accepted terms: accept them on its page, and give the step the secret HF_TOKEN."
    if code == "RepoNotFound" or (not code and status in (401, 403)):
        return (
            f"The hub has no {what}, or it is private: check the id, and for a private one give the step the secret "
            "HF_TOKEN."
        )
    if code == "RevisionNotFound" or status == 404:
        return f"The hub has no such revision: {what}. Choose one under 'Files and versions' on its page."
    said = single_line(response.headers.get("X-Error-Message", ""))
    return f"The hub refused to list the {what}: it answered {status}{f' ({said})' if said else ''}."


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
