"""The folder that a DAG's own code is imported from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import DAG

_OWN_FOLDER: Final = "tradewind_code_folder"


def set_code_folder(dag: DAG, folder: Path) -> None:
    """Set the code folder of ``dag``'s steps, such as a checkout, instead of the DAG file's bundle."""
    setattr(dag, _OWN_FOLDER, folder)


def code_folder(dag: DAG) -> Path:
    """Return the root of the DAG's bundle, which Airflow adds to the import path, or else the file's folder."""
    own = getattr(dag, _OWN_FOLDER, None)
    if isinstance(own, Path):
        return own
    file = Path(dag.fileloc)
    relative = Path(dag.relative_fileloc) if dag.relative_fileloc else Path(file.name)
    if relative.is_absolute() or not file.as_posix().endswith(relative.as_posix()):
        return file.parent
    return file.parents[len(relative.parts) - 1]
