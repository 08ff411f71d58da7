"""The list of a repository's files, page after page (https://huggingface.co/docs/hub/api), and from the hub alone.

The hub's own client goes to wherever a page says that the next one is, and takes its token along. Here a page is
believed only as far as it leads on at the hub, is of bounded size, and holds what a list of files holds.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, urljoin

from tradewind.datasets.downloading.http_reader import PASSING, PassingError, retry_after_s
from tradewind.datasets.downloading.redirects import guarded_session
from tradewind.datasets.downloading.source import DownloadError, SourceFile, check_name, is_hidden, parsed_list
from tradewind.datasets.one_line import in_a_line

LARGEST_PAGE_BYTES: Final = 64 << 20
"""The hub's have a thousand entries."""
MOST_FILES: Final = 2_000_000
LARGEST_FILE_BYTES: Final = 1 << 50
_TIMEOUT_S: Final = (15.0, 60.0)
_CHUNK_BYTES: Final = 1 << 16
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")


class Listing:
    """A list under way.

    Attributes:
        files: Those of the pages that were read, without those that could be taken for records of a step.
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
        """Read the next page, or none of it.

        Raises:
            PassingError: The hub cannot answer now.
            DownloadError: It answers what is no page of a list, or leads elsewhere.
        """
        with self._session.get(self._next, headers=self._headers, stream=True, timeout=_TIMEOUT_S) as response:
            if response.status_code in PASSING:
                wanted_s = retry_after_s(response.headers.get("Retry-After"))
                raise PassingError(f"it answered {response.status_code}", wanted_s)
            if response.status_code != 200:
                raise DownloadError(f"{self._where} cannot be had: it answered {response.status_code}.")
            entries = parsed_list(response.iter_content(_CHUNK_BYTES), self._where, LARGEST_PAGE_BYTES)
            following = response.links.get("next", {}).get("url")
        self.files += [file for entry in entries if (file := self._file(entry)) is not None]
        if len(self.files) > MOST_FILES:
            raise DownloadError(f"{self._where} has more than {MOST_FILES:,} files.")
        self._go_on(following)

    @property
    def _where(self) -> str:
        return f"The hub's list of {self._repo}"

    def _go_on(self, following: str | None) -> None:
        if following is None:
            self.is_complete = True
            return
        following = urljoin(self._next, following)
        if not following.startswith(f"{self._endpoint}/"):
            host = in_a_line(following.partition("?")[0])
            raise DownloadError(f"{self._where} goes on at {host}, which is not the hub: that was not asked.")
        if following in self._pages:
            raise DownloadError(f"{self._where} has no end: a page leads back to one before.")
        self._pages.add(following)
        self._next = following

    def _file(self, entry: Any) -> SourceFile | None:
        """None for a folder, and for a file that could be taken for a record of a step."""
        path = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(path, str):
            raise DownloadError(f"{self._where} has an entry without a path.")
        if entry.get("type") != "file" or is_hidden(path):
            return None
        from huggingface_hub import hf_hub_url

        name = check_name(path, self._where)
        url = hf_hub_url(self._repo, name, repo_type=self._repo_type, revision=self._commit, endpoint=self._endpoint)
        lfs = entry.get("lfs")
        told = entry if lfs is None else lfs if isinstance(lfs, dict) else {}
        size, digest = told.get("size"), told.get("oid")
        is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= LARGEST_FILE_BYTES
        if not is_size or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise DownloadError(f"{self._where} has no size or no checksum of {name!r}.")
        return SourceFile(name, url, size, *((digest, None) if lfs is not None else (None, digest)))
