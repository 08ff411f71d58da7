"""Fenced blocks of the documentation, and the examples among them that are DAG files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NO_RUN: Final = "<!-- no-run -->"
_DAG: Final = re.compile(r"^(?:experiment_dag|with DAG|executor_main)\((?:\"(\w+)\")?", re.MULTILINE)
SCHEDULED: Final = (
    "README",
    "first",
    "note",
    "first_ray_jobs",
    "others",
    "own_operator",
    "choose_sum_publish",
    "where",
)
"""Examples that ``tests/airflow/test_examples.py`` runs under a scheduler."""


@dataclass(frozen=True)
class Block:
    """A fenced block and its position."""

    page: Path
    line: int
    language: str
    text: str
    may_run: bool

    def __str__(self) -> str:
        return f"{title(self.page)}:{self.line}"

    @property
    def dag_id(self) -> str | None:
        """The DAG that it makes; that of ``executor_main`` is named after the file, here the page."""
        found = _DAG.search(self.text)
        return None if found is None else found[1] or self.page.stem


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        before = text[: found.start()]
        yield Block(
            page=page,
            line=before.count("\n") + 1,
            language=found[2],
            text=re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE),
            may_run=not before.rstrip().endswith(NO_RUN),
        )


def title(page: Path) -> str:
    """Return the page's path in the repository."""
    return str(page.relative_to(ROOT))


BLOCKS: Final = [block for page in PAGES for block in blocks_of(page)]
PYTHON: Final = [block for block in BLOCKS if block.language == "python"]


def write_scheduled_examples(folder: Path) -> None:
    """Write the examples that run under a scheduler as DAG files, with the retries that the pages recommend."""
    dag, retries = r'^(with DAG\("\w+")(?:, default_args={"retries": 3})?', '{"retries": 3, "retry_delay": 1.0}'
    for block in PYTHON:
        if block.dag_id in SCHEDULED:
            text = re.sub(dag, rf"\1, default_args={retries}", block.text, flags=re.MULTILINE)
            (folder / f"{block.dag_id}.py").write_text(text)
