"""The folder that a DAG's own code is imported from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import DAG


def code_folder(dag: DAG) -> Path:
    """The root of the DAG's bundle, which Airflow puts on the import path; the file's own folder if that is unknown."""
    file = Path(dag.fileloc)
    relative = Path(dag.relative_fileloc) if dag.relative_fileloc else Path(file.name)
    if relative.is_absolute() or not file.as_posix().endswith(relative.as_posix()):
        return file.parent
    return file.parents[len(relative.parts) - 1]


def code_commit(folder: Path) -> str | None:
    """The Git commit that is checked out around ``folder``, read without Git itself; None outside a repository."""
    root = next((parent for parent in (folder, *folder.parents) if (parent / ".git").is_dir()), None)
    if root is None:
        return None
    try:
        head = (root / ".git" / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        loose = root / ".git" / name
        if loose.exists():
            return loose.read_text().strip()
        packed = (root / ".git" / "packed-refs").read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
