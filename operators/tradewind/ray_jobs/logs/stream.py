"""The whole log of a job as a stream of text, whatever its size.

Ray answers ``GET …/logs`` with one JSON string, and fails when the log holds bytes that are no UTF-8; then its State
API, which hands out the file as it is, is asked instead. Either way only a small part is in memory at a time.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import AsyncIterator

import aiohttp

from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError

_PIECE_BYTES = 64 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=120.0)

_OPENING = re.compile(r'\s*\{\s*"logs"\s*:\s*"')
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(
    rf"""(?:
        [^"\\]+
      | \\[^u]
      | \\u(?![dD][89abAB])[0-9a-fA-F]{{4}}
      | {_HIGH}(?:{_LOW} | (?=[^\\] | \\[^u] | \\u(?![dD][c-fC-F])[0-9a-fA-F]{{4}}))
    )*""",
    re.VERBOSE,
)
"""Characters and escapes that can be decoded without knowing what follows: a pair of surrogates stays together."""


class JsonLogDecoder:
    """Decodes ``{"logs": "..."}`` piece by piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._held = ""
        self._is_open = False
        self.has_ended = False
        """Whether the string's closing quote was seen: without it the log is cut short."""

    def text(self, body: bytes) -> str:
        """The text that ``body``, the next bytes of the answer, adds.

        Raises:
            ValueError: It is not this JSON.
        """
        self._held += self._decoder.decode(body)
        if self.has_ended or not (self._is_open or self._open()):
            return ""
        whole = _WHOLE.match(self._held)
        assert whole is not None, "it matches nothing at all, too"
        self._held = self._held[whole.end() :]
        self.has_ended = self._held.startswith('"')
        text: str = json.loads(f'"{whole[0]}"', strict=False)
        return text

    def _open(self) -> bool:
        opening = _OPENING.match(self._held)
        if opening:
            self._held = self._held[opening.end() :]
            self._is_open = True
        elif len(self._held) > 100:
            raise ValueError(f"no log in an answer that begins with {self._held[:100]!r}")
        return self._is_open


async def whole_log(api: JobsApi, job: JobDetails) -> AsyncIterator[str]:
    """Pieces of the log of ``job`` from its first character to its last; nothing when the cluster has no such log.

    Raises:
        RayUnreachableError: It cannot be read, or not to its end.
        RayAuthenticationError: The token is refused.
    """
    decoder = JsonLogDecoder()
    async with api.request("GET", f"/api/jobs/{job.job}/logs", timeout=_TIMEOUT) as response:
        if response.status == 404:
            return
        async for body in response.content.iter_chunked(_PIECE_BYTES):
            try:
                text = decoder.text(body)
            except ValueError as error:
                raise RayUnreachableError(f"{api.cluster} sent something that is not the log: {error}") from error
            yield text
    if not decoder.has_ended:
        raise RayUnreachableError(f"{api.cluster} sent only the beginning of the log of job {job.job!r}.")


async def whole_log_file(api: JobsApi, job: JobDetails) -> AsyncIterator[str]:
    """The same from the file on the node of the job's entrypoint, bytes that are no UTF-8 replaced."""
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    query = {"node_id": job.node_id or "", "filename": f"job-driver-{job.job}.log", "lines": "-1", "timeout": "120"}
    async with api.request("GET", "/api/v0/logs/file", params=query, timeout=_TIMEOUT) as response:
        if response.status == 404:
            return
        async for body in response.content.iter_chunked(_PIECE_BYTES):
            yield decoder.decode(body)
    yield decoder.decode(b"", final=True)
