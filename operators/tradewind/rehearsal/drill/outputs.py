"""Whether a disturbed run made what an undisturbed one made, file by file, by the manifests of both.

Two things may differ and say nothing: when a metric was measured, and under which prefix an output lies. Left out are
checkpoints, whose files have random names (what is in them shows in the export and in every later loss), and logs.
What cannot be read, such as half a file, is a difference and not the end of the drill.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.goodput import METRICS_FILE, metrics_rows
from tradewind.records.leases.lease import LEASE_FILE
from tradewind.records.outputs.manifests import read_manifest
from tradewind.records.parsing import is_number
from tradewind.records.reading import read_leases
from tradewind.storage import file_system_at
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_text

_LEFT_OUT: Final = ("checkpoints/", "logs/", "tensorboard/", "wandb/")
_OF_INPUTS: Final = ".tokenization"
"""Says of which files, by path and time of writing, tokens were made."""
_OF_THE_CLOCK: Final = frozenset({"time", "step_seconds"})
_LOSS: Final = "train/loss"


@dataclass(frozen=True)
class OutputVerdict:
    """One step's output in both runs."""

    step: str
    """Name and version, which is where the output lies below the prefix."""
    files: int
    different: tuple[str, ...]
    """What is not the same in both: paths, with how many of their rows."""
    final_loss: float | None = None
    """The last ``train/loss`` of the disturbed run, if it is a number."""
    undisturbed_loss: float | None = None

    @property
    def is_equal(self) -> bool:
        return not self.different

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "equal": self.is_equal,
            "files": self.files,
            "different": list(self.different),
            "final_loss": self.final_loss,
            "undisturbed_final_loss": self.undisturbed_loss,
        }


def compare_outputs(undisturbed: str, disturbed: str) -> tuple[OutputVerdict, ...]:
    """A verdict for every output below the prefix ``undisturbed``, compared with the same below ``disturbed``."""
    first, second = _Tree(undisturbed), _Tree(disturbed)
    return tuple(_verdict(name, first, second) for name in first.outputs())


class _Tree:
    """What lies below one prefix, on any fsspec store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.rstrip("/")
        self._fs, self._root = file_system_at(self.prefix)
        self._fs.invalidate_cache()

    def outputs(self) -> list[str]:
        """The outputs below the prefix, relative to it."""
        found = [str(path) for path in self._fs.find(self._root) if posixpath.basename(path) == LEASE_FILE]
        return sorted(posixpath.relpath(posixpath.dirname(path), self._root) for path in found)

    def files(self, output: str) -> dict[str, str | None]:
        """Path → checksum, as the manifest of the committed attempt has them; nothing when there is none.

        Raises:
            BadRecordError: What should be the lease or the manifest is none.
        """
        path = posixpath.join(self.prefix, output)
        lease = read_leases([path]).get(path)
        if lease is None:
            return {}
        if lease.flaw is not None:
            raise BadRecordError(posixpath.join(path, lease.flawed_file), lease.flaw)
        manifest = read_manifest(path, lease.attempt)
        return {} if manifest is None else {file.path: file.checksum for file in manifest.files}

    def read(self, path: str) -> str:
        """The text of a file; empty if there is none.

        Raises:
            BadRecordError: It is no text, or too large.
        """
        return read_text(posixpath.join(self.prefix, path)) or ""

    def rows(self, path: str) -> dict[int, dict[str, Any]]:
        """Step → what was measured there, of a file of metrics; a later line about a step counts.

        Raises:
            BadRecordError: It is no text, or too large.
        """
        steps: dict[int, dict[str, Any]] = {}
        for row in metrics_rows(self.read(path)):
            kept = {name: value for name, value in row.items() if name not in _OF_THE_CLOCK}
            steps.setdefault(row["step"], {}).update(kept)
        return steps


def _verdict(output: str, first: _Tree, second: _Tree) -> OutputVerdict:
    try:
        files, others = first.files(output), second.files(output)
    except BadRecordError as error:
        return OutputVerdict(output, 0, (str(error),))
    if not others:
        return OutputVerdict(output, 0, ("the whole output is missing",))
    paths = [path for path in sorted(files.keys() | others.keys()) if not _is_left_out(path)]
    different = [text for path in paths for text in _differences(output, path, files, others, first, second)]
    metrics = posixpath.join(output, METRICS_FILE)
    losses = [_last_loss(tree, metrics) if METRICS_FILE in files else None for tree in (second, first)]
    return OutputVerdict(output, len(paths), tuple(different), *losses)


def _is_left_out(path: str) -> bool:
    return path.startswith(_LEFT_OUT) or posixpath.basename(path) == _OF_INPUTS


def _differences(
    output: str,
    path: str,
    files: Mapping[str, str | None],
    others: Mapping[str, str | None],
    first: _Tree,
    second: _Tree,
) -> Iterator[str]:
    if files.get(path) == others.get(path):
        return
    whole = posixpath.join(output, path)
    if path not in files or path not in others:
        yield f"{path} is only in the {'undisturbed' if path in files else 'disturbed'} run"
        return
    try:
        if posixpath.basename(path) == METRICS_FILE:
            yield from _different_rows(path, first.rows(whole), second.rows(whole))
        elif not path.endswith(".json") or first.read(whole).replace(first.prefix, second.prefix) != second.read(whole):
            yield path
    except BadRecordError as error:
        yield str(error)


def _different_rows(
    path: str, expected: Mapping[int, Mapping[str, Any]], found: Mapping[int, Mapping[str, Any]]
) -> Iterator[str]:
    missing = len(expected.keys() - found.keys())
    wrong = sum(expected.get(step) != row for step, row in found.items())
    if missing or wrong:
        yield f"{path}: of {len(expected)} rows, {missing} are missing and {wrong} differ"


def _last_loss(tree: _Tree, metrics: str) -> float | None:
    """The last loss in a file of metrics; None if it has none, or cannot be read, which is told as a difference."""
    try:
        rows = tree.rows(metrics)
    except BadRecordError:
        return None
    losses = [rows[step][_LOSS] for step in sorted(rows) if _LOSS in rows[step]]
    return losses[-1] if losses and is_number(losses[-1]) else None
