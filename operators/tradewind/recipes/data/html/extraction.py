"""Extract the text of HTML in a process of its own, which no page can crash, block or fill with more than a bound.

Parsers of HTML take minutes or gigabytes for some pages of a few hundred kilobytes, or end the process. So the process
gets limits of CPU time and memory from the kernel, and ends at the first page that exceeds one; the next page starts a
new one. This file runs as the program of that process, which has no other modules of this package.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Final

MAX_MEMORY_BYTES: Final = 2 << 30
"""Address space of the process; with its libraries it has about 200 MB to begin with."""
_LENGTH: Final = struct.Struct(">cI")
_TEXT, _ERROR, _MISSING = b"t", b"e", b"m"
_MAX_TOLD: Final = 300
_PR_SET_PDEATHSIG: Final = 1
_KILLED: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""How a process ends for which the page is not to blame, such as when the machine lacks memory."""
_MAX_TRIES: Final = 3


class ExtractionError(ValueError):
    """A page has no text that can be extracted within the limits."""


def extract_resiliparse(html: str, options: Mapping[str, Any]) -> str:
    """Return plain text, by default of the main content."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    given = dict(options)
    prepend_title = given.pop("prepend_title")
    tree = HTMLTree.parse(html)
    text = extract_plain_text(tree, **given).strip()
    title = (tree.title or "").strip() if prepend_title else ""
    return f"{title}\n\n{text}" if title and text and not text.startswith(title) else text


def extract_trafilatura(html: str, options: Mapping[str, Any]) -> str:
    """Return the main text of an article."""
    import trafilatura

    if "html" not in html[:50].lower():  # it takes this for no page
        html = f"<html>{html}"
    return trafilatura.extract(html, **options) or ""


def extract_markdownify(html: str, options: Mapping[str, Any]) -> str:
    """Return the whole page as Markdown."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    given = dict(options)
    kept = {"img": given.pop("include_images"), "a": given.pop("include_links")}
    soup = BeautifulSoup(html, "lxml")
    for element in soup(["title", "script", "style", "template", *([] if kept["img"] else ["img"])]):
        element.decompose()
    strip = [] if kept["a"] else ["a"]
    return str(MarkdownConverter(strip=strip, **given).convert_soup(soup))


EXTRACTORS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], str]]] = {
    "resiliparse": extract_resiliparse,
    "trafilatura": extract_trafilatura,
    "markdownify": extract_markdownify,
}


class ExtractorProcess:
    """The process, as its user sees it; it starts with the first page.

    Args:
        extractor: Name of one of ``EXTRACTORS``.
        options: Of it.
        max_cpu_seconds: For one page.
        max_text_bytes: Bound for a text.
    """

    def __init__(self, extractor: str, options: Mapping[str, Any], max_cpu_seconds: int, max_text_bytes: int) -> None:
        self._max_cpu_seconds = max_cpu_seconds
        about = {"extractor": extractor, "options": dict(options), "cpu": max_cpu_seconds, "text": max_text_bytes}
        self._arguments = json.dumps(about)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ExtractorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def text_of(self, html: bytes) -> str:
        """Return the text of a page in UTF-8.

        Raises:
            ExtractionError: The extractor fails, or exceeds a limit.
            ModuleNotFoundError: Its library is not installed.
            ChildProcessError: Something else killed the process again and again.
        """
        for _ in range(_MAX_TRIES):
            try:
                kind, answer = self._answer_to(html)
            except (OSError, EOFError) as error:
                if (code := self._end()) not in _KILLED:
                    raise ExtractionError(f"the extractor {self._why_ended(code)}") from error
                continue
            if kind == _MISSING:
                raise ModuleNotFoundError(f"{answer}: install airflow-provider-tradewind[web]")
            if kind == _ERROR:
                raise ExtractionError(answer)
            return answer
        raise ChildProcessError(f"The process of the extractor was killed {_MAX_TRIES} times: is there enough memory?")

    def _answer_to(self, html: bytes) -> tuple[bytes, str]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(_LENGTH.pack(_TEXT, len(html)) + html)
        process.stdin.flush()
        kind, length = _LENGTH.unpack(_read(process.stdout, _LENGTH.size))
        return kind, _read(process.stdout, length).decode()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RUST_BACKTRACE": "0"}
        return subprocess.Popen(
            [sys.executable, "-P", os.path.abspath(__file__), self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def _why_ended(self, code: int) -> str:
        if code == -signal.SIGXCPU:
            return f"took more than {self._max_cpu_seconds} s of CPU time"
        return f"ended by signal {-code}, perhaps for want of memory" if code < 0 else f"exited with {code}"

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:  # closes its pipes, of which it ends
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(1)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.returncode


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    """Answer each page of the standard input on the standard output."""
    about = json.loads(sys.argv[1])
    pages, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a page may take it long to see that its user is gone
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(5_000)
    while header := pages.read(_LENGTH.size):
        html = pages.read(_LENGTH.unpack(header)[1]).decode()
        _limit_cpu_time(about["cpu"])
        kind, answer = _answer(about, html)
        answers.write(_LENGTH.pack(kind, len(answer)) + answer)
        answers.flush()


def _answer(about: Mapping[str, Any], html: str) -> tuple[bytes, bytes]:
    try:
        text = EXTRACTORS[about["extractor"]](html, about["options"]).encode("utf-8", "replace")
    except ModuleNotFoundError as error:
        return _MISSING, str(error).encode()
    except Exception as error:
        return _ERROR, f"{type(error).__name__}: {error}"[:_MAX_TOLD].encode("utf-8", "replace")
    if len(text) > about["text"]:
        return _ERROR, f"its text has {len(text):,} bytes, more than {about['text']:,}".encode()
    return _TEXT, text


def _limit_cpu_time(seconds: int) -> None:
    """Let the kernel end this process when the next page takes longer."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
