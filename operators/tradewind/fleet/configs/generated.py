"""The files that follow from a fleet file, kept in step with it: one for each cluster, and the schema for editors.

A file is replaced whole or not at all. One that does not begin with the header is somebody's own: it is never
overwritten and never removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tradewind.fleet.clusters import Fleet
from tradewind.fleet.configs.template import HEADER, TEMPLATE_NAME, ClusterTemplate
from tradewind.fleet.errors import FleetError
from tradewind.fleet.file.schema import SCHEMA_FILE
from tradewind.storage.files import write_text

CLUSTERS_FOLDER: Final = "clusters"


@dataclass(frozen=True)
class GeneratedFiles:
    """What should lie beside the fleet file, and what differs from that."""

    texts: Mapping[Path, str]
    """File → what it should hold, for every file that should be there."""
    stale: tuple[Path, ...]
    """Those that hold something else, or are missing."""
    surplus: tuple[Path, ...]
    """Files of clusters that are no more."""

    @staticmethod
    def of(fleet: Fleet) -> GeneratedFiles:
        """The files of ``fleet``, compared with those that lie there.

        Raises:
            FleetError: The template cannot be used, or somebody's own file is where a cluster's should be.
        """
        folder = fleet.file.parent / CLUSTERS_FOLDER
        template = ClusterTemplate(fleet.file.parent / TEMPLATE_NAME)
        texts = {folder / f"{name}.yaml": template.text(cluster) for name, cluster in fleet.clusters.items()}
        there = {file: file.read_text(errors="replace") for file in sorted(folder.glob("*.yaml")) if file.is_file()}
        for file in texts:
            if file in there and not is_generated(there[file]):
                raise FleetError(
                    f"{file} does not begin with {HEADER!r}, so it is somebody's own: move it away, or give the "
                    "cluster another name."
                )
        surplus = tuple(file for file, text in there.items() if file not in texts and is_generated(text))
        schema = fleet.file.with_name(SCHEMA_FILE.name)
        if schema.is_file():
            there[schema] = schema.read_text(errors="replace")
        texts[schema] = SCHEMA_FILE.read_text()
        return GeneratedFiles(texts, tuple(file for file in texts if there.get(file) != texts[file]), surplus)

    def update(self) -> Iterator[str]:
        """Write what is stale and remove what is surplus; yields a sentence about each file."""
        for file in self.stale:
            write_text(str(file), self.texts[file])
            yield f"Wrote {file}."
        for file in self.surplus:
            file.unlink()
            yield f"Removed {file}: the fleet file has no such cluster."


def is_generated(text: str) -> bool:
    """Whether the file that holds ``text`` was written by this module."""
    return text.startswith(HEADER)
