"""Real text that every machine has, for examples and for trying things out: the sources of Python's library."""

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
"""Folders that are no good text; the last one holds mostly tables of numbers."""


@dataclass(frozen=True)
class PythonSourcesConfig:
    """Which sources ``collect_python_sources`` collects."""

    python: str
    """The version of Python that they are of, such as ``"3.11"``: another one has other sources."""
    output_path: str
    """Gets the documents, one for each file."""
    below: str = ""
    """Only the sources in this folder of the library, such as ``"email"`` (some 30 files); all if it is empty."""

    def __post_init__(self) -> None:
        check_fields(self, python=SOME_TEXT, output_path=PATH, below=TEXT)


def collect_python_sources(config: PythonSourcesConfig) -> int:
    """Write the sources as documents; returns how many.

    Raises:
        ValueError: This is another Python, or its library has no such folder with sources.
    """
    running = running_python()
    if running != config.python:
        raise ValueError(f"These are to be the sources of Python {config.python}, but the cluster runs {running}.")
    count = write_documents(config.output_path, _sources(config.below))
    print(f"collected {count} files from Python {running}'s standard library", flush=True)
    return count


def running_python() -> str:
    """The version of this Python as ``PythonSourcesConfig.python`` wants it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _sources(below: str) -> Iterator[Document]:
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    folder = (library / below).resolve()
    if not folder.is_relative_to(library) or not folder.is_dir():
        raise ValueError(f"below={below!r}: Python's library has no such folder: give one such as 'email'.")
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(library)
        if not EXCLUDED_FOLDERS.intersection(name.parts):
            yield Document(str(name), file.read_text(encoding="utf-8", errors="replace"))
