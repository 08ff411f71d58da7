"""Documents from the sources of Python's standard library: real text for examples on every machine."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tradewind.datasets.documents import Document, write_documents
from tradewind.steps.fields import PATH, SOME_TEXT, TEXT, check_fields

EXCLUDED_FOLDERS: Final = frozenset({"test", "tests", "site-packages", "encodings"})
"""Folders without useful text; ``encodings`` holds mostly tables of numbers."""


@dataclass(frozen=True)
class PythonSourcesConfig:
    """Sources that ``collect_python_sources`` collects."""

    python: str
    """Version of Python, such as ``"3.11"``: another one has other sources."""
    output_path: str
    """Gets the documents, one per file."""
    below: str = ""
    """Folder of the library, such as ``"email"`` (some 30 files); empty for all."""

    def __post_init__(self) -> None:
        check_fields(self, python=SOME_TEXT, output_path=PATH, below=TEXT)


def collect_python_sources(config: PythonSourcesConfig) -> int:
    """Write the sources as documents; return how many.

    Raises:
        ValueError: The process runs another Python, or its library has no such folder.
    """
    running = running_python()
    if running != config.python:
        raise ValueError(f"python={config.python!r}, but the cluster runs Python {running}: give that version.")
    count = write_documents(config.output_path, _sources(config.below))
    print(f"collected {count} files from Python {running}'s standard library", flush=True)
    return count


def running_python() -> str:
    """Return the version of this Python, in the form of ``PythonSourcesConfig.python``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _sources(below: str) -> Iterator[Document]:
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    folder = (library / below).resolve()
    if not folder.is_relative_to(library) or not folder.is_dir():
        raise ValueError(f"below={below!r} is no folder of Python's library: give one such as 'email'.")
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(library)
        if not EXCLUDED_FOLDERS.intersection(name.parts):
            yield Document(str(name), file.read_text(encoding="utf-8", errors="replace"))
